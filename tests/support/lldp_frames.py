"""LLDP frames as switches send them, made from the standard (IEEE 802.1AB-2016); shares no code with the product."""

import socket
from contextlib import closing
from typing import Final

LLDP: Final = 0x88CC
NEAREST_BRIDGE: Final = "0180c200000e"
SOURCE: Final = "444ca8010203"


def tlv(kind: int, value: bytes) -> bytes:
    """A TLV: seven bits of type, nine of length."""
    return (kind << 9 | len(value)).to_bytes(2) + value


def chassis(mac: str) -> bytes:
    return tlv(1, b"\x04" + bytes.fromhex(mac))


def port(name: str, subtype: int = 5) -> bytes:
    """A Port ID; subtype 5 is an interface's name, 7 a local one."""
    return tlv(2, bytes([subtype]) + name.encode())


def ttl(seconds: int = 120) -> bytes:
    return tlv(3, seconds.to_bytes(2))


def vlan(number: int) -> bytes:
    return tlv(127, bytes.fromhex("0080c201") + number.to_bytes(2))


def max_frame(size: int) -> bytes:
    return tlv(127, bytes.fromhex("00120f04") + size.to_bytes(2))


def framed(*tlvs: bytes, to: str = NEAREST_BRIDGE) -> bytes:
    """A frame of these TLVs and the end, padded to Ethernet's least length."""
    data = bytes.fromhex(to + SOURCE) + LLDP.to_bytes(2) + b"".join(tlvs) + tlv(0, b"")
    return data.ljust(60, b"\0")


def announced(leaf: str, name: str, *more: bytes, seconds: int = 120) -> bytes:
    """What port ``name`` of switch ``leaf`` announces."""
    mac = f"{sum(leaf.encode()) % 256:012x}"
    return framed(chassis(mac), port(name), ttl(seconds), tlv(5, leaf.encode()), *more)


_CAPABILITIES: Final = tlv(7, bytes.fromhex("00140014"))
_MANAGEMENT: Final = tlv(8, bytes.fromhex("0501c0000201020000000000"))
_MAC_PHY: Final = tlv(127, bytes.fromhex("00120f01030000001e"))
_AGGREGATION: Final = tlv(127, bytes.fromhex("00120f030100000000"))
# The order, the subtypes and the texts of each maker's frames.
VENDORS: Final = {
    "nx-os": framed(
        chassis("00deadbe0031"), port("Ethernet1/31"), ttl(), tlv(4, b"node7 rail2"), tlv(5, b"leaf-2.dc1"),
        tlv(6, b"Cisco Nexus Operating System (NX-OS) Software 10.4(3)"), _CAPABILITIES, _MANAGEMENT, vlan(102),
        max_frame(9216), tlv(127, bytes.fromhex("000142010100")),
    ),
    "eos": framed(
        chassis("444ca8aabbcc"), port("Ethernet5/1"), ttl(), tlv(4, b""), tlv(5, b"leaf2"),
        tlv(6, b"Arista Networks EOS version 4.32.1F running on an Arista Networks DCS-7060X6-64PE"), _CAPABILITIES,
        _MANAGEMENT, vlan(0), _AGGREGATION, max_frame(9236),
    ),
    "sonic": framed(
        chassis("e89e49010203"), port("etp5a", 7), ttl(), tlv(5, b"sonic-leaf2"),
        tlv(6, b"SONiC Software Version: SONiC.202405 - HwSku: Mellanox-SN5600"), _MANAGEMENT, _CAPABILITIES,
        tlv(4, b"Ethernet32"), _MAC_PHY,
    ),
    "cumulus": framed(
        chassis("9c05915a5b5c"), port("swp5s0"), ttl(), tlv(5, b"cumulus2"), tlv(6, b"Cumulus Linux version 5.9.2"),
        _CAPABILITIES, _MANAGEMENT, tlv(4, b"swp5s0"), _AGGREGATION, _MAC_PHY, vlan(1), max_frame(9216),
    ),
    "junos": framed(
        chassis("f4b52f112233"), port("531", 7), ttl(), tlv(5, b"qfx-leaf2"),
        tlv(6, b"Juniper Networks, Inc. qfx5240-64od, Junos OS Evolved 23.4R2"), _CAPABILITIES, _MANAGEMENT,
        tlv(4, b"et-0/0/5:0"), _MAC_PHY, _AGGREGATION, max_frame(9216), vlan(100), tlv(127, b"\x00\x90\x69\x01ABC123"),
    ),
}  # fmt: skip


def send(interface: str, *frames: bytes) -> None:
    """Send the frames out of an interface of this thread's namespace."""
    with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as sock:
        sock.bind((interface, 0))
        for frame in frames:
            sock.send(frame)
