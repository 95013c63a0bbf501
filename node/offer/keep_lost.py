"""Which units kubelet is told of: those there are, and those it was told of before and that are not to be found; pure.

A unit that leaves the list looks to kubelet as if the node had never had it, and says nothing to the pod that has it.
So a device that is gone, or has lost its driver, stays in the list, as unhealthy, until the configuration is read anew.
Of the interfaces made of software only those stay that a selector names: of others a node may have a new one, of a new
name, with each pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hardware.model import Device, Kind
from node.model import Offer, Unit, devices_of


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
