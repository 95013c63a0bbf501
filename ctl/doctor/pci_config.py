"""A PCI function's configuration space (PCI Express Base Specification, section 7); pure.

Without CAP_SYS_ADMIN the kernel gives its first 64 bytes only, which have none of this.
"""

import struct
from collections.abc import Iterator
from typing import Final

_STATUS, _HAS_LIST, _LIST = 0x06, 0x10, 0x34
_EXPRESS: Final = 0x10  # capability: PCI Express
_DEVICE_CONTROL: Final = 8
_RELAXED: Final = 1 << 4
_EXTENDED: Final = 0x100
_ACS: Final = 0x0D  # extended capability: Access Control Services
_ACS_CONTROL: Final = 6
_ATS: Final = 0x0F  # extended capability: Address Translation Services
_ATS_CONTROL: Final = 6
_ATS_ENABLED: Final = 1 << 15
# P2P Request Redirect, P2P Completion Redirect, Upstream Forwarding does nothing by itself.
_REDIRECTS: Final = 1 << 2 | 1 << 3


def device_control(space: bytes) -> tuple[bool, int] | None:
    """Of the register Device Control: whether writes may be ordered freely, and the largest read request in bytes.
    None where the space does not have it."""
    for at, kind in _capabilities(space):
        if kind == _EXPRESS and (control := _word(space, at + _DEVICE_CONTROL)) is not None:
            return bool(control & _RELAXED), 128 << (control >> 12 & 7)
    return None


def redirects(space: bytes) -> bool:
    """Whether ACS sends requests between devices below this bridge by way of the root complex."""
    return bool(_control(space, _ACS, _ACS_CONTROL) & _REDIRECTS)


def translates(space: bytes) -> bool | None:
    """Whether the function asks the IOMMU for addresses beforehand (ATS is enabled).  None where the space ends before
    that is said."""
    return bool(_control(space, _ATS, _ATS_CONTROL) & _ATS_ENABLED) if len(space) > _EXTENDED else None


def _control(space: bytes, kind: int, offset: int) -> int:
    """That register of an extended capability; 0 without the capability."""
    return next((_word(space, at + offset) or 0 for at, one in _extended(space) if one == kind), 0)


def _capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    """The offset and the ID of each."""
    if not (_word(space, _STATUS) or 0) & _HAS_LIST:
        return
    at, seen = (_word(space, _LIST) or 0) & 0xFC, set[int]()
    while at >= 0x40 and at not in seen and (head := _word(space, at)) is not None:
        seen.add(at)
        yield at, head & 0xFF
        at = head >> 8 & 0xFC


def _extended(space: bytes) -> Iterator[tuple[int, int]]:
    at, seen = _EXTENDED, set[int]()
    while at >= _EXTENDED and at not in seen and at + 4 <= len(space):
        seen.add(at)
        (head,) = struct.unpack_from("<I", space, at)
        yield at, head & 0xFFFF
        at = head >> 20 & 0xFFC


def _word(space: bytes, at: int) -> int | None:
    """Sixteen bits; None where the space ends before."""
    return int(struct.unpack_from("<H", space, at)[0]) if at + 2 <= len(space) else None
