"""Facts about the state on disk: attachments and leases, read without locks and without changes."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Interface, ip_interface
from pathlib import Path

from base.kernel import sysfs
from base.protocol import arguments
from base.protocol.errors import BadEnvironment, CniError
from base.protocol.location import CLAIMS_DIR, ipam_dir, state_dir
from base.protocol.spec import Json
from base.state import claims, journal, numbers, trust
from base.state.claims import Claim
from base.state.record import LOST, Record
from cni.attachments import Found, are_dead, of_our_shape
from ctl.doctor import cluster
from ctl.doctor.model import Attachment, Pool, PreparedClaim, State
from ctl.doctor.reading import BOOT, Reader
from ipam import inventory, sandboxes
from ipam.stores.holdings import Contents, Lease

Listing = Iterable[tuple[Path, Record | None]]


def state_of(read: Reader) -> State:
    """The state in the default directories, and in those that attachments name."""
    ours = Path(read.at(f"{state_dir()}"))
    found = _records(read, ours, journal.files)
    stranded = [one for _, one in _records(read, ours, journal.refused)]
    attached = [one for _, one in found if one]
    data_dirs = [folder for folder in _data_dirs(read, ours, attached) if read.stat(f"{folder}")]
    pools, leases, unproven = list[Pool](), list[tuple[str, str]](), list[tuple[str, tuple[str, ...]]]()
    for data_dir in data_dirs:
        try:
            for network in inventory.networks(data_dir, sandboxes.gone):
                pools += list(_pools(network.place, inventory.pools(network)))
                leases += [(network.place, why) for why in _faults(network)]
                if imported := tuple(_unproven(network)):
                    unproven.append((network.place, imported))
        except (CniError, OSError) as e:
            read.unread[f"{data_dir}"] = f"{e}"
    folders = [f"{folder}" for folder in (ours, *data_dirs) if read.stat(f"{folder}")]
    prepared = list(claims.listed(folder)) if read.names(folder := read.at(CLAIMS_DIR)) else []
    have = {one.claim for one in attached}
    return State(
        tuple(folders),
        tuple(attached),
        tuple(path for path, one in found if not one),
        tuple(filter(None, stranded)),
        tuple(pools),
        tuple(leases),
        tuple(_unsafe(folders)),
        tuple(cluster.blocks(read, data_dirs)),
        tuple(_prepared(read, file, claim, have) for file, claim in prepared if claim),
        tuple(file for file, claim in prepared if not claim),
        tuple(unproven),
    )


def _prepared(read: Reader, file: str, claim: Claim, attached: Collection[str]) -> PreparedClaim:
    waiting = (
        ()
        if claim.ended
        else (
            (one.id, one.attach)
            for number, one in enumerate(claim.devices)
            if one.is_awaited and f"{claim.uid}/{number}" not in attached
        )
    )
    pods = read.at(f"{claim.kubelet}/pods")
    is_gone = bool(claim.pods and read.names(pods)) and not any(read.stat(f"{pods}/{one}") for one in claim.pods)
    found, boot = read.stat(file), read.line(read.at(BOOT))
    is_of_another, began = boot not in ("", claim.boot), _began(read)
    is_of_this_run = bool(is_of_another and found and began and found.st_mtime > began)
    return PreparedClaim(
        file,
        claim.title,
        age=time.time() - found.st_mtime if found else 0.0,
        is_stale=is_of_another,
        is_gone=is_gone and not claim.ended,
        waiting=tuple(waiting),
        is_given_up=claim.ended,
        boot=claim.boot if is_of_this_run else "",
    )


def _began(read: Reader) -> float:
    """When the machine started, in seconds since 1970; 0 if unknown.  LXC shows its container's start."""
    lines = read.line(read.at("/proc/stat")).splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _data_dirs(read: Reader, state_dir: Path, attached: Sequence[Attachment]) -> list[Path]:
    """The directories of leases: the default, the state directory's, and those that attachments name."""
    sections = [one.conf.get("ipam") for one in attached]
    named = [section.get("dataDir") for section in sections if isinstance(section, dict)]
    ours = {Path(read.at(ipam_dir())), state_dir / "ipam"}
    return sorted(ours | {Path(read.at(path)) for path in named if isinstance(path, str) and path.startswith("/")})


def _records(read: Reader, state_dir: Path, listed: Callable[[Path], Listing]) -> list[tuple[str, Attachment | None]]:
    """Each record's path, and the record; None for an unreadable one."""
    try:
        is_refused = listed is journal.refused
        found = [Found(state_dir, path, of_our_shape(record), is_refused) for path, record in listed(state_dir)]
        dead = are_dead(found)
        return [
            (f"{one.path}", _described(read, one, is_dead=is_dead)) for one, is_dead in zip(found, dead, strict=True)
        ]
    except OSError as e:
        read.unread[f"{e.filename or state_dir}"] = e.strerror or f"{e}"
        return []


def _described(read: Reader, one: Found, *, is_dead: bool) -> Attachment | None:
    if one.record is None:
        return None
    record, stands = one.record, one.state_if(is_dead=is_dead)
    subnets = {
        str(found.network)
        for ip in record.result.get("ips", [])
        if isinstance(found := ip_interface(ip["address"]), IPv4Interface)
    }
    return Attachment(
        f"{one.path}",
        record.title,
        netns=record.netns,
        alive=not is_dead,
        state=stands.word,
        why=stands.why,
        is_lost=record.kind == LOST,
        age=(datetime.now(UTC) - datetime.fromisoformat(record.time)).total_seconds(),
        device=str(record.link.get("device", "")),
        trouble=record.trouble,
        lost_nodes=_lost_nodes(read, record),
        pod=record.pod,
        conf=dict(record.config),
        subnets=tuple(sorted(subnets)),
        has_rules=bool(record.rules),
        claim=record.claim if record.complete else "",
    )


def _lost_nodes(read: Reader, record: Record) -> tuple[str, ...]:
    device, pod = str(record.link.get("device", "")), ""
    with suppress(BadEnvironment):
        pod = arguments.cni_args(record.args).get("K8S_POD_UID", "")
    promised = numbers.promised(device, pod, read.at(f"{state_dir()}")) if device and pod else ()
    now = sysfs.rdma_nodes(device, Path(read.at("/sys"))) if promised else ()
    return tuple(node for node in promised if node not in now)


def _pools(place: str, pools: Sequence[Json]) -> Iterator[Pool]:
    for pool in pools:
        if pool["size"]:
            taken = sum(pool[word] for word in inventory.STATES)
            yield Pool(place, tuple(pool["ranges"]), pool["size"], taken, pool["dead"])


def _unproven(network: Contents) -> Iterator[str]:
    """The addresses that were imported, and whose containers had no process here."""
    for one in network.listed:
        lease = one.holding
        if isinstance(lease, Lease) and not (one.is_over or lease.owner.sandbox or lease.owner.netns):
            yield from (f"{ip} of {lease.owner.key}" for ip in lease.ips)


def _faults(network: Contents) -> Iterator[str]:
    if network.problem:
        yield network.problem
    if network.unreadable:
        yield f"lines {', '.join(map(str, network.unreadable))} cannot be read"
    if network.quarantined:
        yield f"quarantine has {', '.join(network.quarantined)}"


def _unsafe(folders: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for folder in folders:
        with suppress(OSError):
            if weak := trust.weak_spot(folder):
                yield (folder, *weak)
