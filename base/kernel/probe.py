"""Probe whether another host on the link has an address.  For IPv4: ARP probes (RFC 5227).  For IPv6: the messages of
duplicate address detection (RFC 4862, section 5.4).

Pure functions build and decode the frames.  The caller decides how long to listen.
"""

import select
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from base.kernel.links import Link, pack_mac
from base.kernel.neighbors import ALL_NODES_MAC, BROADCAST, ETH_P_ARP, ETH_P_IPV6, ICMPV6, icmpv6
from base.kernel.netns import run_in
from base.protocol.result import Address

PROBES: Final = 3  # RFC 5227's PROBE_NUM

_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET_IPV4: Final = (1, 0x0800, 6, 4)
_REQUEST, _REPLY = 1, 2
_NS, _NA = 135, 136
_UNSPECIFIED: Final = bytes(16)
# Frames: more than a socket's buffer holds.
_QUEUE: Final = 1000
_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_MULTICAST = 263, 1, 0


def arp_probe(mac: str, address: IPv4Address) -> bytes:
    """An ARP probe as a frame (RFC 5227, section 2.1.1).  It has no sender address, so no neighbor caches one."""
    source = pack_mac(mac)
    arp = _ARP.pack(*_ETHERNET_IPV4, _REQUEST, source, bytes(4), bytes(6), address.packed)
    return BROADCAST + source + struct.pack("!H", ETH_P_ARP) + arp


def dad_solicitation(mac: str, address: IPv6Address) -> bytes:
    """A neighbor solicitation for duplicate address detection, as a frame.  Its source is the unspecified
    address, its destination the address's solicited-node group (RFC 4862, section 5.4.2)."""
    # RFC 4861, section 4.3, forbids the option with the source's link-layer address here.
    message = struct.pack("!BBHI", _NS, 0, 0, 0) + address.packed
    group = IPv6Address("ff02::1:ff00:0").packed[:13] + address.packed[13:]
    return icmpv6(mac, solicited_node_mac(address), _UNSPECIFIED, group, message)


def solicited_node_mac(address: IPv6Address) -> bytes:
    """The MAC of the address's solicited-node group (RFC 4291, section 2.7.1; RFC 2464, section 7)."""
    return bytes.fromhex("3333ff") + address.packed[13:]


def parse_claim(frame: bytes, mac: str) -> tuple[Address, str] | None:
    """The address that another host has or is about to use, according to a frame, and that host's MAC; None for other
    frames.  ``mac`` is ours.  A NIC may return our own multicast to us, as igb does: our own probe is not a claim."""
    ours, sender = pack_mac(mac), frame[6:12]
    match int.from_bytes(frame[12:14]):
        case 0x0806 if len(frame) >= 14 + _ARP.size:
            *kind, operation, hardware, source, _, target = _ARP.unpack_from(frame, 14)
            if tuple(kind) != _ETHERNET_IPV4 or operation not in (_REQUEST, _REPLY):
                return None
            if any(source):
                return IPv4Address(source), hardware.hex(":")
            return (IPv4Address(target), hardware.hex(":")) if operation == _REQUEST and hardware != ours else None
        # IPv6, with ICMPv6 as its first header, sent on this link: hop limit 255 (RFC 4861, section 7.1).
        case 0x86DD if len(frame) >= 78 and frame[14] >> 4 == 6 and frame[20] == ICMPV6 and frame[21] == 255:
            source, kind_of, target = frame[22:38], frame[54], IPv6Address(frame[62:78])
            if kind_of == _NA or (kind_of == _NS and source == _UNSPECIFIED and sender != ours):
                return target, sender.hex(":")
    return None


def find_owners(ns_fd: int, link: Link, addresses: Collection[Address], seconds: float) -> dict[Address, str]:
    """The addresses that other hosts on the link have: address -> MAC.  Raises OSError.

    It sends PROBES probes for each address and listens for ``seconds``, or until each has an owner.  ``link`` is the
    interface in the namespace ``ns_fd``; it must be up, Ethernet, and use ARP.
    """
    found = dict[Address, str]()
    with ExitStack() as stack:
        poll, listening = select.poll(), dict[int, socket.socket]()
        for version, protocol in ((4, ETH_P_ARP), (6, ETH_P_IPV6)):
            if some := [address for address in addresses if address.version == version]:
                sock = stack.enter_context(_listen(ns_fd, link, protocol, some))
                poll.register(sock, select.POLLIN)
                listening[version] = sock
        by_fd = {sock.fileno(): sock for sock in listening.values()}
        began = time.monotonic()
        for n in range(1, PROBES + 1):
            for address in set(addresses) - found.keys():
                probe = arp_probe(link.mac, address) if address.version == 4 else dad_solicitation(link.mac, address)
                listening[address.version].send(probe)
            for frame in _receive(poll, by_fd, began + n * seconds / PROBES):
                claim = parse_claim(frame, link.mac)
                if claim and claim[0] in addresses:
                    found.setdefault(*claim)
                if found.keys() == set(addresses):
                    return found
    return found


def _receive(poll: select.poll, by_fd: Mapping[int, socket.socket], until: float) -> Iterator[bytes]:
    """Yield frames until that time, then the frames that already wait: a busy machine can run this process too late."""
    late = 0
    while late < _QUEUE:
        rest = max(until - time.monotonic(), 0)
        late += not rest
        ready = poll.poll(rest * 1000)
        if not ready:
            return
        for fd, _ in ready:
            yield by_fd[fd].recv(2048)


def _listen(ns_fd: int, link: Link, protocol: int, addresses: Collection[Address]) -> socket.socket:
    # Protocol 0 until bind; otherwise the socket would receive from every interface of the namespace.
    sock = run_in(ns_fd, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        sock.bind((link.name, protocol))
        # Answers go to all nodes, and other hosts' probes to the address's solicited-node group.  A macvlan forwards
        # only joined groups.  The kernel has not joined the second, nor the first if the pod has no IPv6.
        for group in {g for a in addresses if a.version == 6 for g in (ALL_NODES_MAC, solicited_node_mac(a))}:
            request = struct.pack("=iHH8s", link.index, _PACKET_MR_MULTICAST, len(group), group)
            sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, request)
    except BaseException:
        sock.close()
        raise
    return sock
