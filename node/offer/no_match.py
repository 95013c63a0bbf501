"""Why a selector finds nothing: what of it no device has, and what there is instead; pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from hardware.model import Device, Kind
from node.model import Offer, PfName, Selector
from node.offer.offers import agrees

_SHOWN: Final = 6
# Of each list of a selector what a device has there, as a person would write it.
_HAS: Final[Mapping[str, Callable[[Device], Sequence[str]]]] = {
    "vendors": lambda one: [one.vendor],
    "products": lambda one: [one.product],
    "drivers": lambda one: [one.driver],
    "addresses": lambda one: [one.id],
    "acpi_indexes": lambda one: [one.acpi_index],
    "netdevs": lambda one: one.names,
    "link_types": lambda one: [one.link_type],
    "pkeys": lambda one: [f"{pkey:#06x}" for pkey in sorted(one.pkeys)],
}


def sentences(offers: Sequence[Offer], devices: Sequence[Device]) -> Iterator[str]:
    """A sentence for each selector that no device agrees with."""
    for offer in offers:
        for number, selector in enumerate(offer.resource.selectors):
            if not any(agrees(selector, device) for device in devices):
                which = f" by its selector {number + 1}" if len(offer.resource.selectors) > 1 else ""
                yield f"{offer.resource.full_name} finds nothing here{which}: {_why(selector, devices)}"


def _why(selector: Selector, devices: Sequence[Device]) -> str:
    kinds = " or ".join(sorted(kind.value for kind in selector.kinds)) or "device"
    there = [device for device in devices if not selector.kinds or device.kind in selector.kinds]
    if not there:
        return f"there is no {kinds}"
    for field in fields(Selector):
        wanted = getattr(selector, field.name)
        alone = replace(Selector(), **{field.name: wanted})
        if wanted and field.name != "kinds" and not any(agrees(alone, device) for device in there):
            return f"no {kinds} has {_asked(field.name, wanted)}{_instead(field.name, there)}"
    return f"no {kinds} has all that it asks for; each part of it some have"


def _asked(name: str, wanted: Any) -> str:
    if name == "rdma":
        return "an RDMA device"
    if name == "vdpa":
        return f"a vDPA device of type {wanted!r}"
    texts = [_entry(one) if isinstance(one, PfName) else f"{one:#06x}" if name == "pkeys" else one for one in wanted]
    return f"{_WORDS[name]} {' or '.join(map(repr, sorted(texts)[:_SHOWN]))}"


def _entry(one: PfName) -> str:
    ranges = ",".join(f"{part.start}-{part.stop - 1}" for part in one.indexes or ())
    return one.name if one.indexes is None else f"{one.name}#{ranges}"


def _instead(name: str, there: Sequence[Device]) -> str:
    if name in ("pf_names", "pf_addresses"):
        found = _of_pfs(there, "pf_netdev" if name == "pf_names" else "pf")
    else:
        has = _HAS.get(name)
        found = sorted({text for device in there for text in has(device) if text}) if has else []
    return f"; there are {', '.join(found[:_SHOWN])}{' and more' * (len(found) > _SHOWN)}" if found else ""


def _of_pfs(there: Sequence[Device], name: str) -> list[str]:
    """Each PF with the lowest and the highest number of its VFs or SFs: "rail0#0-3"."""
    numbers = defaultdict[str, list[int]](list)
    for device in there:
        if device.kind in (Kind.VF, Kind.SF) and getattr(device, name):
            numbers[getattr(device, name)].append(device.index)
    return [f"{pf}#{min(found)}-{max(found)}" for pf, found in sorted(numbers.items())]


# As the files call them.
_WORDS: Final = {
    "vendors": "vendor",
    "products": "device",
    "drivers": "driver",
    "addresses": "address",
    "acpi_indexes": "ACPI index",
    "netdevs": "interface",
    "pf_names": "PF",
    "pf_addresses": "PF",
    "link_types": "link type",
    "pkeys": "partition key",
}
