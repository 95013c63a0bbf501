"""Assigns devices to resources, and keeps lost devices in their resources; pure.

The first resource in the file with a matching selector gets a device, as with sriov-network-device-plugin.  Only
resources that share their devices may have one in common, as with k8s-rdma-shared-dev-plugin.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from base.table import abridged
from hardware.model import Device, Kind
from node.model import MOST, Offer, PfName, Resource, Selector, Sharing, Unit, devices_of

# The remedy if no device matches.
LOOK = "hpn node --check lists the devices here"
_NAMED = 3  # devices that a sentence names


def offers(resources: Sequence[Resource], devices: Sequence[Device]) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """An offer for each resource, in their order; and remarks, each once.

    A resource without a matching device gets an offer without units.
    """
    owners, made, remarks = dict[str, Resource](), list[Offer](), list[str]()
    for resource in resources:
        claimed, left_out = _claimed(resource, devices)
        left_out += _without_verbs(resource, devices)
        ours = [device for device in claimed if _is_free(resource, owners.get(device.id))]
        remarks += [*_overlaps(resource, claimed, owners), *left_out]
        if not ours and not left_out:
            why = f"finds no device on this node and is offered with 0 units; {LOOK}"
            if claimed:
                why = "is offered with 0 units, because earlier resources have all of its devices"
            remarks.append(f"{_title(resource)} {why}")
        for device in ours:
            owners.setdefault(device.id, resource)
        made.append(Offer(resource, tuple(_units(resource, tuple(ours)))))
        remarks += _too_many(resource, ours)
    return tuple(made), tuple(dict.fromkeys(remarks))


def agrees(selector: Selector, device: Device) -> bool:
    """Whether a device matches all fields of a selector."""
    return (
        (not selector.kinds or device.kind in selector.kinds)
        and (not selector.vendors or device.vendor in selector.vendors)
        and (not selector.products or device.product in selector.products)
        and (not selector.drivers or device.driver in selector.drivers)
        and (not selector.addresses or device.id in selector.addresses)
        and (not selector.acpi_indexes or device.acpi_index in selector.acpi_indexes)
        and (not selector.link_types or device.link_type in selector.link_types)
        and (not selector.netdevs or not selector.netdevs.isdisjoint((*device.names, *device.altnames)))
        and (not selector.pkeys or not selector.pkeys.isdisjoint(device.pkeys))
        and (not selector.pf_names or _is_of_pf(selector.pf_names, (device.pf_netdev, *device.pf_altnames), device))
        and (not selector.pf_addresses or _is_of_pf(selector.pf_addresses, (device.pf,), device))
        and (not selector.rdma or _has_verbs(device))
        and (not selector.vdpa or selector.vdpa == device.vdpa)
    )


def software(resources: Iterable[Resource]) -> frozenset[str] | None:
    """The names of the interfaces without a device below that resources may have; None if one may have any."""
    selectors = [one for resource in resources for one in resource.selectors if _may_be_software(one)]
    is_any = any(not one.netdevs for one in selectors)
    return None if is_any else frozenset(name for one in selectors for name in one.netdevs)


def _may_be_software(selector: Selector) -> bool:
    """Whether the selector asks for nothing that only a device has."""
    rest = replace(selector, kinds=frozenset(), netdevs=frozenset(), link_types=frozenset(), rdma=False)
    return (not selector.kinds or Kind.NETDEV in selector.kinds) and rest == Selector()


def _is_of_pf(entries: Sequence[PfName], pf: Sequence[str], device: Device) -> bool:
    """Whether the first entry with any one of the PF's names, in any case, covers the device.  A PF is not its own
    VF."""
    names = {name.casefold() for name in pf if name}
    if device.kind not in (Kind.VF, Kind.SF):
        return False
    first = {entry.name.casefold(): entry for entry in reversed(entries)}
    return any(name in first and first[name].has(device.index) for name in names)


def _claimed(resource: Resource, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    """The selected devices without those that the host needs; and remarks on these.

    A shared resource may have any device, because sharing takes nothing from the host.
    """
    found = [(d, by) for d in devices if (by := [s for s in resource.selectors if agrees(s, d)])]
    if resource.sharing is Sharing.SHARED:
        return [device for device, _ in found], []
    asked = {device.id for device, by in found if any(s.kinds == {Kind.PF} for s in by)}
    kept = [device for device, _ in found if device.vfs and device.id not in asked and not device.reserved]
    rest = [device for device, _ in found if not (device.vfs and device in kept)]
    needed = [d for d in rest if (d.reserved if resource.takes_network else d.needed)]
    remarks = [
        f"{_title(resource)} does not offer {_named(device)}: {device.needed}, and a pod would take it from the "
        f"host; share it instead, or {'give the host another uplink' if device.reserved else _other(resource)}"
        "; then run: systemctl reload hpn-node, or delete the pod of hpn node"
        for device in needed
    ]
    free = [device for device in rest if device not in needed]
    given = [device for device in free if device.vfs]
    if kept:
        remarks.append(
            f"{_title(resource)} leaves out PFs that have VFs: {_some(kept)}; in a file of hpn's own, kind pf offers "
            "them"
        )
    if given:
        remarks.append(
            f"{_title(resource)} offers PFs that have VFs: {_some(given)}; a pod that gets one takes the uplink of its "
            "VFs"
        )
    return free, remarks


def _other(resource: Resource) -> str:
    """The remedy for a device with addresses or routes of the host."""
    return "remove that" + (", or set useInterfaceNetwork here and in the network" if resource.kind == "pf" else "")


def _has_verbs(device: Device) -> bool:
    return any(rdma.uverbs for rdma in device.rdma)


def _without_verbs(resource: Resource, devices: Sequence[Device]) -> list[str]:
    """A remark on the devices that the resource lacks only because their RDMA devices have no nodes."""
    selectors = [replace(selector, rdma=False) for selector in resource.selectors if selector.rdma]
    mute = [device for device in devices if device.rdma and not _has_verbs(device)]
    kept = [device for device in mute if any(agrees(selector, device) for selector in selectors)]
    remark = (
        f"{_title(resource)} leaves out devices whose RDMA device has no node in /dev/infiniband: {_some(kept)}; "
        "load ib_uverbs: modprobe ib_uverbs"
    )
    return [remark] if kept else []


def _is_free(resource: Resource, owner: Resource | None) -> bool:
    """Whether a resource may have its owner's device: both share it, and offer it by the same way."""
    if owner is None:
        return True
    is_shared = resource.sharing is Sharing.SHARED and owner.sharing is Sharing.SHARED
    return is_shared and resource.by_dra == owner.by_dra


