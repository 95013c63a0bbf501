"""The devices that kubelet gave a pod of a resource, as keys of a configuration that attaches one.

Multus hands on one device, that of the network's own resource.  kubelet's checkpoint has them all
(base/state/kubelet_checkpoint.py).
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from base.kernel import sysfs
from base.protocol import arguments, location
from base.protocol.errors import CniError, InvalidConfig, LinkUnavailable, TryAgain
from base.protocol.spec import Json, Request
from base.state import kubelet_checkpoint
from cni import kinds

# The kinds that move a device; the others make an interface over it.
_MOVED: Final = ("sriov", "host-device")
# A share of a device has the device's name and a number (node/offer/offers.py).
_SHARE: Final = re.compile(r"(.+)-[0-9]+")
# In place of a resource's name after its domain.
_ALL: Final = "*"
# What can name a device of a bus, or an interface with a share's number.
_NAMES: Final = re.compile(r"[!-.0-~]+")


class Held(NamedTuple):
    """What kubelet gave to a pod: its name, and the units of each resource, in order."""

    pod: str
    units: Mapping[str, Sequence[str]]


def held(request: Request) -> Held:
    """What kubelet gave to the request's pod.  Raises InvalidConfig if that has no name; TryAgain if it cannot be
    known."""
    args = arguments.cni_args(request.var("CNI_ARGS"))
    uid = args.get("K8S_POD_UID", "")
    if not uid:
        raise InvalidConfig("rails name resources, and CNI_ARGS has no K8S_POD_UID, which names a pod; list interfaces")
    units = defaultdict[str, set[str]](set)
    for given in _given():
        if given.pod_uid == uid:
            units[given.resource] |= {*given.ids}
    return Held(arguments.pod_name(args), {resource: sorted(ids) for resource, ids in units.items()})


def named(resource: str, there: Collection[str]) -> list[str]:
    """Those of the resources ``there`` that an entry of rails names: one, or with ``example.com/*`` all of the domain,
    in the order of their numbers."""
    domain, _, name = resource.partition("/")
    return sorted((one for one in there if one == resource or (name == _ALL and one.startswith(f"{domain}/"))),
                  key=sysfs.natural)  # fmt: skip


def rails(resource: str, held: Held, common: Json) -> Iterator[tuple[str, Json]]:
    """Yield each of the pod's devices of the resource: its name for people, and the keys for the configuration
    ``common``.  Raises InvalidConfig if the pod has none, LinkUnavailable."""
    units = [(one, unit) for one in named(resource, held.units) for unit in held.units[one]]
    if not units:
        raise InvalidConfig(
            f"rails {resource!r}: kubelet gave pod {held.pod} no device of this resource; request it in the limits of "
            "a container of the pod, remove it from rails, or use chain mode if it is by DRA"
        )
    for one, unit in units:
        try:
            yield f"{one} {unit}", _keys(one, unit, common)
        except CniError as e:
            e.add_note(f"for rail {one} {unit}")
            raise


def _given() -> list[kubelet_checkpoint.Given]:
    """What kubelet gave to pods.  Raises TryAgain."""
    folder = next((one for one in location.KUBELETS if os.path.isdir(one)), location.KUBELET)
    try:
        return kubelet_checkpoint.read(Path(folder))
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else f"{e}"
        raise TryAgain(
            f"rails: kubelet's checkpoint {kubelet_checkpoint.file(Path(folder))} cannot be read ({why}), so the pod's "
            "devices are unknown; list interfaces in rails, or write a network for each resource"
        ) from e


def _keys(resource: str, unit: str, common: Json) -> Json:
    share = _SHARE.fullmatch(unit)
    if not _NAMES.fullmatch(unit) or re.fullmatch("[0-9]+", unit):
        raise InvalidConfig(
            f"rails {resource!r}: its unit {unit!r} names no device, as where devices are pooled; list interfaces"
        )
    device = share[1] if share else unit
    kind = common.get("kind", kinds.implied({**common, **({} if share else {"deviceID": device})}))
    if share and kind in _MOVED:
        raise InvalidConfig(
            f"kind {kind!r} would take {device} from all pods that share it; write kind macvlan, ipvlan or ipoib"
        )
    return {"deviceID": device} if kind in _MOVED else {"master": master_of(device)}


def master_of(device: str) -> str:
    """The interface of a shared device by its bus address, in switchdev mode its uplink; or an interface's name.
    Raises LinkUnavailable."""
    function = sysfs.device(sysfs.with_netdev(device))
    if not function:
        return device  # a bond or a VLAN with an RDMA device; ADD reports a missing one
    names = [*sysfs.own_netdevs(function.netdevs)]
    if len(names) != 1:
        raise LinkUnavailable(f"device {device!r} has {len(names)} interfaces on the host, and a master is one of them")
    return names[0]
