"""A ResourceClaim as the API server has it, and what hpn keeps of it: the decision for Prepare.

It changes nothing.  ``decide`` reads the claim, the node's files and RDMA mode, in a child process.
``refuse_same_names`` compares the outcome with the prepared claims, right before it is written.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from base.kernel import budget, rdma_netlink
from base.protocol import spec, written
from base.protocol.errors import CniError, InvalidConfig
from base.protocol.memlock import Limit
from base.protocol.result import Network
from base.protocol.spec import Json
from base.state import durable, trust
from base.state.claims import Claim, ClaimedDevice
from node.dra import DRIVER
from node.dra.claims import parameters
from node.dra.claims.parameters import CHAIN, MULTUS, NONE, Refused
from node.dra.slices.names import label

# Configurations of this node that a DeviceClass names by ``network``.
FOLDER: Final = "/etc/cni/hpn.d"
_ENDINGS: Final = (".conf", ".conflist", ".json")
_FROM_POD: Final = "resource.kubernetes.io/pod-claim-name"
# The scheduler's annotation of a claim for a pod's extended resources (k8s.io/api/resource/v1).
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
_ODD: Final = "is not as the API server makes it"
_MOST: Final = 32  # devices of a claim (kubernetes: AllocationResultsMaxSize)
_ONE: Final = ("interface", "ips", "mac")  # keys that only one device of a request can have
_OF_SEVERAL: Final = ("rails", "claims")  # keys of networks that attach several interfaces


@dataclass(frozen=True)
class Asked:
    """The claim that kubelet names."""

    uid: str
    namespace: str
    name: str

    @property
    def title(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Found:
    """A device of this node's slices.

    - ``id``, ``kind``, ``resource``: those of ClaimedDevice.
    - ``attributes``: the device's in the slice.
    - ``problem``: why no pod may have it now, with the remedy; empty if one may.
    - ``nodes``, ``info``, ``memlock``: those of ClaimedDevice.
    """

    id: str
    kind: str
    resource: str
    attributes: Json
    problem: str = ""
    nodes: tuple[str, ...] = ()
    info: Json = field(default_factory=dict)
    memlock: Limit = ""


_KNOWN: Final = 4096  # accepted configurations that a process remembers
# The RDMA mode of each accepted CNI configuration, by its digest.  A child process begins with its parent's.
_accepted = dict[bytes, str]()
# The device of a pool by its name; None if this node has no such device.
Find = Callable[[str, str], Found | None]


def accepted(known: Collection[bytes] = ()) -> Mapping[bytes, str]:
    """The accepted configurations but the ``known``, for ``remember`` in the parent of a child process."""
    return {digest: mode for digest, mode in _accepted.items() if digest not in known}


def remember(accepted: Mapping[bytes, str]) -> None:
    """Note the configurations that a child process accepted."""
    if len(_accepted) + len(accepted) > _KNOWN:  # most nodes have few; a node with more begins anew
        _accepted.clear()
    _accepted.update(accepted)


def devices(document: Any) -> Collection[tuple[str, str]]:
    """The pool and the name of each device that ``decide`` needs of a claim; none of an odd one."""
    with suppress(KeyError, TypeError, AttributeError):
        results = document["status"]["allocation"]["devices"]["results"]
        own = [(one["pool"], one["device"]) for one in results if one.get("driver") == DRIVER]
        return {(pool, name) for pool, name in own[:_MOST] if isinstance(pool, str) and isinstance(name, str)}
    return ()


def decide(asked: Asked, document: Json | None, find: Find, prepared: Claim | None = None) -> Claim:
    """The claim as it has to be kept.  Raises Refused.

    ``prepared`` is the claim as this boot has it already.  With the same allocation it is not refused again: kubelet
    asks again after its restart, and the devices may be in no slice any more.
    """
    about, allocation = _refuse_another(asked, document)
    listed = allocation.get("devices") or {}
    results = [one for one in listed.get("results") or () if one.get("driver") == DRIVER]
    if not results:
        raise Refused(f"{asked.title} has no device of {DRIVER}; its DeviceClass selects another driver's devices")
    _refuse_odd(asked, results)
    configs = listed.get("config") or []
    of_request = Counter(one["request"] for one in results)
    annotations = about.get("annotations") or {}
    is_extended = annotations.get(_EXTENDED) == "true"
    try:
        keys = [parameters.merged(configs, one["request"], asked.namespace) for one in results]
        devices = tuple(
            # By the device plugin such a pod needs no interface, or gets one that does not name its device.
            replace(_device(one, find, of_class, of_request), waits="attach" in of_class or not is_extended)
            for one, of_class in zip(results, keys, strict=True)
        )
    except Refused:
        if not prepared or not _is_allocated(results, prepared.devices):
            raise
        devices = prepared.devices
    reserved = (document or {}).get("status", {}).get("reservedFor") or ()
    if not reserved:
        raise Refused(f"{asked.title} is reserved for no pod; the scheduler reserves it again, or delete the pod")
    pods = [one["uid"] for one in reserved if one.get("resource") == "pods" and not one.get("apiGroup")]
    for uid in pods:
        if not isinstance(uid, str):
            raise Refused(f"{asked.title} {_ODD}: UID {json.dumps(uid)} of a pod")
    pod_claim = str(annotations.get(_FROM_POD, ""))
    return Claim(
        asked.uid,
        asked.namespace,
        asked.name,
        tuple(pods),
        devices,
        # Anyone who may make a claim writes its annotations, and the containers' path has this name.
        pod_claim=pod_claim if label(pod_claim) == pod_claim else "",
    )


def refuse_same_names(claim: Claim, others: Collection[Claim]) -> None:
    """Raise Refused if another prepared claim has an interface's name in the same pod."""
    beside = [other for other in others if {*other.pods} & {*claim.pods}]
    names = {one.interface: other.title for other in beside for one in other.devices if one.interface}
    for device in claim.devices:
        if device.interface in names:
            raise Refused(
                f"interface {json.dumps(device.interface)}: {names[device.interface]} gives the pod an interface of "
                "that name; choose another"
            )
        if device.interface:
            names[device.interface] = f"another request of {claim.title}"


