"""The node's ResourceSlices, from offers: pools, devices, attributes, shares, counters and taints; pure.

Source: k8s.io/api/resource/v1, and its validation in kubernetes (pkg/apis/resource/validation).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Final

from base.protocol.spec import Json
from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.dra import DRIVER
from node.dra.slices import names
from node.model import Offer, Resource, Sharing, Unit

# A slice with one taint or one counter has at most 64 devices.  A taint may come at any time.
_MOST: Final = 64
_FUNCTIONS: Final = "functions"  # the counters of a PF that is offered beside its VFs
_STANDARD: Final = "resource.kubernetes.io"
# Multus finds a claim's devices by these (multus-cni, pkg/draclient), and skips a device without them.
_MULTUS: Final = "k8s.cni.cncf.io"
SHARES: Final = "shares"
# "rail0", "eth_rail7".
_RAIL: Final = re.compile(r"(?:.*[-_])?rail[-_]?([0-9]{1,3})")
TAINT: Final = f"{DRIVER}/unhealthy"

# A resource's name and the ID of a unit that is not available by DRA now.
Withheld = Collection[tuple[str, str]]


@dataclass(frozen=True)
class Features:
    """What the API server stores.  It drops the fields of a feature gate that is off, without an error.

    - ``taints``: DRADeviceTaints; ``shares``: DRAConsumableCapacity; ``counters``: DRAPartitionableDevices.
    """

    taints: bool = True
    shares: bool = True
    counters: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A device of a slice, with the units of its resource that it stands for.

    - ``units``: the available ones, which are as many as claims may share the device; none while all are withheld.
    """

    pool: str
    name: str
    resource: Resource
    devices: tuple[Device, ...]
    units: tuple[Unit, ...]

    @property
    def is_shared(self) -> bool:
        return self.resource.sharing is Sharing.SHARED

    @property
    def device(self) -> Device:
        """The device, or the first of a pooled resource."""
        return self.devices[0]

    @property
    def multus_id(self) -> str:
        """The device as Multus gives it to the CNI plugin: a master's interface, else the bus address."""
        one = self.device
        return next(iter(one.names), one.id) if self.resource.kind == "master" else one.id


@dataclass(frozen=True)
class Facts:
    """The facts of this node beside its offers.

    - ``root``: a PCI function's root, "pci0000:3a"; empty if unknown.
    - ``unhealthy``: why a resource's device is unhealthy, in one word; empty if it is healthy.
    - ``neighbors``: the switch ports of PFs, by their addresses.
    """

    node: str
    root: Callable[[str], str]
    unhealthy: Callable[[Resource, Device], str]
    neighbors: Mapping[str, Neighbor] = field(default_factory=dict)

    def taint(self, entry: Entry) -> str:
        """Why an entry is unhealthy.  One healthy device is enough for a pooled resource."""
        words = [self.unhealthy(entry.resource, one) for one in entry.devices]
        return words[0] if all(words) else ""


def entries(node: str, offers: Iterable[Offer], withheld: Withheld = ()) -> Iterator[Entry]:
    """All devices of the offers, one pool after the other, and in a fixed order."""
    grouped = defaultdict[str, list[tuple[Resource, tuple[Unit, ...]]]](list)
    for offer in offers:
        pool_of = partial(_pool, node, offer.resource)
        for pool, run in groupby(_by_devices(offer.units), key=pool_of):
            grouped[pool].append((offer.resource, tuple(chain.from_iterable(run))))
    for pool, members in grouped.items():
        used = set[str]()
        for resource, units in ((resource, units) for resource, run in members for units in _by_devices(run)):
            devices = units[0].devices
            name = names.device(resource, devices[0])
            if name in used:
                name = names.twin(resource, devices[0])
            used.add(name)
            free = tuple(unit for unit in units if (resource.full_name, unit.id) not in withheld)
            yield Entry(pool, name, resource, devices, free)


