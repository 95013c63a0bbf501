"""rtnetlink for what every ADD and DEL needs (man 7 rtnetlink), packed by hand.

pyroute2 takes longer to import than all the rest of an ADD takes to run; what is needed rarely goes
through it (dump.py), and the tests hold every byte made here against its encoder and decoder.

Functions that make bytes are pure.  Failure is OSError with the kernel's errno and, where it gave one, its
own sentence (NETLINK_EXT_ACK).
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Self

from cni.kernel.netns import run_in

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE, NLM_F_ACK_TLVS = 0x1, 0x4, 0x200, 0x400, 0x200
NLMSG_ERROR, NLMSG_DONE, NLM_F_DUMP = 2, 3, 0x300
NLMSGERR_ATTR_MSG: Final = 1
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11

IFF_UP, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_LOWER_UP = 0x1, 0x80, 0x100, 0x200, 0x10000
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO = 1, 3, 4, 5, 10, 18
IFLA_TXQLEN, IFLA_IFALIAS, IFLA_VFINFO_LIST, IFLA_PARENT_DEV_NAME = 13, 20, 22, 56
IFLA_PROP_LIST, IFLA_ALT_IFNAME = 52, 53
IFLA_NET_NS_FD, IFLA_EXT_MASK, IFLA_LINK_NETNSID = 28, 29, 37
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32
RTEXT_FILTER_SKIP_STATS: Final = 8
NLA_TYPE_MASK: Final = 0x3FFF
NLA_F_NESTED: Final = 0x8000

HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr
LINK: Final = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_ATTR = struct.Struct("=HH")
_attr_at = _ATTR.unpack_from
_series = count()  # of Rtnl's numbers


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
        sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self.sock = sock
        # Others may be over the same socket (``passed``), and an answer that nobody waited for is not theirs.
        self.sequence = next(_series) << 12 & 0x7FFFFFFF

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def call(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send one message; the body of the answer, empty for an acknowledgement.  Raises OSError."""
        self.sock.sendto(self.packed(kind, flags, body), (0, 0))
        while True:
            answer = self.sock.recv(65536)
            length, kind, flags, sequence, _ = HEADER.unpack_from(answer)
            if sequence != self.sequence:
                continue  # what is left of a request that was not waited for to its end
            if kind != NLMSG_ERROR:
                return answer[HEADER.size : length]
            raise_error(answer[HEADER.size : length], flags)
            return b""

    def packed(self, kind: int, flags: int, body: bytes) -> bytes:
        """The next request as a message; ``sequence`` is the number its answer will have."""
        self.sequence += 1
        return HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self.sequence, 0) + body

    def link(self, name: str = "", *, index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> Link | None:
        """Equivalent to: ip link show NAME.  A name matches altnames too.  None if there is none."""
        try:
            return parse_link(self.call(RTM_GETLINK, 0, get_link(name, index, filters)))
        except OSError as e:
            if e.errno == 19:  # ENODEV
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
        data = [self.packed(k, f, b) for _, k, f, b in others]
        self.sock.sendto(b"".join((*data, self.packed(kind, flags | NLM_F_ACK, body))), (0, 0))
        failed, sequence = None, 0
        while sequence != self.sequence:
            ((kind, flags, sequence, body),) = messages(self.sock.recv(65536))
            if kind != NLMSG_ERROR or sequence <= before:
                continue  # as above
            try:
                raise_error(body, flags)
            except OSError as e:
                e.add_note(f"while {changes[sequence - before - 1][0]}")
                failed = failed or e
        if failed:
            raise failed


def opened(ns_fd: int | None = None) -> Rtnl:
    """A socket in that namespace, or in ours; it keeps its namespace, whatever thread uses it.  Raises OSError."""
    return Rtnl(_socket() if ns_fd is None else run_in(ns_fd, _socket))


def passed(fd: int) -> Rtnl:
    """The same over a NETLINK_ROUTE socket that another process opened and closes.  Raises OSError."""
    own = os.dup(fd)
    try:
        return Rtnl(_socket(own))
    except BaseException:  # it is no socket
        os.close(own)
        raise


def attr(kind: int, payload: bytes) -> bytes:
    """struct nlattr and its payload, padded to four bytes."""
    return _ATTR.pack(_ATTR.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def get_link(name: str = "", index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> bytes:
    """RTM_GETLINK's body: one link by index or name, without its counters."""
    by_name = attr(IFLA_IFNAME, text(name)) if name else b""
    return LINK.pack(0, 0, index, 0, 0) + by_name + attr(IFLA_EXT_MASK, u32(filters))


def new_link(  # noqa: PLR0913  # they are the message's attributes
    *, kind: str, data: bytes, parent: int, name: str, mac: str = "", mtu: int = 0, ns_fd: int | None = None
) -> bytes:
    """RTM_NEWLINK's body: a link of ``kind`` over ifindex ``parent``, born in ``ns_fd`` with all it is to have."""
    body = LINK.pack(0, 0, 0, 0, 0) + attr(IFLA_IFNAME, text(name)) + attr(IFLA_LINK, u32(parent))
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
        name=_text(attrs[IFLA_IFNAME]),
        flags=flags,
        mac=attrs.get(IFLA_ADDRESS, b"").hex(":"),
        mtu=_u32(attrs[IFLA_MTU]),
        kind=_text(info.get(IFLA_INFO_KIND, b"")),
        parent=_u32(attrs.get(IFLA_LINK, bytes(4))),
        parent_nsid=None if nsid is None else int.from_bytes(nsid, sys.byteorder, signed=True),
        data=info.get(IFLA_INFO_DATA, b""),
        device=_text(attrs.get(IFLA_PARENT_DEV_NAME, b"")),
        txqlen=_u32(attrs.get(IFLA_TXQLEN, bytes(4))),
        alias=_text(attrs.get(IFLA_IFALIAS, b"")),
        vfs=attrs.get(IFLA_VFINFO_LIST, b""),
        altnames=tuple(_text(name) for _, name in pairs(attrs.get(IFLA_PROP_LIST, b""))),
        hardware=hardware,
        enslaved=_u32(attrs.get(IFLA_MASTER, b"")),
    )


def attributes(data: bytes) -> dict[int, bytes]:
    """Attribute type (without its flag bits) -> payload; of a repeated type the last."""
    found, offset, end = dict[int, bytes](), 0, len(data)
    while offset + 4 <= end:
        length, kind = _attr_at(data, offset)
        if length < 4:
            break
        found[kind & NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += length + (-length & 3)
    return found


def pairs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in their order, repeated ones too."""
    offset = 0
    while offset + _ATTR.size <= len(data):
        length, kind = _attr_at(data, offset)
        if length < _ATTR.size:
            break
        yield kind & NLA_TYPE_MASK, data[offset + _ATTR.size : offset + length]
        offset += length + (-length & 3)


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Of what was received each message's type, flags, sequence number and body."""
    offset = 0
    while offset < len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, offset)
        yield kind, flags, sequence, data[offset + HEADER.size : offset + length]
        offset += length + (-length & 3)


def _socket(fd: int | None = None) -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE, fd)


def raise_error(body: bytes, flags: int) -> None:
    """Raise what an NLMSG_ERROR says (struct nlmsgerr), if it is an error and not an acknowledgement."""
    number = -int.from_bytes(body[:4], sys.byteorder, signed=True)
    if not number:
        return
    said = attributes(body[4 + HEADER.size :]).get(NLMSGERR_ATTR_MSG) if flags & NLM_F_ACK_TLVS else None
    raise OSError(number, os.strerror(number) + (f" ({_text(said)})" if said else ""))


def _u32(payload: bytes) -> int:
    return int.from_bytes(payload[:4], sys.byteorder)


def _text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode(errors="replace")