def _refuse_another(asked: Asked, document: Json | None) -> tuple[Json, Json]:
    """The claim's metadata and allocation.  Raises Refused if it is not the claim that kubelet means."""
    if document is None:
        raise Refused(f"{asked.title} does not exist; a new pod gets a new claim")
    about: Json = document["metadata"]
    if about.get("uid") != asked.uid:
        raise Refused(
            f"{asked.title} has UID {about.get('uid')} now, and the pod was scheduled with {asked.uid}; delete the pod"
        )
    allocation = (document.get("status") or {}).get("allocation")
    if not allocation:
        raise Refused(f"{asked.title} is not allocated; the scheduler allocates it again, or delete the pod")
    return about, allocation


def _refuse_odd(asked: Asked, results: Sequence[Json]) -> None:
    """Refuse what no API server stores.  Kept on disk, it would fail the Prepare of other claims.  A request's name
    is a part of a path."""
    odd = f"{len(results)} devices" if len(results) > _MOST else ""
    for one in results:
        texts = [key for key in ("request", "pool", "device") if not isinstance(one[key], str)]
        if not texts and not _is_request(one["request"]):
            texts = ["request"]
        odd = odd or next((f"{key} {json.dumps(one[key])}" for key in texts), "")
    if odd:
        raise Refused(f"{asked.title} {_ODD}: {odd}")


def _is_request(name: str) -> bool:
    """Whether it is a request's name, or that with the name of one of its alternatives."""
    parts = name.split("/")
    return len(parts) < 3 and all(label(one) == one for one in parts)


def _is_allocated(results: Sequence[Json], devices: Sequence[ClaimedDevice]) -> bool:
    """Whether these are the devices of the allocation's results."""
    return [_allocated(one) for one in results] == [
        (one.request, one.pool, one.device, one.share, one.admin) for one in devices
    ]


