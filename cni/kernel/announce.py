"""Announce an address on a link, so that no neighbour goes on using the MAC of an earlier pod.

Pure functions make the frames; a packet socket sends them.
"""

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from threading import Thread

from cni.kernel.links import pack_mac
from cni.kernel.netns import run_in

BROADCAST = b"\xff" * 6
ALL_NODES_MAC = bytes.fromhex("333300000001")
ETH_P_ARP, ETH_P_IPV6, ICMPV6 = 0x0806, 0x86DD, 58
_ALL_NODES = IPv6Address("ff02::1").packed
_OVERRIDE = 0x20000000
_ICMPV6_NA = 136


def gratuitous_arp(mac: str, address: IPv4Address) -> bytes:
    """An ARP announcement as a frame: a request with the same sender's and target address (RFC 5227, section 3)."""
    source = pack_mac(mac)
    head = BROADCAST + source + struct.pack("!H", ETH_P_ARP)
    return head + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + source + address.packed + bytes(6) + address.packed


def unsolicited_na(mac: str, address: IPv6Address) -> bytes:
    """An unsolicited neighbour advertisement as a frame (RFC 4861, section 7.2.6).

    It overrides what neighbours know, so it must not be sent before duplicate address detection has ended (RFC 4429,
    section 3.3).
    """
    option = b"\x02\x01" + pack_mac(mac)  # target link-layer address
    message = struct.pack("!BBHI", _ICMPV6_NA, 0, 0, _OVERRIDE) + address.packed + option
    return icmpv6(mac, ALL_NODES_MAC, address.packed, _ALL_NODES, message)


def icmpv6(mac: str, to_mac: bytes, source: bytes, destination: bytes, message: bytes) -> bytes:
    """An ICMPv6 message as a frame, with its checksum filled in, and a hop limit of 255, which no router's copy has.

    ``to_mac``, ``source`` and ``destination`` are packed addresses.
    """
    pseudo = source + destination + struct.pack("!II", len(message), ICMPV6)
    message = message[:2] + struct.pack("!H", _checksum(pseudo + message)) + message[4:]
    ip = struct.pack("!IHBB", 6 << 28, len(message), ICMPV6, 255) + source + destination
    return to_mac + pack_mac(mac) + struct.pack("!H", ETH_P_IPV6) + ip + message


def send(ns_fd: int, ifname: str, frames: Sequence[bytes]) -> None:
    """Send the frames by an interface of the namespace.  Raises OSError."""
    if not frames:
        return
    sock = run_in(ns_fd, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        for frame in frames:
            sock.sendto(frame, (ifname, 0))
    finally:
        # Closing a packet socket waits some 20 ms for receivers that may still use it (packet_release).
        Thread(target=sock.close, name="announced").start()


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
