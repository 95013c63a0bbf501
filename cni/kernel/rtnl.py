"""rtnetlink for what every ADD and DEL needs (man 7 rtnetlink), packed by hand.

pyroute2 takes longer to import than all the rest of an ADD takes to run; what is needed rarely goes
through it (dump.py), and the tests hold every byte made here against its encoder and decoder.

Functions that make bytes are pure.  Failure is OSError with the kernel's errno and, where it gave one, its
own sentence (NETLINK_EXT_ACK); where its answer was lost, netlink.AnswerLost.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Self

from cni.kernel import netlink
from cni.kernel.netlink import (
    ATTR,
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    attributes,
    messages,
    pairs,
    raise_error,
    read_text,
)
from cni.kernel.netns import run_in

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400

IFF_UP, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_LOWER_UP = 0x1, 0x80, 0x100, 0x200, 0x10000
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO = 1, 3, 4, 5, 10, 18
IFLA_TXQLEN, IFLA_IFALIAS, IFLA_VFINFO_LIST, IFLA_PARENT_DEV_NAME = 13, 20, 22, 56
IFLA_PROP_LIST, IFLA_ALT_IFNAME = 52, 53
IFLA_NET_NS_FD, IFLA_EXT_MASK, IFLA_LINK_NETNSID = 28, 29, 37
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32
RTEXT_FILTER_SKIP_STATS: Final = 8
NLA_F_NESTED: Final = 0x8000

LINK: Final = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_series = count()  # of Rtnl's numbers
_DUMPS: Final = 3  # of one thing that changes all the time


# What it is, in words; a message's type, flags and body.
Change = tuple[str, int, int, bytes]


@dataclass(frozen=True)
class Link:
    """One RTM_NEWLINK answer.  ``kind`` is empty for hardware; ``parent`` is an ifindex in namespace
    ``parent_nsid``, or in the link's own if that is None; ``enslaved`` is the ifindex of the bridge, bond or VRF it is
    in, 0 for none; ``data`` is IFLA_INFO_DATA undecoded, ``device`` the bus address of the hardware (Linux 5.14), and
    ``vfs`` IFLA_VFINFO_LIST where it was asked for.  An InfiniBand link's ``mac`` has 20 bytes: a queue pair's number
    and a GID."""

    index: int
    name: str
    flags: int
    mac: str
    mtu: int
    kind: str = ""
    parent: int = 0
    parent_nsid: int | None = None
    data: bytes = b""
    device: str = ""
    txqlen: int = 0
    alias: str = ""
    vfs: bytes = b""
    altnames: tuple[str, ...] = ()
    hardware: int = ARPHRD_ETHER
    enslaved: int = 0

    @property
    def ethernet(self) -> bool:
        """Neither the loopback interface nor a tunnel."""
        return self.hardware == ARPHRD_ETHER

    @property
    def infiniband(self) -> bool:
        return self.hardware == ARPHRD_INFINIBAND

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)

    @property
    def carrier(self) -> bool:
        return bool(self.flags & IFF_LOWER_UP)

    @property
    def arp(self) -> bool:
        """Whether it asks for, and tells, neighbours' MACs, by ARP or by neighbour discovery."""
        return not self.flags & IFF_NOARP