def _allocated(result: Json) -> tuple[str, str, str, str, bool]:
    share, admin = str(result.get("shareID") or ""), bool(result.get("adminAccess"))
    return result["request"], result["pool"], result["device"], share, admin


def _device(result: Json, find: Find, keys: Json, of_request: Mapping[str, int]) -> ClaimedDevice:
    """One result of the allocation.  Raises Refused."""
    request, pool, name, share, admin = _allocated(result)
    found = find(pool, name)
    if not found:
        raise Refused(
            f"device {pool}/{name} is none of this node's devices now; kubelet tries again; if that stays "
            "after a boot, delete the pod, and its successor gets another"
        )
    if found.problem and not admin:  # an administrator also looks at a device that is ill
        raise Refused(f"device {found.id} ({pool}/{name}): {found.problem}")
    attach = keys.get("attach", MULTUS)
    if admin:
        attach = NONE  # it may be another pod's
    if found.kind == "accelerator":
        attach = NONE  # it has no interface
    for key in _ONE:
        if key in keys and of_request[request] > 1:
            raise Refused(
                f"{key} {json.dumps(keys[key])} is for one device, and request {request} has {of_request[request]}; "
                "make a request for each"
            )
    if attach != CHAIN and (of_chain := [key for key in keys if key in parameters.OF_NETWORK]):
        remedy = "set it in the NetworkAttachmentDefinition" if attach == MULTUS else f"remove {of_chain[0]}"
        raise Refused(f"{of_chain[0]} {json.dumps(keys[of_chain[0]])} needs attach {CHAIN}, not {attach}; {remedy}")
    if attach == NONE and (of_interface := [key for key in _ONE if key in keys]):
        raise Refused(f"{of_interface[0]} needs an interface, and attach {attach} makes none; remove it")
    return ClaimedDevice(
        request=request,
        pool=pool,
        device=name,
        share=share,
        id=found.id,
        kind=found.kind,
        resource=found.resource,
        attach=attach,
        interface=keys.get("interface", ""),
        config=_config(keys, found) if attach == CHAIN else {},
        ips=tuple(keys.get("ips", ())),
        mac=keys.get("mac", ""),
        admin=admin,
        attributes=found.attributes,
        nodes=found.nodes,
        info=found.info,
        memlock=keys.get("memlock", found.memlock),
    )


def _config(keys: Json, found: Found) -> Json:
    """The CNI configuration of an interface of the chain, without its device.  Raises Refused."""
    if "network" in keys and "config" in keys:
        raise Refused(f"network {json.dumps(keys['network'])} and config are both given; remove one")
    base = _single(keys["config"], "config") if "config" in keys else {}
    if "network" in keys:
        base = _of_node(keys["network"])
    if of_several := next((key for key in _OF_SEVERAL if key in base), ""):
        raise Refused(
            f"{of_several} in the network of a DeviceClass: a claim's device gets one interface; remove {of_several}, "
            "and make a request for each rail"
        )
    own = {key: value for key, value in keys.items() if key in parameters.OF_NETWORK}
    for key in ("network", "config"):
        own.pop(key, None)
    given = {"sticky": own.pop("sticky")} if "sticky" in own else {}
    name = keys.get("network") or found.resource.replace("/", "-")
    config = {"cniVersion": spec.WIDELY_TAKEN, "name": name, **_whole_nic(found, base), **base, **own, "type": "hpn"}
    if given:
        config["runtimeConfig"] = given
    for text in keys.get("ips", ()):
        _refuse_outside(text, config)
    # A shared device's master is its interface, which ADD finds.
    device = {"master": {"master": found.id}, "shared": {}}.get(found.kind, {"deviceID": found.id})
    mac = {"runtimeConfig": {**given, "mac": keys["mac"]}} if "mac" in keys else {}
    _refuse_mode(_mode({**config, **device, **mac}))
    return config


