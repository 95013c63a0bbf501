"""Copies of this node's blocks in memory, for a disk that cannot be read any more.

    /run/hpn/node/blocks/<digest>    {"directory": "/var/lib/cni/hpn/ipam/rail0", "blocks": {...}}

    /run/hpn/node/blocks.silent/etcd   {"at": 1800000000}: when a backend did not answer an ADD's heartbeat

A round writes the copies (reconcile/reconcile.py).  They outlive hpn node, and end with the boot, as all pods do.  They
serve only to keep the node's blocks: no address is allocated by them.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from base.protocol.errors import CniError
from base.protocol.location import STATE_DIR
from base.state import durable
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import NodeBlocks

FOLDER = f"{STATE_DIR}/node/blocks"


def note(directory: Path, mine: NodeBlocks | None) -> None:
    """Copy what the directory's file holds; without a file, remove the copy.  A failure leaves the former copy."""
    with suppress(CniError):
        if mine is None:
            durable.remove(_path(directory))
        else:
            durable.write(_path(directory), {"directory": f"{directory}", "blocks": mine.to_json()})


def last(directory: Path) -> NodeBlocks | None:
    """Return the copy of this node's blocks in that directory; None if there is none."""
    with suppress(CniError, KeyError, TypeError, ValueError, AttributeError):
        if body := durable.read(_path(directory)):
            return NodeBlocks.from_json(body["blocks"])
    return None


def copied() -> set[Path]:
    """Return the directories of all networks with a copy; that of reserved numbers is in the network's."""
    found = set[Path]()
    with suppress(OSError):
        for name in os.listdir(FOLDER):
            with suppress(CniError, KeyError, TypeError):
                if body := durable.read(f"{FOLDER}/{name}"):
                    directory, is_aside = Path(body["directory"]), "/" in body["blocks"]["network"]
                    found.add(directory.parent if is_aside else directory)
    return found


def networks(data_dirs: Iterable[Path]) -> tuple[list[Path], list[OSError]]:
    """Return the directories of networks with blocks of this node: in data directories that may not exist, and those
    of copies.  The errors are of directories that cannot be read."""
    problems = list[OSError]()
    found = {path for folder in data_dirs for path in _in(folder, problems)}
    return sorted(found | copied()), problems


def uncopied(problems: Iterable[OSError]) -> list[OSError]:
    """Return those of the errors of ``networks`` that concern a network, or a whole directory, without any copy."""
    known = {name for path in copied() for name in (f"{path}/{node_blocks.FILE}", f"{path.parent}")}
    return [one for one in problems if one.filename not in known]


def note_silent(kind: str) -> None:
    """Record that the backend of this kind did not answer just now."""
    with suppress(CniError):
        durable.write(f"{FOLDER}.silent/{kind}", {"at": int(time.time())})


def was_silent(kind: str, seconds: float) -> bool:
    """Whether a command found that in the last seconds, for any network."""
    with suppress(CniError, KeyError, TypeError, ValueError):
        if body := durable.read(f"{FOLDER}.silent/{kind}"):
            return 0 <= time.time() - int(body["at"]) < seconds
    return False


def _in(folder: Path, problems: list[OSError]) -> Iterator[Path]:
    names = list[str]()
    with _noted(problems):
        names = os.listdir(folder)
    for name in names:
        with _noted(problems):
            os.stat(f"{folder}/{name}/{node_blocks.FILE}")
            yield folder / name


@contextmanager
def _noted(problems: list[OSError]) -> Iterator[None]:
    """Add an error to the problems, except that something is absent."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as e:
        problems.append(e)


def _path(directory: Path) -> str:
    return f"{FOLDER}/{blake2b(os.fsencode(directory), digest_size=12).hexdigest()}"
