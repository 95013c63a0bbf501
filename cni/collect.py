"""Attachments that nobody wants any more: those that a runtime's GC does not list, and those of dead pods.

Nobody sends GC for Multus's secondary networks.  So an ADD now and then looks at a few attachments of its own network,
and the agent and ``hpn gc`` look at all.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from cni import undo
from cni.parts import delegate
from cni.parts.delegate import Programs
from cni.protocol import spec
from cni.protocol.errors import CniError
from cni.protocol.location import Location, location
from cni.protocol.spec import Config, Key, Request
from cni.state import journal
from cni.state.record import LOST, Record

# One ADD in so many looks at so many attachments: where there are a hundred, 220 us for that one, 28 us for each ADD.
EVERY: Final = 8
LOOKS: Final = 4
PLUGINS: Final = "/opt/cni/bin"


def gc(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Undo every attachment of this network that the runtime does not list.

    Without a list it vouches for nothing, and only what is provably dead goes: an older boot's, and those
    whose namespace nobody is in.  An attachment whose ADD began or ended since GC began is left alone: the list
    cannot know it.  Raises the first failure, after having tried everything.
    """
    where, valid = location(conf), spec.valid_attachments(conf)
    failures, there = list[Exception](), journal.entries(where.state_dir, where.network)
    # The IPAM first, and it is told to spare what has a record: an ADD writes that before it has a lease.  What has
    # both goes below, by its own DEL.
    try:
        request.refuse_if_abandoned()
        delegate.ask_if_it_can(where.ipam, _sparing(request, conf, where), programs)
    except (CniError, OSError) as e:
        failures.append(e)
    for seen, version in there:
        if valid is not None and seen.key in valid:
            continue
        try:
            with journal.lock(where.state_dir, where.network, seen.key) as entry:
                request.refuse_if_abandoned()
                if entry.version() != version:
                    continue
                record = entry.load()
                if record is None:
                    entry.forget()
                elif valid is not None or undo.is_dead(record):
                    undo.attachment(entry, record, request, programs, log)
                    log.append(f"gc: removed {record.whose}")
        except (CniError, OSError) as e:
            failures.append(e)
    undo.raise_all(failures)


def _sparing(request: Request, conf: Config, where: Location) -> Request:
    """GC's request, with every attachment that has a record listed as valid."""

    def attached() -> list[Key]:
        return journal.keys(where.state_dir, where.network)

    keys = sorted(attached(), key=str)
    listed = [{"containerID": key.container_id, "ifname": key.ifname} for key in keys]
    lists = {
        name: conf[name] + [one for one in listed if one not in conf[name]]
        for name in spec.VALID_ATTACHMENTS
        if conf.get(name) is not None
    }
    return replace(request, stdin=json.dumps({**conf, **lists}).encode(), attached=attached)


def a_few(where: Location, request: Request, log: list[str], programs: Programs) -> None:
    """Now and then undo one attachment of this network whose pod is provably dead.  Never in the way of the ADD that
    just succeeded: it waits for nobody, asks no other program, and leaves devices to who needs them."""
    if os.urandom(1)[0] % EVERY:
        return
    with suppress(CniError, OSError):
        keys = journal.keys(where.state_dir, where.network)
        first = int.from_bytes(os.urandom(4)) % max(len(keys), 1)
        for key in (keys[first:] + keys[:first])[:LOOKS]:
            record = journal.peek(where.state_dir, where.network, key)
            if record and _is_cheap(record, programs) and undo.is_dead(record):
                if _reclaimed(where.state_dir, record, request, programs, log, timeout=0):
                    log.append(f"removed {record.whose}, whose pod is gone")
                return


def sweep(
    state_dir: Path, programs: Programs, *, dry_run: bool = False
) -> Iterator[tuple[Record, CniError | OSError | None]]:
    """Undo every attachment there whose pod is provably dead; each with what went wrong, if something did.  No runtime
    asks for it, so other IPAM plugins are looked for in CNI_PATH, if that is set, else in PLUGINS."""
    environ = {"CNI_PATH": os.environ.get("CNI_PATH", PLUGINS), "PATH": os.environ.get("PATH", "")}
    request = Request(environ, b"{}")
    for record in journal.records(state_dir):
        if record.kind != LOST and undo.may_be_dead(record) and undo.is_dead(record):
            try:
                if dry_run or _reclaimed(state_dir, record, request, programs, [], timeout=1):
                    yield record, None
            except (CniError, OSError) as e:
                yield record, e


def _reclaimed(
    state_dir: Path, seen: Record, request: Request, programs: Programs, log: list[str], timeout: float
) -> bool:
    """Undo the attachment if it still is as it was seen; whether it was.  Raises CniError, OSError."""
    with journal.lock(state_dir, seen.network, seen.key, timeout) as entry:
        record = entry.load()
        if record != seen:
            return False
        asked = request.but(CNI_COMMAND="GC", CNI_NETNS="")
        undo.attachment(entry, record, asked, programs, log, counts=False)
        return True


def _is_cheap(record: Record, programs: Programs) -> bool:
    """Whether it may be dead, and to undo it would take no other program and no device."""
    if record.kind == LOST:
        return False
    return undo.may_be_dead(record) and not record.device and location(record.config).ipam in ("", *programs)
