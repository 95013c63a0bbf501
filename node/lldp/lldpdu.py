"""An LLDPDU as a value; pure (IEEE 802.1AB-2016, clauses 8 and 9.2.7.7; 802.1Q-2018, annex D; 802.3.1).

Anyone at the other end of the cable writes these bytes.  A frame that the standard discards is refused as a whole.
"""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from hardware.neighbors import TEXT_MOST, Neighbor

GROUPS: Final = tuple(bytes.fromhex(f"0180c20000{last}") for last in ("0e", "03", "00"))
"""The destinations of LLDPDUs: nearest bridge, nearest non-TPMR bridge, nearest customer bridge."""
ETHERTYPE: Final = 0x88CC
MOST: Final = 1514
"""Bytes of a frame with its Ethernet header, without its checksum."""
_HEADER: Final = 14
_END, _CHASSIS, _PORT, _TTL, _PORT_DESCRIPTION, _SYSTEM_NAME, _OF_ORGANIZATION = 0, 1, 2, 3, 4, 5, 127
_MANDATORY: Final = (_CHASSIS, _PORT, _TTL)
_PVID: Final = bytes.fromhex("0080c201")  # of 802.1: the port's VLAN, 0 for none
_MAX_FRAME: Final = bytes.fromhex("00120f04")  # of 802.3: bytes
_NO_ID: Final = "is shorter than a subtype and one byte, or longer than 255 bytes"
# By subtype.  The words are those of lldpd.
_CHASSIS_KINDS: Final = {1: "component", 2: "ifalias", 3: "port", 4: "mac", 5: "ip", 6: "ifname", 7: "local"}
_PORT_KINDS: Final = {1: "ifalias", 2: "component", 3: "mac", 4: "ip", 5: "ifname", 6: "circuit", 7: "local"}


class Malformed(Exception):
    """The frame is not an LLDPDU that the standard accepts; the message names the TLV and its fault, and has no byte of
    the frame."""


def read(frame: bytes) -> Neighbor:
    """The neighbor that a frame with its Ethernet header names.  Raises only Malformed."""
    if len(frame) > MOST:
        raise Malformed(f"it is longer than {MOST} bytes")
    if frame[:6] not in GROUPS or frame[12:_HEADER] != ETHERTYPE.to_bytes(2):
        raise Malformed("its destination or its EtherType is not LLDP's")
    tlvs = [*_tlvs(frame[_HEADER:])]
    kinds = [kind for kind, _ in tlvs]
    if tuple(kinds[:3]) != _MANDATORY:
        raise Malformed("it does not begin with Chassis ID, Port ID and Time To Live")
    if not set(_MANDATORY).isdisjoint(kinds[3:]):
        raise Malformed("a mandatory TLV is there twice")
    chassis, port, ttl = (value for _, value in tlvs[:3])
    if len(ttl) < 2:
        raise Malformed("TLV 3 (Time To Live) is shorter than two bytes")
    more = dict(reversed(tlvs[3:]))  # of an optional TLV the first one counts
    organization = _of_organizations(value for kind, value in tlvs if kind == _OF_ORGANIZATION)
    chassis_kind, chassis_id = _identity(chassis, _CHASSIS_KINDS, "TLV 1 (Chassis ID)")
    port_kind, port_id = _identity(port, _PORT_KINDS, "TLV 2 (Port ID)")
    return Neighbor(
        chassis_kind=chassis_kind,
        chassis=chassis_id,
        name=_text(more.get(_SYSTEM_NAME, b"")),
        port_kind=port_kind,
        port=port_id,
        description=_text(more.get(_PORT_DESCRIPTION, b"")),
        ttl=int.from_bytes(ttl[:2]),
        vlan=organization.get(_PVID, 0) & 0xFFF,
        max_frame=organization.get(_MAX_FRAME, 0),
    )


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and value of each TLV before the end.  What follows End Of LLDPDU is padding."""
    at = 0
    while at < len(data):
        if len(data) - at < 2:
            raise Malformed("its last TLV has no length")
        head = int.from_bytes(data[at : at + 2])
        kind, length = head >> 9, head & 0x1FF
        if len(data) - at - 2 < length:
            raise Malformed(f"TLV {kind} is longer than the rest of the frame")
        if kind == _END:
            if length:
                raise Malformed("TLV 0 (End Of LLDPDU) is not empty")
            return
        yield kind, data[at + 2 : at + 2 + length]
        at += 2 + length


def _of_organizations(values: Iterator[bytes]) -> dict[bytes, int]:
    """The numbers of the two TLVs that are read, by their organization and subtype; the first one counts."""
    found = dict[bytes, int]()
    for value in values:
        if value[:4] in (_PVID, _MAX_FRAME) and len(value) == 6:
            found.setdefault(value[:4], int.from_bytes(value[4:]))
    return found


def _identity(value: bytes, kinds: Mapping[int, str], what: str) -> tuple[str, str]:
    """The kind and the text of an identity."""
    if not 2 <= len(value) <= TEXT_MOST + 1:
        raise Malformed(f"{what} {_NO_ID}")
    if value[0] not in kinds:
        raise Malformed(f"{what} has a subtype that the standard reserves")
    kind, content = kinds[value[0]], value[1:]
    made = _FORMS.get(kind, _text)(content)
    if not made:
        raise Malformed(f"{what} is not a valid {kind}")
    return kind, made


def _mac(value: bytes) -> str:
    return value.hex(":") if len(value) == 6 else ""


def _ip(value: bytes) -> str:
    """A network address, after its family's number (IANA, "Address Family Numbers")."""
    match value[0], len(value) - 1:
        case 1, 4:
            return f"{IPv4Address(value[1:])}"
        case 2, 16:
            return f"{IPv6Address(value[1:])}"
        case _:
            return value.hex()[:TEXT_MOST]


def _text(value: bytes) -> str:
    """The text without padding, which the standard limits; a character that cannot be printed becomes "?"."""
    text = value[:TEXT_MOST].decode(errors="replace").strip("\0 \t\r\n")
    return "".join(one if one.isprintable() and one != "\ufffd" else "?" for one in text)


_FORMS: Final[Mapping[str, Callable[[bytes], str]]] = {"mac": _mac, "ip": _ip}
