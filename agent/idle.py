"""What the agent does while nobody asks, of all networks: it undoes what dead pods left, and looks after the blocks
that this node has of those whose addresses a cluster's nodes share."""

import mmap
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError
from base.protocol.location import IPAM_DIR
from base.state import places
from cni import collect
from ipam import main as ipam
from ipam import sandboxes
from ipam.stores import access

# Seconds between two looks.  Without this a runtime that keeps asking for STATUS would cause one in each pause.
EVERY: Final = 60.0
_TIME: Final = struct.Struct("=d")
# When the last look was; shared, because each look has a process of its own (agent/workers.py).
_last = mmap.mmap(-1, _TIME.size)


def reclaim() -> bool:
    """Undo what dead pods left, once in EVERY seconds at most; say on stderr what was done, and what could not be.

    Whether this node has blocks: they are looked after also if nobody asks anything, or they would go to others.
    """
    now = time.monotonic()
    (last,) = _TIME.unpack(_last[:])
    state_dirs = places.state_dirs()
    data_dirs = [Path(IPAM_DIR), *(state_dir / "ipam" for state_dir in state_dirs)]
    if last and now - last < EVERY:
        # Another node may be waiting for what a pod had here.
        if any(path for folder in data_dirs for path in folder.glob("*/sticky/blocks")):
            _say(keep_blocks(data_dirs))
        return bool(_with_blocks(data_dirs))
    _last[:] = _TIME.pack(now)
    _say(undo_dead(state_dirs, Path(IPAM_DIR)))
    _say(keep_blocks(data_dirs))
    return bool(_with_blocks(data_dirs))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stderr.write(f"hpn agent: {line}\n")


def undo_dead(state_dirs: list[Path], data_dir: Path) -> Iterator[str]:
    """Undo what dead pods left there, attachments first; a line for each that was undone, or could not be."""
    for state_dir in state_dirs:
        for record, problem in collect.sweep(state_dir, {"hpn-ipam": ipam.ask}):
            yield (
                f"{record.title} could not be undone: {problem}"
                if problem
                else f"removed {record.title}, which is dead"
            )
    for folder in (data_dir, *(state_dir / "ipam" for state_dir in state_dirs)):
        try:
            networks = access.networks(folder)
        except OSError as e:
            yield f"leases in {folder} could not be looked for: {e}"
            continue
        for network in networks:
            yield from _release_dead(folder, network)


def _release_dead(data_dir: Path, network: str) -> Iterator[str]:
    log = list[str]()
    try:
        if freed := access.open_in(data_dir, network, log, sandboxes.gone).collect(None):
            log.append(f"released {freed} leases of {network}, whose pods are gone")
    except CniError as e:
        log.append(f"leases of {network} could not be released: {e}")
    yield from log


def keep_blocks(data_dirs: list[Path]) -> Iterator[str]:
    """Look after the blocks of the networks there, where that is due; a line for what an operator should know."""
    if not _with_blocks(data_dirs):
        return
    from ipam.cluster.reconcile import reconcile  # noqa: PLC0415  # for this process, which ends

    for one in reconcile.rounds(reconcile.directories(data_dirs), sandboxes.gone, due_only=True):
        yield from one.log
        if one.problem:
            yield f"network {one.network}: its blocks could not be looked after: {one.problem}"


def _with_blocks(data_dirs: list[Path]) -> list[Path]:
    """The files that say which blocks this node has."""
    return [path for folder in data_dirs for path in folder.glob("*/blocks")]
