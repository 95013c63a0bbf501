"""IPv6 duplicate address detection (RFC 4862; net/ipv6/addrconf.c): made short for a moment, and its end heard.

The kernel waits for up to router_solicitation_delay, then solicits dad_transmits times, and listens for retrans_time_ms
after each.  With its defaults that is one to two seconds.  It begins when the link can send.

Nothing is written to the journal for the two settings.  They are the interface's, and the kernel forgets them when the
interface goes or moves to another namespace.  An attachment that is undone does one of the two.
"""

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address
from typing import Final

from cni.kernel import budget, netlink, sysctl
from cni.kernel.addresses import (
    IFA_F_DADFAILED,
    IFA_F_TENTATIVE,
    RTM_DELADDR,
    RTM_GETADDR,
    RTM_NEWADDR,
    parse_address,
)
from cni.kernel.links import LINK, RTM_DELLINK, RTM_NEWLINK, Link, parse_link
from cni.kernel.netlink import SOL_NETLINK, messages
from cni.kernel.rtnl import Rtnl

NETLINK_ADD_MEMBERSHIP: Final = 1
RTNLGRP_LINK, RTNLGRP_IPV6_IFADDR = 1, 9
_UNDECIDED: Final = IFA_F_TENTATIVE | IFA_F_DADFAILED
_MOMENT: Final = 0.05  # seconds
_SILENCE: Final = 0.5  # seconds; with the times that ADD sets, detection takes a tenth


@contextmanager
def shortened(ns_fd: int, ifname: str, milliseconds: int) -> Iterator[bool]:
    """Have detection on the interface begin at once, and listen for so long after each solicitation.  Yields false if
    the namespace does not have the settings: before Linux 5.17 one of another user namespace has none of neighbours.

    Both are put back at the end, but for what somebody else has set meanwhile: a router may advertise a
    retrans_time_ms.  After an exception they stay, because the interface goes then.  Raises OSError.
    """
    begin, listening = f"ipv6/conf/{ifname}/router_solicitation_delay", f"ipv6/neigh/{ifname}/retrans_time_ms"
    exchanged: dict[str, tuple[str, str]] | None = None
    with suppress(FileNotFoundError):
        exchanged = sysctl.exchange(ns_fd, {begin: "0", listening: str(milliseconds)})  # guard: shortened = {}
    yield exchanged is not None
    if exchanged:
        sysctl.put_back(ns_fd, exchanged)  # guard: put-back


class Heard:
    """What the kernel has said of one link and of the detection for its addresses, since ``listen``."""

    def __init__(self, inside: Rtnl, index: int, addresses: Sequence[IPv6Address]) -> None:
        self._inside, self._index = inside, index
        self._link: Link | None = None
        self._flags = dict.fromkeys(addresses, IFA_F_TENTATIVE)
        # The interface's addresses that another host has, also those that the kernel has removed since (accept_dad 2).
        self.failed: list[IPv6Address] = []
        self.sock = self._open()

    @property
    def tentative(self) -> list[IPv6Address]:
        """The addresses for which detection has not ended."""
        return [address for address, flags in self._flags.items() if flags & _UNDECIDED == IFA_F_TENTATIVE]

    def link_when_ready(self, seconds: float) -> Link | None:
        """The link, as soon as it can send; None if it cannot after ``seconds``.  Raises OSError."""
        if not self._until(self._is_ready, seconds) and self._link is None:
            self._link = self._inside.link(index=self._index)  # somebody had set it up before, so nothing was said
        return self._link if self._is_ready() else None

    def until_ended(self, seconds: float) -> bool:
        """Wait until detection has ended for all addresses, or found a duplicate.  Returns false if it has not after
        ``seconds``.  Raises OSError."""
        ended = self._until(lambda: bool(self.failed) or not self.tentative, seconds)
        if self.failed:
            self._until(lambda: not self.tentative, _MOMENT)  # a host with one of our addresses may have the others
        return ended

    def ask(self) -> None:
        """Ask for all IPv6 addresses of the interface, the link-local one too, of which only the end is announced.
        Raises OSError."""
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
        """Take in what is said until ``reached``.  Returns false if it is not after ``seconds``, or when the budget is
        spent.

        The seconds begin anew where the kernel's lock of links was taken, for which detection waits too.
        """
        deadline = time.monotonic() + seconds
        while not reached():
            try:
                for data in netlink.receive(self.sock, seconds=min(deadline - time.monotonic(), _SILENCE)):
                    self._take(data)
                    if reached():
                        return True
                patience = budget.patience()
                self._inside.link(index=self._index)
                if budget.patience() < patience:
                    deadline = time.monotonic() + seconds
            except netlink.AnswerLost as e:
                if e.errno == errno.ETIMEDOUT:
                    return False
                # The kernel drops announcements when the socket is full.
                self.sock.close()
                self.sock = self._open()
                self._link = self._inside.link(index=self._index)
                self.ask()  # guard: asked-when-lost
            if time.monotonic() >= deadline:
                return reached()
        return True

    def _take(self, data: bytes) -> None:
        for kind, _, _, body in messages(data):
            if kind in (RTM_NEWLINK, RTM_DELLINK):
                family, index = LINK.unpack_from(body)[::2][:2]
                if (family, index) == (socket.AF_UNSPEC, self._index):  # guard: our-link = family == socket.AF_UNSPEC
                    self._link = parse_link(body) if kind == RTM_NEWLINK else None
                    if self._link is None:
                        self._flags.clear()
            elif kind in (RTM_NEWADDR, RTM_DELADDR):
                index, address, flags = parse_address(body)
                if index == self._index and kind == RTM_NEWADDR:  # guard: our-addresses (_index)
                    self._note(address, flags)
                elif index == self._index:
                    self._flags.pop(address, None)


@contextmanager
def listen(inside: Rtnl, index: int, addresses: Sequence[IPv6Address]) -> Iterator[Heard]:
    """Listen, in the socket's namespace, to what is said of the link of that index and of its IPv6 addresses.  Call it
    before the addresses are added.  Raises OSError.

    It is a socket of its own: on the other one the answers to requests would have to be told from announcements.
    """
    heard = Heard(inside, index, addresses)
    try:
        yield heard
    finally:
        heard.sock.close()