class Rtnl:
    """A NETLINK_ROUTE socket in one namespace: one request, its answer, at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # Others may be over the same socket (``adopt``), and an answer that nobody waited for is not theirs.
        self.sequence = next(_series) << 12 & 0x7FFFFFFF

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def call(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send one message; the body of the answer, empty for an acknowledgement.  Raises OSError."""
        try:
            return self._answer(self.pack(kind, flags, body))
        except netlink.AnswerLost:
            self.reopen()
            if flags & NLM_F_ACK:
                raise
            return self._answer(self.pack(kind, flags, body))  # a question: to ask again changes nothing

    def _answer(self, request: bytes) -> bytes:
        hearing = netlink.receive(self.sock, request)
        while True:
            answer = next(hearing)
            length, kind, flags, sequence, _ = HEADER.unpack_from(answer)
            if sequence != self.sequence:
                continue  # what is left of a request that was not waited for to its end
            if kind != NLMSG_ERROR:
                return answer[HEADER.size : length]
            raise_error(answer[HEADER.size : length], flags)
            return b""

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The bodies of all messages of a kind.  Raises OSError.

        The kernel says where something changed while it told them.  Then they are told again, but to a pod that changes
        them all the time no more than so often: what is not among them then came meanwhile, or was taken away.
        """
        for _ in range(_DUMPS):
            if (yield from self._dump_once(self.pack(kind, NLM_F_DUMP, body))):
                return

    def _dump_once(self, request: bytes) -> Generator[bytes, None, bool]:
        """The bodies, and whether nothing changed meanwhile."""
        whole, hearing = True, netlink.receive(self.sock, request)
        try:
            while True:
                for kind, flags, sequence, body in messages(next(hearing)):
                    if sequence != self.sequence:
                        continue  # as above
                    whole = whole and not flags & NLM_F_DUMP_INTR
                    if kind == NLMSG_ERROR:
                        raise_error(body, flags)
                    if kind == NLMSG_DONE:
                        return whole
                    yield body
        except netlink.AnswerLost:
            self.reopen()  # the kernel would go on telling
            raise

    def reopen(self) -> None:
        """Have another socket in the same namespace: the kernel may drop what it has to say on this one.  Raises
        OSError."""
        sock = netlink.open_beside(self.sock)
        self.sock.close()
        self.sock = sock

    def pack(self, kind: int, flags: int, body: bytes) -> bytes:
        """The next request as a message; ``sequence`` is the number its answer will have."""
        self.sequence += 1
        return HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self.sequence, 0) + body

    def link(self, name: str = "", *, index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> Link | None:
        """Equivalent to: ip link show NAME.  A name matches altnames too.  None if there is none."""
        try:
            return parse_link(self.call(RTM_GETLINK, 0, get_link(name, index, filters)))
        except OSError as e:
            if e.errno == errno.ENODEV:
                return None
            raise

    def change(self, kind: int, flags: int, body: bytes) -> None:
        """Send one message that changes something, and wait until the kernel has done it."""
        self.call(kind, flags | NLM_F_ACK, body)

    def rename(self, index: int, name: str) -> None:
        """Equivalent to: ip link set DEV name NAME."""
        self.change(RTM_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + attr(IFLA_IFNAME, text(name)))

    def set_up(self, index: int) -> None:
        """Equivalent to: ip link set DEV up."""
        self.set_link(index, flags=IFF_UP, mask=IFF_UP)

    def set_link(self, index: int, *attrs: bytes, flags: int = 0, mask: int = 0) -> None:
        """Equivalent to: ip link set DEV ...; of IFF_* those in ``mask`` become as in ``flags``.  All in one message,
        which is not all or nothing: the kernel applies it in an order of its own, a move first, and keeps what it
        did when something fails."""
        self.change(RTM_NEWLINK, 0, LINK.pack(0, 0, index, flags, mask) + b"".join(attrs))

    def add_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property add dev DEV altname NAME."""
        self.change(RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, altname(index, name))

    def remove_altname(self, index: int, name: str) -> None:
        """Equivalent to: ip link property del dev DEV altname NAME."""
        self.change(RTM_DELLINKPROP, 0, altname(index, name))

    def change_all(self, changes: Sequence[Change]) -> None:
        """Send them as one, in their order.  Raises the first OSError, with a note; those after it were tried too."""
        before = self.sequence
        # Failures are told in any case, so the last one's answer is the end of all answers.
        *others, (_, kind, flags, body) = changes
        data = [self.pack(k, f, b) for _, k, f, b in others]
        hearing = netlink.receive(self.sock, b"".join((*data, self.pack(kind, flags | NLM_F_ACK, body))))
        failed, sequence = None, 0
        while sequence != self.sequence:
            ((kind, flags, sequence, body),) = messages(next(hearing))
            if kind != NLMSG_ERROR or sequence <= before:
                continue  # as above
            try:
                raise_error(body, flags)
            except OSError as e:
                e.add_note(f"while {changes[sequence - before - 1][0]}")
                failed = failed or e
        if failed:
            raise failed


