"""This node's blocks of the networks whose addresses a cluster's nodes share."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from cni.kernel import budget
from cni.protocol.errors import CniError
from ctl.doctor.cluster import Blocks
from ctl.doctor.reading import Reader
from ipam import stores
from ipam.cluster import held
from ipam.cluster.held import Held


def blocks(read: Reader, data_dirs: Iterable[Path]) -> Iterator[Blocks]:
    """Those of each network; a store is asked only where the files are this node's own."""
    silent = cache(silence if read.root == Path("/") else lambda _: "")
    for file in sorted(file for folder in data_dirs for file in folder.glob(f"*/{held.FILE}")):
        try:
            mine = held.read(file.parent)
            if mine:
                yield _blocks(file, mine, silent(mine.store))
        except CniError as e:
            read.unread[f"{file}"] = e.msg


def _blocks(file: Path, mine: Held, silent: str) -> Blocks:
    from ipam.cluster import counting  # noqa: PLC0415  # few nodes have such a network

    contents = stores.open_in(file.parent.parent, file.parent.name, []).contents()
    have = counting.counted(mine, counting.pool(mine, contents.sets), counting.held_in(contents))
    states = Counter(block.state for block in mine.blocks)
    # A node without a block has given numbers that names have, and needs none.
    room = counting.room(have, mine) if have.free and mine.blocks else -1
    return Blocks(f"{file}", states, room, time.time() - mine.looked, silent)


def silence(kind: str) -> str:
    """Why the store cannot be asked; empty if it answers."""
    from ipam.cluster import opening  # noqa: PLC0415  # few nodes have such a network

    budget.begin()
    try:
        opening.opened(kind).documents.identity()
    except CniError as e:
        return e.msg
    return ""