def _whole_nic(found: Found, config: Json) -> Json:
    """The keys that attach a PF by its deviceID, which is that of a VF for kind sriov, the default."""
    is_whole = found.kind == "pf" and config.get("kind", "sriov") == "sriov"
    return {"kind": "sriov", "pfOnly": True} if is_whole else {}


def _mode(config: Json) -> str:
    """The RDMA mode of a CNI configuration.  Raises Refused if ADD would refuse the configuration."""
    digest = hashlib.sha256(durable.canonical(config).encode()).digest()
    if digest not in _accepted:
        from cni import config as cni_config  # noqa: PLC0415  # for the child process: pydantic takes 50 ms

        try:
            _accepted[digest] = cni_config.load(config, "").attach.rdma.mode
        except CniError as e:
            raise Refused("; ".join(filter(None, (e.msg, e.details)))) from e
    return _accepted[digest]


def _of_node(name: str) -> Json:
    """A configuration of this node by its name.  Raises Refused."""
    try:
        spec.network_of({"name": name})
    except InvalidConfig as e:
        raise Refused(f"network {json.dumps(name)} names a file in {FOLDER}, and {e.msg}") from e
    for ending in _ENDINGS:
        path = f"{FOLDER}/{name}{ending}"
        try:
            text = trust.read_trusted(path)
            if text is not None:
                return _single(json.loads(text), path)
        except InvalidConfig as e:
            raise Refused(f"network {name}: {e.msg}") from e
        except (OSError, ValueError) as e:
            raise Refused(
                f"network {name}: {path} cannot be read: {e}; correct it on node {os.uname().nodename}"
            ) from e
    raise Refused(
        f"network {json.dumps(name)}: node {os.uname().nodename} has no {FOLDER}/{name}.conflist; put it there, or "
        "name another"
    )


def _single(config: Any, path: str) -> Json:
    """The one plugin's configuration of a conflist, or the configuration itself.  Raises Refused."""
    if not isinstance(config, dict):
        raise Refused(f"{path} is not an object")
    if "plugins" not in config:
        return config
    plugins = config["plugins"]
    if not isinstance(plugins, list) or len(plugins) != 1 or not isinstance(plugins[0], dict):
        raise Refused(f"{path} has not one plugin; a claim is attached by hpn alone, so leave the others out")
    found = {key: config[key] for key in ("cniVersion", "name") if key in config}
    return {**found, **plugins[0]}


def _refuse_outside(text: str, config: Json) -> None:
    """Refuse an address outside all subnets of the configuration's ranges, as far as it names them."""
    ipam = config.get("ipam")
    subnets, address = list(_subnets(ipam)) if isinstance(ipam, dict) else [], written.host(text)
    if not isinstance(ipam, dict):
        raise Refused(f"ips {json.dumps(text)} needs ipam in the DeviceClass, and it has none")
    if subnets and not any(address in one for one in subnets):
        raise Refused(
            f"ips {json.dumps(text)} is in none of the ranges {', '.join(map(str, subnets))}; choose one in them"
        )


def _subnets(ipam: Json) -> list[Network]:
    sets = ipam.get("ranges")
    ranges = [one for group in sets if isinstance(group, list) for one in group] if isinstance(sets, list) else []
    found = list[Network]()
    for one in (ipam, *ranges):
        with suppress(KeyError, ValueError, TypeError):
            found.append(written.cidr(str(one["subnet"])).network)
    return found


def _refuse_mode(mode: str) -> None:
    """Refuse an RDMA mode that the kernel is not in, as ADD would."""
    if mode not in ("exclusive", "shared"):
        return
    budget.begin()
    try:
        is_exclusive = rdma_netlink.is_exclusive()
    except OSError:
        return  # ADD reports it
    if is_exclusive is not None and is_exclusive != (mode == "exclusive"):
        now = "exclusive" if is_exclusive else "shared"
        raise Refused(
            f"rdma.mode {mode}: RDMA is in {now} mode on node {os.uname().nodename}; set rdmaNamespaces {mode} in its "
            f"device file, or rdma.mode {now}"
        )
