"""Undo unneeded attachments: those that a runtime's GC does not list, and those of dead pods.

No runtime sends GC for Multus's secondary networks.  So one ADD in EVERY checks a few attachments of its own network,
and the agent and ``hpn gc`` check all attachments.
"""

import json
import math
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from base.kernel import netns
from base.protocol import spec
from base.protocol.errors import CniError, combine
from base.protocol.location import Location, location
from base.protocol.spec import Config, Key, Request
from base.state import chains, journal
from base.state.chains import Chain
from base.state.journal import Entry, Version
from base.state.record import LOST, Record
from cni.features import delegate
from cni.features.delegate import Programs
from cni.undo import Undo, are_dead, is_chain_dead, is_dead, may_be_dead

# One ADD in EVERY checks LOOKS attachments.  With a hundred attachments that takes 220 us, 28 us for the average ADD.
EVERY: Final = 8
LOOKS: Final = 4
PLUGINS: Final = "/opt/cni/bin"
# Seconds: one tick, because a process's start may appear a tick too early, and one because a file's time may.
_TICKS: Final = 0.02


def gc(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Undo every attachment of this network that the runtime does not list.

    Without a list it undoes only attachments of provably dead pods: those of an older boot, and those whose namespace
    is gone.  It leaves alone an attachment whose ADD began or ended after GC began, because the list cannot contain it.
    Raises all failures as one, after every attachment was tried.
    """
    where, valid, began = location(conf), spec.valid_attachments(conf), _began(request)
    undo = Undo(request, programs, log)
    failures, there = list[Exception](), journal.entries(where.state_dir, where.network)
    # The IPAM plugin comes first.  Its list contains every attachment with a record, because an ADD writes its record
    # before it has a lease.  An attachment with both is undone below, which releases its addresses.
    try:
        request.refuse_if_abandoned()
        delegate.ask_if_it_can(_asked(where.ipam, valid, programs), _sparing(request, conf, where), programs)
    except (CniError, OSError) as e:
        failures.append(e)
    # GC of a chain's network decides about its attachments, also if their records are damaged.
    chained = chains.named(where.state_dir)
    there = [(one, version) for one, version in there if one not in chained]
    for seen, version in there:
        # Without a list only dead attachments are undone, at any age.
        if valid is not None and (seen.key in valid or _is_since(version, began)):
            continue
        try:
            with journal.lock(where.state_dir, where.network, seen.key) as entry:
                request.refuse_if_abandoned()
                if entry.version() != version:
                    continue
                record = entry.load()
                if record is None:
                    entry.forget()
                elif _is_a_chains(entry, record, valid):
                    continue
                elif valid is not None or is_dead(record):
                    undo.attachment(entry, record)
                    log.append(f"gc: removed {record.title}")
        except (CniError, OSError) as e:
            failures.append(e)
    failures += _gc_of_chains(where, valid, began, undo)
    if failures:
        raise combine(failures)


def _gc_of_chains(where: Location, valid: Collection[Key] | None, began: float, undo: Undo) -> list[Exception]:
    """``gc`` for the network's chains.  Returns the failures, after every chain was tried."""
    failures = list[Exception]()
    for whole in chains.of_network(where.state_dir, where.network):
        version = whole.version()
        if valid is not None and (whole.key in valid or _is_since(version, began)):
            continue
        try:
            with whole.lock():
                undo.request.refuse_if_abandoned()
                if whole.version() != version:
                    continue
                members = whole.load()
                if valid is not None or is_chain_dead(whole, members):
                    undo.members_of_chain(whole, members)
                    undo.log.append(f"gc: removed all interfaces of {whole.key.of('', whole.network)}")
        except (CniError, OSError) as e:
            failures.append(e)
    return failures


def _is_a_chains(entry: Entry, record: Record, valid: Collection[Key] | None) -> bool:
    """Whether the attachment belongs to a chain, which another network's list has."""
    if record.rail_of:
        if valid is not None and record.requested in valid:
            return True  # also without the chain's file
        return Chain(entry.state_dir, record.network, record.requested).exists
    return bool(record.claim) and any(
        whole.key.container_id == entry.key.container_id for whole in chains.of_state_dir(entry.state_dir)
    )


def _began(request: Request) -> float:
    """Return the start time of GC's process, by the clock of file times; infinite if it is unknown.  On a busy machine
    the process, or the agent, begins to work long after that."""
    if request.process:
        with suppress(OSError):  # the process was killed: request.abandoned
            return time.time() - netns.age(f"{request.process}") - _TICKS
    return math.inf


def _is_since(version: Version, began: float) -> bool:
    """Whether the record was written after ``began``; False for a time in the future, which a wrong clock wrote."""
    return version is not None and began < version[1] / 1e9 <= time.time()


def _asked(ipam: str, valid: Collection[Key] | None, programs: Programs) -> str:
    """Return the IPAM plugin that GC asks; empty for none.  Without a list it asks our own only.

    Another plugin may treat no list as an empty one: host-local 1.10.0 then frees the addresses of all pods.
    """
    return ipam if valid is not None or ipam in programs else ""


def _sparing(request: Request, conf: Config, where: Location) -> Request:
    """Return GC's request with every attachment that has a record as valid, under both names of the list: host-local
    reads only the first."""

    def attached() -> list[Key]:
        return journal.keys(where.state_dir, where.network)

    keys = sorted(attached(), key=str)
    listed = [{"containerID": key.container_id, "ifname": key.ifname} for key in keys]
    given = next((conf[name] for name in spec.VALID_ATTACHMENTS if conf.get(name) is not None), None)
    valid = None if given is None else [*given, *(one for one in listed if one not in given)]
    lists = {} if valid is None else dict.fromkeys(spec.VALID_ATTACHMENTS, valid)
    return replace(request, stdin=json.dumps({**conf, **lists}).encode(), attached=attached)


def a_few(where: Location, undo: Undo) -> None:
    """In one ADD of EVERY, undo one attachment of this network whose pod is provably dead.

    The ADD has succeeded, so this neither fails nor delays it.  It waits for no lock and runs no other program.  It
    leaves devices to the ADD that needs one.
    """
    if os.urandom(1)[0] % EVERY:
        return
    with suppress(CniError, OSError):
        for key in journal.keys(where.state_dir, where.network, _some):
            record = journal.peek(where.state_dir, where.network, key)
            if record and _is_cheap(record, undo.programs) and is_dead(record):
                if _reclaim(where.state_dir, record, undo, timeout=0):
                    undo.log.append(f"removed {record.title}, whose pod is gone")
                return


def _some(names: list[str]) -> list[str]:
    first = int.from_bytes(os.urandom(4)) % max(len(names), 1)
    return (names[first:] + names[:first])[:LOOKS]


def sweep(
    state_dir: Path, programs: Programs, *, dry_run: bool = False
) -> Iterator[tuple[Record, CniError | OSError | None]]:
    """Undo every attachment there whose pod is provably dead.  Yields each record, with the error if that failed."""
    undo = Undo(own_request(b"{}"), programs, [])
    records = [r for r in journal.records(state_dir) if r.kind != LOST and may_be_dead(r)]
    for record, dead in zip(records, are_dead(records), strict=True):
        if dead:
            try:
                if dry_run or _reclaim(state_dir, record, undo, timeout=1):
                    yield record, None
            except (CniError, OSError) as e:
                yield record, e
    if not dry_run:
        _forget_empty_chains(state_dir)


def _forget_empty_chains(state_dir: Path) -> None:
    """Remove chains without attachments: of dead pods, or of an ADD that was killed at its beginning."""
    for whole in chains.of_state_dir(state_dir):
        with suppress(CniError, OSError), whole.lock(timeout=0):
            entries = [member.entry(whole.key.container_id) for member in whole.load()]
            if not any(entry.version() for entry in entries):
                whole.forget()


def own_request(stdin: bytes, **variables: str) -> Request:
    """Return a request of no runtime.  Other IPAM plugins are searched in CNI_PATH if that is set, else in PLUGINS."""
    environ = {"CNI_PATH": os.environ.get("CNI_PATH", PLUGINS), "PATH": os.environ.get("PATH", "")}
    return Request(environ | variables, stdin)


def _reclaim(state_dir: Path, seen: Record, undo: Undo, timeout: float) -> bool:
    """Undo the attachment if its record is still ``seen``; return False if it is another.  Raises CniError, OSError."""
    with journal.lock(state_dir, seen.network, seen.key, timeout) as entry:
        record = entry.load()
        if record != seen:
            return False
        undo.as_gc().attachment(entry, record, counts=False)
        return True


def _is_cheap(record: Record, programs: Programs) -> bool:
    """Whether the pod may be dead, and its attachment can be undone without another program and without a device."""
    if record.kind == LOST:
        return False
    return may_be_dead(record) and not record.device and location(record.config).ipam in ("", *programs)
