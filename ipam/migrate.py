"""Read the state of other IPAMs as leases, and write leases as host-local's state.

Decides nothing, and writes only host-local's files.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

from base.protocol import spec
from base.protocol.errors import BadEnvironment, InvalidConfig, IoFailure, TryAgain
from base.protocol.result import Address
from base.protocol.spec import Json, Key
from base.state import durable
from base.state.locks import take
from ipam import sandboxes
from ipam.stores import LOCK_TIMEOUT, Owner
from ipam.stores.holdings import Lease

# host-local: plugins/ipam/host-local/backend/disk/backend.go
_LAST = "last_reserved_ip."
_LINE = "\r\n"
# A folder in host-local's directory of a network, for the files of imported leases.
ASIDE = "host-local"
NV_IPAM = "/var/lib/cni/nv-ipam/store"
_IPPOOLS = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools"
DUMP = "kubectl get ippools.whereabouts.cni.cncf.io -A -o json"

Interface = IPv4Interface | IPv6Interface
# One address of another IPAM's: its title in messages, its attachment, the pod if known, the address.
Entry = tuple[str, Key, str, Interface]


@contextmanager
def lock_host_local(directory: Path) -> Iterator[None]:
    """Hold host-local's lock of a network's directory."""
    try:
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as e:
        raise IoFailure(f"{directory}: {e.strerror}; give the directory of one network of host-local's") from e
    try:
        take(fd, f"{directory}/lock", LOCK_TIMEOUT)
        yield
    finally:
        os.close(fd)


def from_host_local(directory: Path, ifname: str) -> list[Lease]:
    """The leases in a network's directory: a file per address, with container id and interface.  Very old files have no
    interface; ``ifname`` replaces it.

    Raises IoFailure, InvalidConfig.
    """
    return _leases(_of_host_local(path, ifname) for path in _addresses(directory))


def _of_host_local(path: Path, ifname: str) -> Entry:
    try:
        container_id, _, named = path.read_text().strip().partition("\n")
    except (OSError, ValueError) as e:
        raise IoFailure(f"reading {path}: {e}") from e
    return f"{path}", Key(container_id.strip(), named.strip() or ifname), "", ip_interface(path.name)


def set_aside(directory: Path, taken: Sequence[Lease], ifname: str) -> None:
    """Move the files of imported leases to a folder that host-local does not read.  Raises IoFailure, InvalidConfig;
    TryAgain if host-local has allocated or released an address meanwhile."""
    with lock_host_local(directory):
        now = {one.owner.key: one.ips for one in from_host_local(directory, ifname)}
        if now != {one.owner.key: one.ips for one in taken}:
            raise TryAgain(f"host-local has changed the addresses of {directory} meanwhile; repeat the import")
        try:
            for path in [*_addresses(directory)]:
                path.rename(durable.directory(directory / ASIDE) / path.name)
            durable.sync_directory(directory)
        except OSError as e:
            raise IoFailure(f"moving {e.filename or directory}: {e.strerror}; repeat the import") from e


def whereabouts_pools(kubeconfig: Path) -> Json:
    """The IPPools of all namespaces in the kubeconfig's cluster, in the form of kubectl's dump.

    Raises InvalidConfig, BackendRefused, Unreachable.
    """
    from base.kubernetes import client  # noqa: PLC0415  # it loads TLS, which few need

    with closing(client.of_operator(kubeconfig)) as server:
        return {"items": list(server.listed(_IPPOOLS, "the cluster has no IPPools of whereabouts'"))}


def from_whereabouts(
    document: Any, file: Path, pods: frozenset[str] | None, ifname: str, wanted: Sequence[str]
) -> list[Lease]:
    """The leases in the output of ``kubectl get ippools -A -o json``: of all pools or the ``wanted`` ones, and of all
    pods or these.

    A key of ``allocations`` is an offset to the address in ``range`` (whereabouts: ippool_types.go, and
    toIPReservationList in pkg/storage/kubernetes/ipam.go).  Versions before June 2024 do not record the interface;
    ``ifname`` replaces it.

    Raises InvalidConfig, which names the document's ``file``.
    """
    try:
        named = [(str(pool.get("metadata", {}).get("name", "")), pool) for pool in document.get("items", [document])]
        if wanted:
            _refuse_missing(file, wanted, [name for name, _ in named])
        used = {name: pool["spec"]["range"] for name, pool in named if pool["spec"].get("allocations")}
        _refuse_several(file, wanted, {name: ip_interface(subnet).version for name, subnet in used.items()})
        pools = [pool for name, pool in named if not wanted or name in wanted]
        return _leases(_of_whereabouts(pools, pods, ifname))
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise InvalidConfig(f"{file} is not a dump of IPPools ({type(e).__name__}: {e}); make it with: {DUMP}") from e


def _of_whereabouts(pools: Any, pods: frozenset[str] | None, ifname: str) -> Iterator[Entry]:
    for pool in pools:
        subnet, allocations = ip_interface(pool["spec"]["range"]), pool["spec"].get("allocations") or {}
        for offset, one in sorted(allocations.items(), key=lambda item: int(item[0])):
            pod, key = str(one["podref"]), Key(str(one["id"]), str(one.get("ifname") or ifname))
            if pods is None or pod in pods:
                address = ip_interface(f"{subnet.ip + int(offset)}/{subnet.network.prefixlen}")
                yield f"{address.ip} of {pod}", key, pod, address


def from_nv_ipam(document: Any, file: Path, wanted: Sequence[str]) -> list[Lease]:
    """The leases in the store of nv-ipam's node daemon, of all pools or the ``wanted`` ones.

    The store is /var/lib/cni/nv-ipam/store by default.  An entry has the address.  Its subnet is in the pool's
    configuration, which the entry holds as JSON in a string.  Sources in nvidia-k8s-ipam:
    pkg/ipam-node/types/types.go, pkg/pool/manager.go.  Raises InvalidConfig, which names the document's ``file``.
    """
    try:
        pools = document["pools"]
        _refuse_missing(file, wanted, list(pools))
        entries = {name: [*(pools[name].get("entries") or {}).values()] for name in wanted or pools}
        found = {name: [*map(_of_nv_ipam, of)] for name, of in entries.items() if of}
        _refuse_several(file, wanted, {name: of[0][3].version for name, of in found.items()})
        return _leases(one for of in found.values() for one in of)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        why = f"{type(e).__name__}: {e}"
        raise InvalidConfig(f"{file} is not a store of nv-ipam's node daemon ({why}); give {NV_IPAM}") from e


def _of_nv_ipam(entry: Any) -> Entry:
    about = entry["metadata"]
    subnet = ip_network(json.loads(about["pool_config_snapshot"])["subnet"])
    address = ip_interface(f"{entry['ip_address']}/{subnet.prefixlen}")
    pod = "/".join(filter(None, (about.get("pod_namespace"), about.get("pod_name"))))
    return f"{address.ip} of {pod}", Key(str(entry["container_id"]), str(entry["interface_name"])), pod, address


def to_host_local(directory: Path, leases: Sequence[Lease], last: Sequence[Address], *, dry_run: bool) -> list[str]:
    """Write the files; return a description of each collision, and then nothing is written.  Raises IoFailure."""
    files = {directory / str(ip): _content(lease) for lease in leases for ip in lease.ips}
    there = {path: path.read_bytes() for path in files if path.exists()} if directory.exists() else {}
    foreign = [path for path in _addresses(directory) if path not in files] if directory.exists() else []
    collisions = [f"{path.name} is {_text(text)} there" for path, text in there.items() if text != files[path]]
    collisions += [f"{path.name} is {_text(path.read_bytes())} there, and free here" for path in foreign]
    if collisions or dry_run:
        return collisions
    durable.directory(directory)
    with lock_host_local(directory):
        made = list[Path]()
        try:
            for path in sorted(files.keys() - there.keys()):
                with path.open("xb") as f:
                    made.append(path)
                    f.write(files[path])
            for i, address in enumerate(last):
                (directory / f"{_LAST}{i}").write_text(str(address))
            durable.sync_directory(directory)
        except OSError as e:
            for path in made:
                with suppress(OSError):
                    path.unlink()
            raise IoFailure(f"writing {e.filename or directory}: {e.strerror}; nothing was exported") from e
    return []


def _refuse_missing(file: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    if missing := sorted(set(wanted) - set(there)):
        raise InvalidConfig(f"{file} has no pool {', '.join(missing)}; there is {', '.join(there) or 'none'}")


def _refuse_several(file: Path, wanted: Sequence[str], there: Mapping[str, int]) -> None:
    """Refuse an import of all pools where several have addresses of one family: some are another network's.

    ``there`` maps each pool to 4 or 6.
    """
    if not wanted and len(there) > len(set(there.values())):
        raise InvalidConfig(
            f"{file} has {len(there)} pools with addresses, some of other networks: {', '.join(sorted(there))}; "
            "give --pool for each pool of this network"
        )


def _addresses(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        with suppress(ValueError):
            ip_address(path.name)
            yield path


def _content(lease: Lease) -> bytes:
    return f"{lease.owner.key.container_id}{_LINE}{lease.owner.key.ifname}".encode()


def _text(content: bytes) -> str:
    return content.decode(errors="replace").replace(_LINE, ":")


def _bad(key: Key) -> str:
    """Why no CNI request can have this key; empty if one can."""
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": key.container_id, "CNI_IFNAME": key.ifname}
    try:
        spec.check_environment(spec.Request(environ))
    except BadEnvironment as e:
        return e.msg
    return ""


def _leases(entries: Iterable[Entry]) -> list[Lease]:
    given, wrong = dict[Key, tuple[str, list[Interface]]](), list[str]()
    for title, key, pod, address in entries:
        if why := _bad(key):
            wrong.append(f"{title}: {why}")
        given.setdefault(key, (pod, []))[1].append(address)
    if wrong:
        raise InvalidConfig(
            f"{len(wrong)} entries name no attachment; remove them, or give --ifname where that is missing: "
            + "; ".join(wrong)
        )
    # This boot: these files have no boot id, and a living pod must not count as dead.
    now, boot = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), durable.boot_id()
    boxes = sandboxes.of_containers({key.container_id for key in given})
    return [
        Lease(Owner(key, pod, sandbox=boxes.get(key.container_id)), tuple(addresses), boot, now)
        for key, (pod, addresses) in given.items()
    ]
