"""State on disk: attachments and leases, read without a lock and without changing anything."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Interface, ip_interface
from pathlib import Path

from cni import undo
from cni.protocol.errors import CniError
from cni.protocol.location import IPAM_DIR, STATE_DIR
from cni.protocol.spec import Json
from cni.state import journal, places, trust
from cni.state.record import Record
from ctl.doctor.model import Attachment, Kept, Pool
from ctl.doctor.reading import Reader
from ipam import inventory, sandboxes
from ipam.stores.contents import Contents


def state_dirs(read: Reader) -> list[Path]:
    """The default state directory, then those that attachments noted (cni/state/places.py)."""
    notes, found = read.at(places.ELSEWHERE), set[Path]()
    for name in read.names(notes):
        with suppress(OSError):  # its attachment has ended meanwhile
            found.add(Path(read.at(os.readlink(f"{notes}/{name}"))))
    return [Path(read.at(STATE_DIR)), *sorted(found)]


def data_dirs(read: Reader, state_dirs: Sequence[Path]) -> list[Path]:
    """Where networks have their leases: the default, those of state directories, and what attachments name."""
    named = {one["dataDir"] for record in _records(read, state_dirs) for one in [record.config.get("ipam")]
             if isinstance(one, dict) and isinstance(one.get("dataDir"), str)}  # fmt: skip
    ours = {Path(read.at(IPAM_DIR)), *(folder / "ipam" for folder in state_dirs)}
    return sorted(ours | {Path(read.at(path)) for path in named if path.startswith("/")})


def _records(read: Reader, state_dirs: Sequence[Path]) -> Iterator[Record]:
    for state_dir in state_dirs:
        try:
            yield from journal.records(state_dir)
        except OSError as e:
            read.unread[f"{e.filename or state_dir}"] = e.strerror or f"{e}"


def kept(read: Reader, state_dirs: Sequence[Path], data_dirs: Sequence[Path]) -> Kept:
    """What is in these directories; those that are not there are left out."""
    attached, unreadable = list[Attachment](), list[str]()
    stranded = list[Attachment]()
    for state_dir in state_dirs:
        try:
            for path, record in sorted(journal.files(state_dir)):
                attached += [_attachment(path, record)] if record else []
                unreadable += [] if record else [f"{path}"]
            stranded += [_attachment(path, record) for path, record in sorted(journal.refused(state_dir)) if record]
        except OSError as e:
            read.unread[f"{e.filename or state_dir}"] = e.strerror or f"{e}"
    pools, leases = list[Pool](), list[tuple[str, str]]()
    for data_dir in filter(_is_there, data_dirs):
        try:
            for network in inventory.networks(data_dir, sandboxes.gone):
                pools += list(_pools(network.place, inventory.pools(network)))
                leases += [(network.place, why) for why in _faults(network)]
        except (CniError, OSError) as e:
            read.unread[f"{data_dir}"] = f"{e}"
    unsafe = tuple(_unsafe([*state_dirs, *data_dirs]))
    return Kept(tuple(attached), tuple(unreadable), tuple(stranded), tuple(pools), tuple(leases), unsafe)


def _attachment(path: Path, record: Record) -> Attachment:
    subnets = {
        str(found.network)
        for one in record.result.get("ips", [])
        if isinstance(found := ip_interface(one["address"]), IPv4Interface)
    }
    return Attachment(
        f"{path}",
        record.whose,
        netns=record.netns,
        alive=not undo.is_dead(record),
        complete=record.complete,
        age=_age(record.time),
        trouble=record.trouble,
        pod=record.pod,
        conf=record.config,
        subnets=tuple(sorted(subnets)),
        has_rules=bool(record.rules),
    )


def _age(time: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()


def _pools(place: str, pools: Sequence[Json]) -> Iterator[Pool]:
    for pool in pools:
        if pool["size"]:
            taken = sum(pool[word] for word in inventory.STATES)
            yield Pool(place, tuple(pool["ranges"]), pool["size"], taken, pool["dead"])


def _faults(network: Contents) -> Iterator[str]:
    if network.problem:
        yield network.problem
    if network.unreadable:
        yield f"lines {', '.join(map(str, network.unreadable))} cannot be read"
    if network.quarantined:
        yield f"quarantine has {', '.join(network.quarantined)}"


def _unsafe(folders: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    for folder in filter(_is_there, folders):
        try:
            weak = trust.weak_spot(f"{folder}")
        except OSError:
            continue
        if weak:
            yield (f"{folder}", *weak)


def _is_there(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:
        return False
