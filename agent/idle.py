"""The agent's work while idle: undo the attachments of dead pods, and reconcile this node's blocks of shared pools."""

import mmap
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.workers import report
from base.protocol.errors import CniError
from base.protocol.location import ipam_dir, state_dir
from base.state import claims, data_dirs
from cni import collect
from ipam import main as ipam
from ipam import sandboxes
from ipam.cluster import copies
from ipam.stores import access

# Seconds between two searches for dead pods.  Without this, a runtime that repeats STATUS causes one in each pause.
EVERY: Final = 60.0
_TIME: Final = struct.Struct("=d")
# The time of the last search; shared memory, because each search is a process (agent/workers.py).
_last = mmap.mmap(-1, _TIME.size)


def reclaim() -> bool:
    """Undo the attachments of dead pods, at most once per EVERY seconds, and reconcile blocks; report on stderr.

    Return whether this node has blocks or claims.  Then the agent repeats this without requests.  Else other nodes
    would reclaim the blocks, and a dead pod would keep its device from the next claim, for which no ADD comes.
    """
    now = time.monotonic()
    (last,) = _TIME.unpack(_last[:])
    is_due = not last or now - last >= EVERY
    folders = data_dirs.data_dirs(data_dirs.records() if is_due else ())
    # First, because the rest needs the disk.  Another node may wait for a number that a pod had here.
    if is_due or any(path for folder in folders for path in folder.glob("*/sticky/blocks")):
        for line in keep_blocks(folders):
            report(line)
    if is_due:
        _last[:] = _TIME.pack(now)
        for line in undo_dead(state_dir(), Path(ipam_dir())):
            report(line)
    return any(copies.networks(folders)) or bool(claims.all_claims())


def undo_dead(state_dir: Path, data_dir: Path) -> Iterator[str]:
    """Undo the attachments of dead pods, then release their leases; yield a line per success or failure."""
    for record, problem in collect.sweep(state_dir, {"hpn-ipam": ipam.ask}):
        yield (
            f"{record.title} could not be undone: {problem}" if problem else f"removed {record.title}, which is dead"
        )
    for folder in dict.fromkeys((data_dir, state_dir / "ipam")):
        try:
            networks = access.networks(folder)
        except OSError as e:
            yield f"leases in {folder} could not be listed: {e}"
            continue
        for network in networks:
            yield from _release_dead(folder, network)


def _release_dead(data_dir: Path, network: str) -> Iterator[str]:
    log = list[str]()
    try:
        if freed := access.open_in(data_dir, network, log, sandboxes.gone).collect(None):
            log.append(f"released {freed} leases of {network}: their pods are gone")
    except CniError as e:
        log.append(f"leases of {network} could not be released: {e}")
    yield from log


def keep_blocks(data_dirs: list[Path]) -> Iterator[str]:
    """Reconcile the blocks of the networks where that is due; yield messages for an operator."""
    networks, problems = copies.networks(data_dirs)
    if not networks and not problems:
        return
    from ipam.cluster.reconcile import alive, reconcile  # noqa: PLC0415  # for this process, which ends

    for one in (*alive.without_disk(problems), *reconcile.rounds(networks, sandboxes.gone, due_only=True)):
        yield from one.log
        if one.problem:
            yield f"network {one.network}: its blocks could not be reconciled: {one.problem}"