def open_in(ns_fd: int | None = None) -> Rtnl:
    """A socket in that namespace, or in ours; it keeps its namespace, whatever thread uses it.  Raises OSError."""
    return Rtnl(_socket() if ns_fd is None else run_in(ns_fd, _socket))


def adopt(fd: int) -> Rtnl:
    """The same over a NETLINK_ROUTE socket that another process opened and closes.  Raises OSError."""
    return Rtnl(_socket(os.dup(fd)))


def _socket(fd: int | None = None) -> socket.socket:
    return netlink.open_socket(socket.NETLINK_ROUTE, fd)


def attr(kind: int, payload: bytes) -> bytes:
    """struct nlattr and its payload, padded to four bytes."""
    return ATTR.pack(ATTR.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def get_link(name: str = "", index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> bytes:
    """RTM_GETLINK's body: one link by index or name, without its counters."""
    by_name = attr(IFLA_IFNAME, text(name)) if name else b""
    return LINK.pack(0, 0, index, 0, 0) + by_name + attr(IFLA_EXT_MASK, u32(filters))


def new_link(  # noqa: PLR0913  # they are the message's attributes
    *, kind: str, data: bytes, parent: int, name: str, index: int = 0, mac: str = "", mtu: int = 0,
    ns_fd: int | None = None,
) -> bytes:  # fmt: skip
    """RTM_NEWLINK's body: a link of ``kind`` over ifindex ``parent``, born in ``ns_fd`` with all it is to have.  Of an
    ``index`` 0 the kernel chooses one; one that is taken there it refuses (EBUSY)."""
    body = LINK.pack(0, 0, index, 0, 0) + attr(IFLA_IFNAME, text(name)) + attr(IFLA_LINK, u32(parent))
    if mac:
        body += attr(IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
    if mtu:
        body += attr(IFLA_MTU, u32(mtu))
    if ns_fd is not None:
        body += attr(IFLA_NET_NS_FD, u32(ns_fd))
    return body + attr(IFLA_LINKINFO, attr(IFLA_INFO_KIND, text(kind)) + attr(IFLA_INFO_DATA, data))


def setting_up(link: Link) -> Change:
    """Equivalent to: ip link set DEV up."""
    return f"setting it up with MAC {link.mac}", RTM_NEWLINK, 0, LINK.pack(0, 0, link.index, IFF_UP, IFF_UP)


def altname(index: int, name: str) -> bytes:
    """RTM_NEWLINKPROP's body, and RTM_DELLINKPROP's."""
    return LINK.pack(0, 0, index, 0, 0) + attr(IFLA_PROP_LIST | NLA_F_NESTED, attr(IFLA_ALT_IFNAME, text(name)))


def parse_link(body: bytes) -> Link:
    """An RTM_NEWLINK message's body."""
    _, hardware, index, flags, _ = LINK.unpack_from(body)
    attrs = attributes(body[LINK.size :])
    info = attributes(attrs.get(IFLA_LINKINFO, b""))
    nsid = attrs.get(IFLA_LINK_NETNSID)
    return Link(
        index=index,
        name=read_text(attrs[IFLA_IFNAME]),
        flags=flags,
        mac=attrs.get(IFLA_ADDRESS, b"").hex(":"),
        mtu=_u32(attrs[IFLA_MTU]),
        kind=read_text(info.get(IFLA_INFO_KIND, b"")),
        parent=_u32(attrs.get(IFLA_LINK, bytes(4))),
        parent_nsid=None if nsid is None else int.from_bytes(nsid, sys.byteorder, signed=True),
        data=info.get(IFLA_INFO_DATA, b""),
        device=read_text(attrs.get(IFLA_PARENT_DEV_NAME, b"")),
        txqlen=_u32(attrs.get(IFLA_TXQLEN, bytes(4))),
        alias=read_text(attrs.get(IFLA_IFALIAS, b"")),
        vfs=attrs.get(IFLA_VFINFO_LIST, b""),
        altnames=tuple(read_text(name) for _, name in pairs(attrs.get(IFLA_PROP_LIST, b""))),
        hardware=hardware,
        enslaved=_u32(attrs.get(IFLA_MASTER, b"")),
    )


def _u32(payload: bytes) -> int:
    return int.from_bytes(payload[:4], sys.byteorder)
