"""hpn node --check: what a configuration file would offer on this machine, and why a selector has no match."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from base.kernel import sysfs
from base.table import aligned
from hardware import inventory
from hardware.model import Device, Kind
from node import config
from node.model import Offer, PfName, Selector, Settings, devices_of
from node.offer import hook, needs, offers
from node.offer.offers import agrees

# The exit status.  A selector without a match is not a fault, because one file often serves many nodes.
WHOLE: Final = 0
LEFT_OUT: Final = 1
REFUSED: Final = 2

_COLUMNS: Final = ("RESOURCE", "IDS", "DEVICE", "KIND", "INTERFACE", "RDMA", "NUMA")
_UNCLAIMED: Final = "(no resource)"
_SHOWN: Final = 6  # values that a sentence lists
# For each list of a selector, its name in messages and a device's values for it, as a person writes them.
_LISTS: Final[Mapping[str, tuple[str, Callable[[Device], Sequence[str]]]]] = {
    "vendors": ("vendor", lambda one: [one.vendor]),
    "products": ("device", lambda one: [one.product]),
    "drivers": ("driver", lambda one: [one.driver]),
    "addresses": ("address", lambda one: [one.id]),
    "acpi_indexes": ("ACPI index", lambda one: [one.acpi_index]),
    "netdevs": ("interface", lambda one: one.names),
    "pf_names": ("PF", lambda _: ()),
    "pf_addresses": ("PF", lambda _: ()),
    "link_types": ("link type", lambda one: [one.link_type]),
    "pkeys": ("partition key", lambda one: [f"{pkey:#06x}" for pkey in sorted(one.pkeys)]),
}


@dataclass(frozen=True)
class _Findings:
    """The file's settings, and what this machine has for them."""

    file: Path
    settings: Settings
    offers: Sequence[Offer]
    sentences: Sequence[str]
    unclaimed: Sequence[Device]


def answer(
    file: Path, *, prefix: str = "", cdi: bool = False, as_json: bool = False, root: Path = sysfs.SYS
) -> tuple[str, int]:
    """The text for stdout and the exit status.  ``prefix`` and ``cdi`` are those of config.read, ``root`` is /sys."""
    try:
        settings = config.read(file, prefix=prefix, cdi=cdi)
    except config.BadFile as e:
        sentences = [e.msg, *getattr(e, "__notes__", ())]
        return (_json({"file": f"{file}", "refused": sentences}) if as_json else _lines(sentences)), REFUSED
    devices = inventory.devices(root, inventory.MEMORY)
    made, remarks = offers.offers(settings.resources, devices)
    conflicts = hook.conflicts(settings.resources)
    sentences = [*conflicts, *_without_match(made, devices), *(one for one in remarks if not one.endswith(offers.LOOK))]
    sentences += needs.obstacles(made, root.parent)
    claimed = {device.id for offer in made for device in devices_of(offer.units)}
    found = _Findings(file, settings, made, sentences, [one for one in devices if one.id not in claimed])
    status = LEFT_OUT if settings.left_out or conflicts else WHOLE
    return _json(_document(found)) if as_json else _lines(_report(found)), status


def _report(found: _Findings) -> Iterator[str]:
    ids = sum(len(one.units) for one in found.offers)
    yield f"{found.file} is a file of {found.settings.dialect}; it offers {ids} ID{'s' * (ids != 1)} here"
    yield ""
    rows = [
        row
        for offer in found.offers
        for row in _rows(offer.resource.full_name, str(len(offer.units)), devices_of(offer.units))
    ]
    # A node has a software interface per pod, so the table lists only those that a resource claims.
    rest = [device for device in found.unclaimed if device.kind is not Kind.NETDEV]
    yield from aligned([_COLUMNS, *rows, *(_rows(_UNCLAIMED, "-", rest) if rest else ())])
    remarks = {
        "left out": found.settings.left_out,
        "found here": found.sentences,
        "of the file": found.settings.notes,
    }
    for title, lines in remarks.items():
        if lines:
            yield ""
            yield from (f"{title}: {line}" for line in lines)