def _by_devices(units: Iterable[Unit]) -> Iterator[tuple[Unit, ...]]:
    """The units of the same devices together: they follow each other, and share one tuple of devices."""
    return (tuple(alike) for _, alike in groupby(units, key=lambda unit: id(unit.devices)))


def _pool(node: str, resource: Resource, units: Sequence[Unit]) -> str:
    return names.pool(node, resource, units[0].devices[0])


# Devices by the name of their pool, without the node's, and their own.
Index = Mapping[tuple[str, str], Entry]


def index(offers: Iterable[Offer]) -> Index:
    """All devices of the offers, for ``find``."""
    return {(one.pool.removeprefix("/"), one.name): one for one in entries("", offers)}


def find(among: Index, pool: str, device: str) -> Entry | None:
    """The device of that name in this node's pool; None if the offers have none."""
    return among.get((pool.rpartition("/")[2], device))


def pools(
    found: Iterable[Entry], facts: Facts, features: Features, left_out: Callable[[str, str], None]
) -> Iterator[tuple[str, list[Json]]]:
    """Each pool that has devices, and its slices: their members ``devices`` or ``sharedCounters``.

    ``found`` are those of ``entries``.  One pool after the other, because all documents of a node with thousands of
    devices take much memory.  ``left_out`` gets the id of each device that is left out, and why.
    """
    for pool, members in groupby(found, key=lambda entry: entry.pool):
        if slices := list(_slices(list(members), facts, features, left_out)):
            yield pool, slices


def _slices(
    members: Sequence[Entry], facts: Facts, features: Features, left_out: Callable[[str, str], None]
) -> Iterator[Json]:
    """A pool's slices.  A device's slice depends only on its place in the offer, so a device that leaves the pool moves
    no other one to another slice."""
    whole = _whole_nics(members)
    consumed = _consumed(members, whole) if whole and features.counters else None
    if consumed:
        yield {"sharedCounters": [{"name": _FUNCTIONS, "counters": {_FUNCTIONS: {"value": quantity(consumed.left)}}}]}
    for start in range(0, len(members), _MOST):
        devices = list[Json]()
        for entry in members[start : start + _MOST]:
            word = facts.taint(entry)
            is_whole = not entry.is_shared and entry.device.id in whole
            if why := _why_left_out(entry, features, is_whole=is_whole, is_unhealthy=bool(word)):
                left_out(entry.device.id, why)
            elif entry.units:
                devices.append(_device(entry, facts, word, consumed))
        if devices:
            yield {"devices": devices}


def _whole_nics(members: Sequence[Entry]) -> Collection[str]:
    """The PFs that are offered as a whole, beside VFs or SFs of theirs."""
    exclusive = [entry.device for entry in members if not entry.is_shared]
    below = {device.pf for device in exclusive if device.kind in (Kind.VF, Kind.SF)}
    return {device.id for device in exclusive if device.kind is Kind.PF and device.id in below}


@dataclass(frozen=True)
class _Consumed:
    """What devices consume of the counter ``functions``: the PF all, a VF or SF one.  ``left`` is its value, without
    the part that withheld devices consume."""

    by_id: Mapping[str, int]
    left: int


def _consumed(members: Sequence[Entry], whole: Collection[str]) -> _Consumed:
    exclusive = [entry for entry in members if not entry.is_shared]
    number = sum(1 for entry in exclusive if entry.device.id not in whole)
    by_id = {entry.device.id: number if entry.device.id in whole else 1 for entry in exclusive}
    held = sum(by_id[entry.device.id] for entry in exclusive if not entry.units)
    return _Consumed(by_id, max(number - held, 0))


def _why_left_out(entry: Entry, features: Features, *, is_whole: bool, is_unhealthy: bool) -> str:
    without = "left out of the ResourceSlices, because the API server stores no {} (feature gate {}): {}"
    if entry.is_shared and not features.shares:
        what = without.format("shares", "DRAConsumableCapacity", "one claim would have the device alone")
    elif is_whole and not features.counters:
        what = without.format("counters", "DRAPartitionableDevices", "one claim could get the PF, and others its VFs")
    elif is_unhealthy and not features.taints:
        what = without.format("taints", "DRADeviceTaints", "claims would get unhealthy devices")
    else:
        return ""
    return what


