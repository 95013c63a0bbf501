"""Whom a certificate names, and until when it counts.  Pure: it is read here, and nothing of it is believed."""

import binascii
import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# The first certificate of a PEM file (RFC 7468, section 5).
_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
# Tags and the object identifier 2.5.4.3 of a common name, in DER (X.690; X.520, 6.2.2).
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_COMMON_NAME: Final = b"\x55\x04\x03"


@dataclass(frozen=True)
class Certificate:
    """``name`` is the subject's common name, empty if it has none; ``until`` is in seconds since 1970."""

    name: str
    until: float


def first(pem: bytes) -> Certificate | None:
    """The first certificate of a PEM file (RFC 5280, section 4.1); None if there is none that can be read."""
    found = _PEM.search(pem)
    try:
        return _read(binascii.a2b_base64(found[1])) if found else None
    except (ValueError, IndexError):
        return None


def _read(data: bytes) -> Certificate:
    """Raises ValueError, IndexError."""
    [certificate, *_] = _elements(data)
    [signed, *_] = _elements(certificate[1])
    fields = [element for element in _elements(signed[1]) if element[0] != _VERSION]
    validity, subject = fields[3][1], fields[4][1]
    return Certificate(_common_name(subject), _time(*[*_elements(validity)][1]))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each element's tag and content.  Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            more = length & 0x7F
            length = int.from_bytes(data[at : at + more], "big")
            at += more
        if at + length > len(data):
            raise ValueError("an element ends behind the data")
        yield tag, data[at : at + length]
        at += length


def _common_name(subject: bytes) -> str:
    for _, names in _elements(subject):
        for _, pair in _elements(names):
            [(_, kind), (_, text), *_] = _elements(pair)
            if kind == _COMMON_NAME:
                return text.decode(errors="replace")
    return ""


def _time(tag: int, text: bytes) -> float:
    """Raises ValueError."""
    digits = text.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:  # RFC 5280, section 4.1.2.5.1
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    year, *rest = int(digits[:4]), *(int(digits[at : at + 2]) for at in range(4, 14, 2))
    return float(timegm((year, *rest)))
