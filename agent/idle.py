"""What the agent does while nobody asks: it undoes what dead pods left, of all networks."""

import mmap
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cni import collect
from cni.protocol.errors import CniError
from cni.protocol.location import IPAM_DIR
from cni.state import places
from ipam import main as ipam
from ipam import sandboxes, stores

# Seconds between two looks.  Without this a runtime that keeps asking for STATUS would cause one in each pause.
EVERY: Final = 60.0
_TIME: Final = struct.Struct("=d")
# When the last look was; shared, because each look has a process of its own (agent/workers.py).
_last = mmap.mmap(-1, _TIME.size)


def reclaim() -> None:
    """Undo what dead pods left, once in EVERY seconds at most; say on stderr what was done, and what could not be."""
    now = time.monotonic()
    (last,) = _TIME.unpack(_last[:])
    if last and now - last < EVERY:
        return
    _last[:] = _TIME.pack(now)
    for line in undo_dead(places.state_dirs(), Path(IPAM_DIR)):
        sys.stderr.write(f"hpn agent: {line}\n")


def undo_dead(state_dirs: list[Path], data_dir: Path) -> Iterator[str]:
    """Undo what dead pods left there, attachments first; a line for each that was undone, or could not be."""
    for state_dir in state_dirs:
        for record, problem in collect.sweep(state_dir, {"hpn-ipam": ipam.ask}):
            yield (
                f"{record.whose} could not be undone: {problem}"
                if problem
                else f"removed {record.whose}, which is dead"
            )
    for folder in (data_dir, *(state_dir / "ipam" for state_dir in state_dirs)):
        try:
            networks = stores.networks(folder)
        except OSError as e:
            yield f"leases in {folder} could not be looked for: {e}"
            continue
        for network in networks:
            yield from _release_dead(folder, network)


def _release_dead(data_dir: Path, network: str) -> Iterator[str]:
    log = list[str]()
    try:
        if freed := stores.open_in(data_dir, network, log, sandboxes.gone).collect(None):
            log.append(f"released {freed} leases of {network}, whose pods are gone")
    except CniError as e:
        log.append(f"leases of {network} could not be released: {e}")
    yield from log
