"""A new address on a link: announce it to the neighbors, after IPv6's duplicate address detection has ended.

Announcements stop neighbors from using an earlier pod's MAC.  Pure functions build the frames; a packet socket sends
them.

The functions shorten detection (RFC 4862; net/ipv6/addrconf.c) for a moment, and wait for its end.  The kernel waits
for up to router_solicitation_delay, then solicits dad_transmits times, and listens for retrans_time_ms after each.
With its defaults, that takes one to two seconds.  It begins when the link can send.  The journal does not hold the two
settings.  They belong to the interface, and the kernel drops them when the interface goes or moves to another
namespace.  Undoing an attachment does one of the two.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from threading import Thread
from typing import Final

from base.kernel import budget, netlink, sysctl
from base.kernel.addresses import IFA_F_DADFAILED, IFA_F_TENTATIVE, RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR, parse_address
from base.kernel.links import LINK, RTM_DELLINK, RTM_NEWLINK, Link, pack_mac, parse_link
from base.kernel.netlink import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK, messages
from base.kernel.netns import run_in
from base.kernel.rtnl import RTNLGRP_LINK, Rtnl

BROADCAST = b"\xff" * 6
ALL_NODES_MAC = bytes.fromhex("333300000001")
ETH_P_ARP, ETH_P_IPV6, ICMPV6 = 0x0806, 0x86DD, 58
_ALL_NODES = IPv6Address("ff02::1").packed
_OVERRIDE = 0x20000000
_ICMPV6_NA = 136
RTNLGRP_IPV6_IFADDR: Final = 9
_UNDECIDED: Final = IFA_F_TENTATIVE | IFA_F_DADFAILED
_MOMENT: Final = 0.05  # seconds
_SILENCE: Final = 0.5  # seconds; ten times the length of detection with ADD's settings


def gratuitous_arp(mac: str, address: IPv4Address) -> bytes:
    """An ARP announcement as a frame: a request with one address as sender and target (RFC 5227, section 3)."""
    source = pack_mac(mac)
    head = BROADCAST + source + struct.pack("!H", ETH_P_ARP)
    return head + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + source + address.packed + bytes(6) + address.packed


def unsolicited_na(mac: str, address: IPv6Address) -> bytes:
    """An unsolicited neighbor advertisement as a frame (RFC 4861, section 7.2.6).  It overrides the neighbors' caches,
    so it must not be sent before duplicate address detection has ended (RFC 4429, section 3.3)."""
    option = b"\x02\x01" + pack_mac(mac)  # target link-layer address
    message = struct.pack("!BBHI", _ICMPV6_NA, 0, 0, _OVERRIDE) + address.packed + option
    return icmpv6(mac, ALL_NODES_MAC, address.packed, _ALL_NODES, message)


def icmpv6(mac: str, to_mac: bytes, source: bytes, destination: bytes, message: bytes) -> bytes:
    """An ICMPv6 message as a frame, with its checksum, and with hop limit 255: no router has forwarded it.  ``to_mac``,
    ``source`` and ``destination`` are packed addresses."""
    pseudo = source + destination + struct.pack("!II", len(message), ICMPV6)
    message = message[:2] + struct.pack("!H", _checksum(pseudo + message)) + message[4:]
    ip = struct.pack("!IHBB", 6 << 28, len(message), ICMPV6, 255) + source + destination
    return to_mac + pack_mac(mac) + struct.pack("!H", ETH_P_IPV6) + ip + message


def send(ns_fd: int, ifname: str, frames: Sequence[bytes]) -> None:
    """Send the frames through an interface of the namespace.  Raises OSError."""
    if not frames:
        return
    sock = run_in(ns_fd, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    try:
        for frame in frames:
            sock.sendto(frame, (ifname, 0))
    finally:
        # Closing a packet socket waits some 20 ms for receivers that may still use it (packet_release).
        try:
            Thread(target=sock.close, name="announced").start()
        except RuntimeError:  # no thread can be started
            sock.close()


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@contextmanager
def quick_detection(ns_fd: int, ifname: str, milliseconds: int) -> Iterator[bool]:
    """Let detection on the interface begin at once, and listen for ``milliseconds`` after each solicitation.

    Yields false if the namespace lacks the settings: before Linux 5.17, a namespace of another user namespace has none
    for neighbors.

    Both settings are restored at the end, unless another program has changed them: a router may advertise a
    retrans_time_ms.  After an exception they stay, because the interface is then removed.  Raises OSError.
    """
    begin, listening = f"ipv6/conf/{ifname}/router_solicitation_delay", f"ipv6/neigh/{ifname}/retrans_time_ms"
    exchanged: dict[str, tuple[str, str]] | None = None
    with suppress(FileNotFoundError):
        exchanged = sysctl.exchange(ns_fd, {begin: "0", listening: str(milliseconds)})
    yield exchanged is not None
    if exchanged:
        sysctl.put_back(ns_fd, exchanged)


class Detection:
    """What the kernel has announced of one link, and of detection for its addresses, since ``listen_to_detection``."""

    def __init__(self, inside: Rtnl, index: int, addresses: Sequence[IPv6Address]) -> None:
        self._inside, self._index = inside, index
        self._link: Link | None = None
        self._flags = dict.fromkeys(addresses, IFA_F_TENTATIVE)
        # The interface's addresses that another host has, even if the kernel has removed them since (accept_dad 2).
        self.failed: list[IPv6Address] = []
        self.sock = self._open()

    @property
    def tentative(self) -> list[IPv6Address]:
        """The addresses for which detection has not ended."""
        return [address for address, flags in self._flags.items() if flags & _UNDECIDED == IFA_F_TENTATIVE]

    def link_when_ready(self, seconds: float) -> Link | None:
        """The link, as soon as it can send; None if it cannot within ``seconds``.  Raises OSError."""
        if not self._until(self._is_ready, seconds) and self._link is None:
            self._link = self._inside.link(index=self._index)  # it was up before, so nothing was announced
        return self._link if self._is_ready() else None

    def until_ended(self, seconds: float) -> bool:
        """Wait until detection has ended for all addresses, or found a duplicate; return false after ``seconds``.
        Raises OSError."""
        ended = self._until(lambda: bool(self.failed) or not self.tentative, seconds)
        if self.failed:
            self._until(lambda: not self.tentative, _MOMENT)  # a host with one of our addresses may have more of them
        return ended

    def ask(self) -> None:
        """Request all IPv6 addresses of the interface.  For the link-local one, the kernel announces only the end of
        detection.  Raises OSError."""
        found = list(map(parse_address, self._inside.dump(RTM_GETADDR, struct.pack("=B7x", socket.AF_INET6))))
        self._flags.clear()
        for index, address, flags in found:
            if index == self._index:
                self._note(address, flags)

    def _note(self, address: IPv6Address, flags: int) -> None:
        self._flags[address] = flags
        if flags & IFA_F_DADFAILED and address not in self.failed:
            self.failed.append(address)

    def _open(self) -> socket.socket:
        sock = netlink.open_beside(self._inside.sock)
        for group in (RTNLGRP_LINK, RTNLGRP_IPV6_IFADDR):
            sock.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        return sock

    def _is_ready(self) -> bool:
        return self._link is not None and self._link.running

    def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Process announcements until ``reached``; return false if ``seconds`` pass first, or if the budget is spent.
        The seconds restart after a wait for the kernel's lock of links, because detection waits for it too."""
        deadline = time.monotonic() + seconds
        while not reached():
            try:
                for data in netlink.receive(self.sock, seconds=min(deadline - time.monotonic(), _SILENCE)):
                    self._take(data)
                    if reached():
                        return True
                before = budget.kernel_left()
                self._inside.link(index=self._index)
                if budget.kernel_left() < before:
                    deadline = time.monotonic() + seconds
            except netlink.AnswerLost as e:
                if e.errno == errno.ETIMEDOUT:
                    return False
                # The kernel drops announcements when the socket is full.
                self.sock.close()
                self.sock = self._open()
                self._link = self._inside.link(index=self._index)
                self.ask()
            if time.monotonic() >= deadline:
                return reached()
        return True

    def _take(self, data: bytes) -> None:
        for kind, _, _, body in messages(data):
            if kind in (RTM_NEWLINK, RTM_DELLINK):
                family, index = LINK.unpack_from(body)[::2][:2]
                if (family, index) == (socket.AF_UNSPEC, self._index):
                    self._link = parse_link(body) if kind == RTM_NEWLINK else None
                    if self._link is None:
                        self._flags.clear()
            elif kind in (RTM_NEWADDR, RTM_DELADDR):
                index, address, flags = parse_address(body)
                if index == self._index and kind == RTM_NEWADDR:
                    self._note(address, flags)
                elif index == self._index:
                    self._flags.pop(address, None)


@contextmanager
def listen_to_detection(inside: Rtnl, index: int, addresses: Sequence[IPv6Address]) -> Iterator[Detection]:
    """Listen, in the socket's namespace, to announcements of the link with that index and of its IPv6 addresses.

    Enter it before adding the addresses.  It uses a separate socket, because replies and announcements would mix on the
    given one.  Raises OSError.
    """
    detection = Detection(inside, index, addresses)
    try:
        yield detection
    finally:
        detection.sock.close()