def _overlaps(resource: Resource, claimed: Sequence[Device], owners: dict[str, Resource]) -> Iterator[str]:
    """A remark for each earlier resource that has some of the devices."""
    common = defaultdict[str, list[Device]](list)
    for device in claimed:
        if owner := owners.get(device.id):
            common[_title(owner)].append(device)
    for title, devices in common.items():
        both = _is_free(resource, owners[devices[0].id])
        outcome = "both share them" if both else f"{title} gets them, because it stands first"
        yield (
            f"{title} and {_title(resource)} both claim {_some(devices)}; {outcome}; "
            "change the selectors of one if that is not intended"
        )


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
    """The units per device: at most as many as fit into a list that kubelet reads."""
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
    return abridged([*map(_named, devices)], _NAMED)


def keep(before: Mapping[str, Offer], now: Iterable[Offer], devices: Mapping[str, Device]) -> dict[str, Offer]:
    """The present offers by resource, each with the lost units of its earlier offer.

    kubelet treats a unit that leaves the list as if the node had never had it, and notifies no pod.  So a device stays
    as unhealthy if it is gone, lost its driver, or became necessary to the host.  A reload of the configuration removes
    it.  Software interfaces stay only if a selector names them, because each pod may bring one of a new name.

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
        units = [_present(unit, devices) for unit in units if all(is_lasting(one, offer) for one in unit.devices)]
        kept[name] = replace(offer, units=(*offer.units, *units))
    return kept


def _present(unit: Unit, devices: Mapping[str, Device]) -> Unit:
    """The unit with what the host needs of its devices now."""
    now = tuple(devices[one.id] if one.id in devices and devices[one.id].needed else one for one in unit.devices)
    return unit if now == unit.devices else replace(unit, devices=now)


def is_lasting(device: Device, offer: Offer) -> bool:
    """Whether the device keeps its id: software interfaces do only if a selector names them."""
    names = {device.id, *device.altnames}
    return device.kind is not Kind.NETDEV or not all(one.netdevs.isdisjoint(names) for one in offer.resource.selectors)


def _stays(unit: Unit, devices: Mapping[str, Device], claimed: set[str]) -> bool:
    """Whether a unit left the offer because its devices are lost, and not because no selector matches them."""
    return all(device.id not in claimed and _is_lost(device, devices.get(device.id)) for device in unit.devices)


def _is_lost(before: Device, now: Device | None) -> bool:
    if not now:
        return True
    has_lost_its_driver = bool(before.driver and not now.driver)
    is_in_a_pod = bool(before.netdevs and not now.netdevs)  # where a selector may no longer match it
    return has_lost_its_driver or is_in_a_pod or bool(now.needed)