def _rows(name: str, ids: str, devices: Sequence[Device]) -> Iterator[tuple[str, ...]]:
    """A row per device; only the first has the resource's name and number of IDs."""
    first = (name, ids)
    for one in devices:
        netdevs, rdma = ", ".join(one.names) or "-", ", ".join(hca.name for hca in one.rdma) or "-"
        yield *first, one.id, one.kind.value, netdevs, rdma, "-" if one.numa < 0 else str(one.numa)
        first = ("", "")
    if not devices:
        yield *first, *["-"] * (len(_COLUMNS) - len(first))


def _document(found: _Findings) -> dict[str, Any]:
    return {
        "file": f"{found.file}",
        "dialect": found.settings.dialect,
        "resources": [
            {
                "name": offer.resource.full_name,
                "source": offer.resource.source,
                "sharing": offer.resource.sharing.value,
                "ids": len(offer.units),
                "devices": [_device(device) for device in devices_of(offer.units)],
            }
            for offer in found.offers
        ],
        "unclaimed": [_device(device) for device in found.unclaimed],
        "leftOut": found.settings.left_out,
        "found": found.sentences,
        "notes": found.settings.notes,
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "kind": device.kind.value,
        "interfaces": device.names,
        "rdma": [hca.name for hca in device.rdma],
        "numa": None if device.numa < 0 else device.numa,
        "vendor": device.vendor,
        "device": device.product,
        "driver": device.driver,
        "linkType": device.link_type,
    }


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _without_match(offers: Sequence[Offer], devices: Sequence[Device]) -> Iterator[str]:
    """A sentence for each selector that matches no device."""
    for offer in offers:
        for number, selector in enumerate(offer.resource.selectors):
            if not any(agrees(selector, device) for device in devices):
                which = f" by its selector {number + 1}" if len(offer.resource.selectors) > 1 else ""
                yield f"{offer.resource.full_name} finds nothing here{which}: {_why(selector, devices)}"


def _why(selector: Selector, devices: Sequence[Device]) -> str:
    """The first field of the selector that no device of its kinds matches, with the values of those devices."""
    kinds = " or ".join(sorted(kind.value for kind in selector.kinds)) or "device"
    there = [device for device in devices if not selector.kinds or device.kind in selector.kinds]
    if not there:
        return f"there is no {kinds}"
    for field in fields(Selector):
        wanted = getattr(selector, field.name)
        alone = replace(Selector(), **{field.name: wanted})
        if wanted and field.name != "kinds" and not any(agrees(alone, device) for device in there):
            return f"no {kinds} has {_wanted(field.name, wanted)}{_instead(field.name, there)}"
    return f"no {kinds} matches all parts of the selector; each part matches some"


def _wanted(name: str, wanted: Any) -> str:
    if name == "rdma":
        return "an RDMA device"
    if name == "vdpa":
        return f"a vDPA device of type {wanted!r}"
    texts = [_entry(one) if isinstance(one, PfName) else f"{one:#06x}" if name == "pkeys" else one for one in wanted]
    return f"{_LISTS[name][0]} {' or '.join(map(repr, sorted(texts)[:_SHOWN]))}"


def _entry(one: PfName) -> str:
    ranges = ",".join(f"{part.start}-{part.stop - 1}" for part in one.indexes or ())
    return one.name if one.indexes is None else f"{one.name}#{ranges}"


def _instead(name: str, there: Sequence[Device]) -> str:
    if name in ("pf_names", "pf_addresses"):
        found = _of_pfs(there, "pf_netdev" if name == "pf_names" else "pf")
    else:
        _, values = _LISTS.get(name, ("", lambda _: ()))
        found = sorted({text for device in there for text in values(device) if text})
    return f"; there are {', '.join(found[:_SHOWN])}{' and more' * (len(found) > _SHOWN)}" if found else ""


def _of_pfs(there: Sequence[Device], name: str) -> list[str]:
    """Each PF with the lowest and the highest index of its VFs or SFs: "rail0#0-3"."""
    numbers = defaultdict[str, list[int]](list)
    for device in there:
        if device.kind in (Kind.VF, Kind.SF) and getattr(device, name):
            numbers[getattr(device, name)].append(device.index)
    return [f"{pf}#{min(found)}-{max(found)}" for pf, found in sorted(numbers.items())]