def _device(entry: Entry, facts: Facts, unhealthy: str, consumed: _Consumed | None) -> Json:
    described = attributes(entry, facts.root, facts.neighbors.get(entry.device.pf))
    made: Json = {"name": entry.name, "attributes": described}
    if entry.is_shared:
        # Each claim takes one share.  Without this capacity, a device with multiple allocations has no limit.
        policy = {"default": "1", "validValues": ["1"]}
        made["capacity"] = {SHARES: {"value": quantity(len(entry.units)), "requestPolicy": policy}}
        made["allowMultipleAllocations"] = True
    if consumed and not entry.is_shared:
        counters = {_FUNCTIONS: {"value": quantity(consumed.by_id[entry.device.id])}}
        made["consumesCounters"] = [{"counterSet": _FUNCTIONS, "counters": counters}]
    if unhealthy:
        made["taints"] = [{"key": TAINT, "value": unhealthy, "effect": "NoSchedule"}]
    return made


def attributes(entry: Entry, root: Callable[[str], str], neighbor: Neighbor | None = None) -> Json:
    """A device's attributes.  None changes when a pod gets the device, so selectors find the same devices again.

    ``neighbor`` is the last one of its PF, also while the link is down.
    """
    one, resource = entry.device, entry.resource
    is_pci = one.kind in (Kind.PF, Kind.VF, Kind.ACCELERATOR)
    found: dict[str, str | int | bool] = {
        f"{_MULTUS}/resourceName": resource.full_name,
        f"{_MULTUS}/deviceID": entry.multus_id,
        "kind": resource.kind,
        "rdma": bool(one.rdma),
    }
    if len(entry.devices) == 1:
        found |= {
            f"{_STANDARD}/pciBusID": one.id if is_pci else "",
            f"{_STANDARD}/pcieRoot": root(one.pf) if one.pf else "",
            "pf": one.pf_netdev,
            "pfPciAddress": one.pf,
            "nic": one.pf.rpartition(".")[0],
            "linkType": one.link_type,
            "vendor": one.vendor,
            "product": one.product,
        }
        if one.kind in (Kind.VF, Kind.SF):
            found["index"] = one.index
        if one.numa >= 0:
            found[f"{_STANDARD}/numaNode"] = one.numa
        found |= _of_wire(one, neighbor)
    return {name: _value(value) for name, value in found.items() if value != ""}


def rail(one: Device) -> int | None:
    """The number of the rail in the name or an altname of the PF's interface; None without one."""
    found = next(filter(None, map(_RAIL.fullmatch, (one.pf_netdev, *one.pf_altnames))), None)
    return int(found[1]) if found else None


def _of_wire(one: Device, neighbor: Neighbor | None) -> dict[str, str | int | bool]:
    """The attributes of a PF's cable: the rail by its name, and the switch port with its values."""
    number = rail(one)
    found: dict[str, str | int | bool] = {} if number is None else {"rail": number}
    if neighbor:
        found |= {"leaf": neighbor.leaf, "leafPort": neighbor.leaf_port}
        numbers = {"leafVlan": neighbor.vlan, "leafMaxFrame": neighbor.max_frame, "speed": neighbor.speed}
        found |= {name: number for name, number in numbers.items() if number}
    return found


def _value(value: str | int | bool) -> Json:  # noqa: FBT001  # a value of any of three types
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case _:
            return {"string": names.text(value)}


def quantity(number: int) -> str:
    """A number as the API server spells it: "1500", "2k" (apimachinery, pkg/api/resource, "Canonical form")."""
    for suffix in ("", "k", "M"):
        if number % 1000 or not number:
            return f"{number}{suffix}"
        number //= 1000
    return f"{number}G"
