"""Which resource has which device; pure.

A device goes to the first resource, in the file's order, that has a selector for it, as with
sriov-network-device-plugin.  Only resources that share their devices may have one in common, as with
k8s-rdma-shared-dev-plugin.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hardware.model import Device, Kind
from node.model import MOST, Offer, PfName, Resource, Selector, Sharing, Unit, devices_of

# The remedy where nothing is found.
LOOK = "hpn node --check shows what there is to select"
_NAMED = 3  # devices that a sentence names


def offers(resources: Sequence[Resource], devices: Sequence[Device]) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """An offer for each resource, in their order; and sentences for people, each only once.

    A resource whose selectors find nothing is offered without units.
    """
    owners, made, said = dict[str, Resource](), list[Offer](), list[str]()
    for resource in resources:
        claimed, left_out = _claimed(resource, devices)
        left_out += _without_verbs(resource, devices)
        ours = [device for device in claimed if _is_free(resource, owners.get(device.id))]  # guard: whose (resource)
        said += [*_overlaps(resource, claimed, owners), *left_out]
        if not ours and not left_out:
            said.append(_nothing(resource, claimed))
        for device in ours:
            owners.setdefault(device.id, resource)
        made.append(Offer(resource, tuple(_units(resource, tuple(ours)))))
        said += _too_many(resource, ours)
    return tuple(made), tuple(dict.fromkeys(said))


def agrees(selector: Selector, device: Device) -> bool:
    """Whether a device agrees with all that a selector asks for."""
    return (
        (not selector.kinds or device.kind in selector.kinds)
        and (not selector.vendors or device.vendor in selector.vendors)
        and (not selector.products or device.product in selector.products)
        and (not selector.drivers or device.driver in selector.drivers)
        and (not selector.addresses or device.id in selector.addresses)
        and (not selector.acpi_indexes or device.acpi_index in selector.acpi_indexes)
        and (not selector.link_types or device.link_type in selector.link_types)
        and (not selector.netdevs or not selector.netdevs.isdisjoint(device.names))
        and (not selector.pkeys or not selector.pkeys.isdisjoint(device.pkeys))
        and (not selector.pf_names or _is_of_pf(selector.pf_names, device.pf_netdev, device))
        and (not selector.pf_addresses or _is_of_pf(selector.pf_addresses, device.pf, device))
        and (not selector.rdma or _has_verbs(device))
        and (not selector.vdpa or selector.vdpa == device.vdpa)
    )


def _is_of_pf(entries: Sequence[PfName], pf: str, device: Device) -> bool:
    """The first entry with that name decides, whatever its case.  A PF is not its own VF."""
    if device.kind not in (Kind.VF, Kind.SF) or not pf:  # guard: no-vf (device)
        return False
    name = pf.casefold()
    for entry in entries:
        if entry.name.casefold() == name:
            return entry.has(device.index)
    return False


def _claimed(resource: Resource, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """The devices that its selectors find, without those that nobody may take from the host; and sentences on these.

    Sharing takes nothing, so a shared resource may have any device.
    """
    found = [(d, by) for d in devices if (by := [s for s in resource.selectors if agrees(s, d)])]
    if resource.sharing is Sharing.SHARED:
        return [device for device, _ in found], []
    asked = {device.id for device, by in found if any(s.kinds == {Kind.PF} for s in by)}
    kept = [device for device, _ in found if device.vfs and device.id not in asked and not device.reserved]
    rest = [device for device, _ in found if not (device.vfs and device in kept)]  # guard: with-vfs (vfs and device)
    said = [
        f"{_title(resource)} does not offer {_named(device)}: {device.needed}, and a pod that gets the device takes "
        f"it from the host; share it instead, or {'give the host another uplink' if device.reserved else 'remove that'}"
        " and have hpn node look again: systemctl reload hpn-node, or delete its pod"
        for device in rest
        if device.needed
    ]
    free = [device for device in rest if not device.needed]  # guard: needed = rest
    given = [device for device in free if device.vfs]
    if kept:
        said.append(
            f"{_title(resource)} leaves out PFs that have VFs: {_some(kept)}; in a file of hpn's own, kind pf offers "
            "them"
        )
    if given:
        said.append(
            f"{_title(resource)} offers PFs that have VFs: {_some(given)}; a pod that gets one takes the uplink of its "
            "VFs"
        )
    return free, said


def _has_verbs(device: Device) -> bool:
    return any(rdma.uverbs for rdma in device.rdma)


def _without_verbs(resource: Resource, devices: Sequence[Device]) -> list[str]:
    """A sentence on the devices that a resource would have, if programs could use their RDMA devices."""
    selectors = [replace(selector, rdma=False) for selector in resource.selectors if selector.rdma]
    mute = [device for device in devices if device.rdma and not _has_verbs(device)]
    kept = [device for device in mute if any(agrees(selector, device) for selector in selectors)]
    said = (
        f"{_title(resource)} leaves out devices whose RDMA device has no node in /dev/infiniband: {_some(kept)}; "
        "load ib_uverbs: modprobe ib_uverbs"
    )
    return [said] if kept else []


def _is_free(resource: Resource, owner: Resource | None) -> bool:
    return owner is None or (resource.sharing is Sharing.SHARED and owner.sharing is Sharing.SHARED)


def _overlaps(resource: Resource, claimed: Sequence[Device], owners: dict[str, Resource]) -> Iterator[str]:
    """A sentence for each earlier resource that has some of the devices."""
    common = defaultdict[str, list[Device]](list)
    for device in claimed:
        if owner := owners.get(device.id):
            common[_title(owner)].append(device)
    for title, devices in common.items():
        both = _is_free(resource, owners[devices[0].id])
        outcome = "both share them" if both else f"{title} has them, because it stands first"
        yield (
            f"{title} and {_title(resource)} both claim {_some(devices)}; {outcome}; "
            "change the selectors of one of the two if that is not meant"
        )


def _nothing(resource: Resource, claimed: Sequence[Device]) -> str:
    if claimed:
        return f"{_title(resource)} is offered with 0 units, because earlier resources have all of its devices"
    return f"{_title(resource)} finds no device on this node and is offered with 0 units; {LOOK}"


def _units(resource: Resource, devices: tuple[Device, ...]) -> Iterator[Unit]:
    if resource.sharing is Sharing.EXCLUSIVE:
        yield from (Unit(device.id, (device,)) for device in devices)
    elif resource.pooled:
        yield from (Unit(str(number), devices) for number in range(resource.count if devices else 0))
    else:
        count = _shares(resource, devices)
        for alone in ((device,) for device in devices):
            yield from (Unit(f"{alone[0].id}-{n}", alone) for n in range(count))


def _shares(resource: Resource, devices: Sequence[Device]) -> int:
    """How many containers may share each of these devices, so that kubelet can read the list."""
    return min(resource.count, MOST // max(len(devices), 1))


def _too_many(resource: Resource, devices: Sequence[Device]) -> Iterator[str]:
    is_each = resource.sharing is Sharing.SHARED and not resource.pooled
    if is_each and (count := _shares(resource, devices)) < resource.count:
        yield (
            f"{_title(resource)} has {len(devices)} devices for {resource.count} containers each, and kubelet takes at "
            f"most {MOST} IDs; {count} are offered of each, so lower count"
        )


def _title(resource: Resource) -> str:
    return f"{resource.full_name} ({resource.source})" if resource.source else resource.full_name


def _named(device: Device) -> str:
    name = next(iter(device.names), "")
    return f"{device.id} ({name})" if name not in ("", device.id) else device.id


def _some(devices: Sequence[Device]) -> str:
    more = len(devices) - _NAMED
    return ", ".join(map(_named, devices[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def keep(before: Mapping[str, Offer], now: Iterable[Offer], devices: Mapping[str, Device]) -> dict[str, Offer]:
    """The offers of now, by resource, each with the units of before that are to stay.

    ``devices`` are all devices of the node, by id.
    """
    now = tuple(now)
    claimed = {device.id for offer in now for device in devices_of(offer.units)}
    kept = dict[str, Offer]()
    for offer in now:
        name = offer.resource.full_name
        old = before[name].units if name in before else ()
        there = {unit.id for unit in offer.units}
        units = [unit for unit in old if unit.id not in there and _stays(unit, devices, claimed)]
        units = [unit for unit in units if all(is_lasting(device, offer) for device in unit.devices)]
        kept[name] = replace(offer, units=(*offer.units, *units))
    return kept


def is_lasting(device: Device, offer: Offer) -> bool:
    """Whether it is there again under its id: an interface of software only if a selector names it."""
    return device.kind is not Kind.NETDEV or any(device.id in one.netdevs for one in offer.resource.selectors)


def _stays(unit: Unit, devices: Mapping[str, Device], claimed: set[str]) -> bool:
    """Whether a unit that is no longer offered stays: its devices are not merely selected no more."""
    # guard below: another-has-it (claimed)
    return all(device.id not in claimed and _is_missed(device, devices.get(device.id)) for device in unit.devices)


def _is_missed(before: Device, now: Device | None) -> bool:
    if not now:
        return True  # guard: gone-and-listed = False
    has_lost_its_driver = bool(before.driver and not now.driver)
    is_in_a_pod = bool(before.netdevs and not now.netdevs)  # so a selector may no longer know it
    return has_lost_its_driver or is_in_a_pod
