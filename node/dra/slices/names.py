"""Names of pools, devices and ResourceSlices; pure.

The API server limits their characters and lengths (kubernetes: pkg/apis/resource/validation).  A name depends only on
the node, the device and the resource, so an allocated claim names the same device after a restart.
"""

import hashlib
import re
from typing import Final

from hardware.model import Device, Kind
from node.dra import DRIVER
from node.model import Resource

_LABEL: Final = 63  # characters of a DNS label
_NAME: Final = 253  # characters of a pool's or an object's name
_NUMBER: Final = len("-9999")  # of a pool's slice
_VALUE: Final = 64  # bytes of an attribute's text
_GROUPS: Final = ("all-", "if-", "pci-")  # the beginnings of a pool's name, after the node's
_UNFIT: Final = re.compile("[^a-z0-9]")


def pool(node: str, resource: Resource, device: Device) -> str:
    """The pool of a resource's device: one for each PF with its VFs and SFs, each software interface, and each pooled
    resource.  A change of one pool leaves the others' devices available."""
    return of_node(node, _group(resource, device))


def of_node(node: str, group: str) -> str:
    """The name of a node's pool for a group of devices."""
    return _joined(node, "/", group)


def device(resource: Resource, device: Device) -> str:
    """The device's name in its pool.

    Several resources may share one device.  So a shared device's name ends with the resource's; a pooled one has no
    other.
    """
    if resource.pooled:
        return label(resource.full_name)
    one = _bus(device)
    return label(f"{one}-{resource.name}") if resource.kind in ("shared", "master") else one


def twin(resource: Resource, device: Device) -> str:
    """The device's name if its pool has another device of the usual name: the prefixes of two resources differ."""
    return label(f"{_bus(device)}/{resource.full_name}")


def slice_name(node: str, pool: str, number: int) -> str:
    """The name of a pool's ResourceSlice with this number."""
    return f"{stem(node, pool)}-{number}"


def stem(node: str, pool: str) -> str:
    """The common part of the names of a pool's ResourceSlices."""
    return _joined(node, "-", f"{DRIVER}-{pool.rpartition('/')[2]}", _NAME - _NUMBER)


def stem_of(slice_name: str) -> str:
    """The common part of the name of a ResourceSlice, and those of its pool."""
    return slice_name.rpartition("-")[0]


def is_ours(node: str, name: str) -> bool:
    """Whether hpn node gives that name to a ResourceSlice of the node."""
    stem, _, number = name.rpartition("-")
    group = stem.rpartition(f"-{DRIVER}-")[2]
    is_ours = group.startswith(_GROUPS) and number.isdecimal()
    return is_ours and name == slice_name(node, group, int(number))


def label(text: str) -> str:
    """The text as a DNS label: itself if it is one; otherwise similar, with a digest, so that no other text has it."""
    plain = _UNFIT.sub("-", text.lower())
    if plain == text and len(text) <= _LABEL and text.strip("-") == text != "":
        return text
    short = plain.strip("-")[: _LABEL - 9].rstrip("-") or "x"
    return f"{short}-{_digest(text)}"


def text(value: str) -> str:
    """An attribute's text: valid UTF-8, cut to the API server's limit."""
    valid = value.encode(errors="surrogateescape").decode(errors="replace")
    return valid.encode()[:_VALUE].decode(errors="ignore")


def _group(resource: Resource, device: Device) -> str:
    if resource.pooled:
        return f"all-{label(resource.full_name)}"
    if device.kind is Kind.NETDEV:
        return f"if-{label(device.id)}"
    return f"pci-{_UNFIT.sub('-', device.pf or device.id)}"


def _bus(device: Device) -> str:
    """A device's id as a label.  The kernel gives bus addresses, and no two of them differ in their punctuation only.
    Anyone who may rename an interface chooses its name."""
    return label(device.id) if device.kind is Kind.NETDEV else _UNFIT.sub("-", device.id)


def _joined(node: str, between: str, rest: str, most: int = _NAME) -> str:
    whole = f"{node}{between}{rest}"
    if len(whole) <= most:
        return whole
    short = node[: most - len(between) - len(rest) - 9].rstrip("-.")
    return f"{short}-{_digest(node)}{between}{rest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
