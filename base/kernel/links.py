"""A link in rtnetlink messages (man 7 rtnetlink): bytes both ways, pure; and its name by ioctl (man 7 netdevice).

The tests compare every byte of the messages with pyroute2's encoder and decoder.
"""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from base.kernel.netlink import Change, attr, attributes, pairs, read_text, read_u32, text, u32

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWLINKPROP, RTM_DELLINKPROP = 108, 109

IFF_UP, IFF_RUNNING, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI, IFF_LOWER_UP = 0x1, 0x40, 0x80, 0x100, 0x200, 0x10000
IFF_MULTICAST: Final = 0x1000
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO = 1, 3, 4, 5, 10, 18
IFLA_TXQLEN, IFLA_IFALIAS, IFLA_VFINFO_LIST, IFLA_PARENT_DEV_NAME = 13, 20, 22, 56
IFLA_NEW_IFINDEX, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 49, 52, 53
IFLA_NET_NS_FD, IFLA_EXT_MASK, IFLA_LINK_NETNSID, IFLA_PROTO_DOWN, IFLA_XDP = 28, 29, 37, 39, 43
IFLA_XDP_FD, IFLA_XDP_FLAGS = 1, 3
# The three modes of XDP: the attribute with the program's id -> the mode's flag (if_link.h).
XDP_MODES: Final = {5: 4, 6: 2, 7: 8}  # in the driver, generic, in hardware
# Further settings of one number each (man 8 ip-link).  The kernel sets the first one first, and with it the fourth.
NUMBERS: Final = {
    "gso_max_size": 41, "gso_max_segs": 40, "gro_max_size": 58, "gso_ipv4_max_size": 63, "gro_ipv4_max_size": 64,
    "group": 27,
}  # fmt: skip
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32
RTEXT_FILTER_SKIP_STATS: Final = 8
# Kinds whose IFLA_LINK is the peer, not a lower device.
PAIRS: Final = ("veth", "netkit", "vxcan")
NLA_F_NESTED: Final = 0x8000

_IFNAME: Final = 15  # bytes
LINK: Final = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
SIOCGIFNAME, SIOCGIFHWADDR = 0x8910, 0x8927
_BY_INDEX: Final = struct.Struct("=16xi20x")  # struct ifreq: a name, and a union
_BY_NAME: Final = struct.Struct("=16s24x")
_ADDRESS: Final = struct.Struct("=18x6s")  # the MAC in struct ifreq's struct sockaddr


@dataclass(frozen=True)
class Link:
    """A link, as an RTM_NEWLINK message describes it.

    - ``mac``: "02:00:00:00:00:01"; an InfiniBand link's has 20 bytes: a queue pair's number and a GID.
    - ``kind``: "macvlan", "veth", ...; empty for hardware.
    - ``parent``: the lower device's ifindex, in the namespace ``parent_nsid``; in the link's own if that is None.
    - ``data``: IFLA_INFO_DATA, not decoded.
    - ``device``: the hardware's bus address (Linux 5.14).
    - ``vfs``: IFLA_VFINFO_LIST, if RTEXT_FILTER_VF requested it.
    - ``hardware``: ARPHRD_*.
    - ``xdp``: IFLA_XDP, not decoded.
    - ``enslaved``: the ifindex of the link's bridge, bond or VRF; 0 for none.
    - ``proto_down``: its carrier is disabled (ip link set DEV protodown on).
    - ``numbers``: those of ``NUMBERS`` that the kernel has.
    """

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
    xdp: bytes = b""
    proto_down: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def xdp_programs(self) -> dict[int, int]:
        """The XDP programs: a flag of ``XDP_MODES`` -> the program's id."""
        modes = attributes(self.xdp)
        return {flag: read_u32(modes[number]) for number, flag in XDP_MODES.items() if number in modes}

    @property
    def ethernet(self) -> bool:
        """Whether it is Ethernet: neither the loopback interface nor a tunnel."""
        return self.hardware == ARPHRD_ETHER

    @property
    def infiniband(self) -> bool:
        """Whether it is IP over InfiniBand."""
        return self.hardware == ARPHRD_INFINIBAND

    @property
    def up(self) -> bool:
        """Whether it is administratively up."""
        return bool(self.flags & IFF_UP)

    @property
    def carrier(self) -> bool:
        """Whether it is up and connected to its peer."""
        return bool(self.flags & IFF_LOWER_UP)

    @property
    def running(self) -> bool:
        """Whether it can send: it is up and has carrier, and the kernel has processed that (RFC 2863)."""
        return bool(self.flags & IFF_RUNNING)

    @property
    def arp(self) -> bool:
        """Whether it resolves neighbors' MACs, by ARP or by neighbor discovery."""
        return not self.flags & IFF_NOARP


def pack_mac(mac: str) -> bytes:
    """A MAC ("02:00:00:00:00:01") as bytes."""
    return bytes.fromhex(mac.replace(":", ""))


def get_link(name: str = "", index: int = 0, filters: int = RTEXT_FILTER_SKIP_STATS) -> bytes:
    """RTM_GETLINK's body: one link by index, name or altname; ``filters`` are RTEXT_FILTER_*, by default without
    counters."""
    # The kernel refuses a longer IFLA_IFNAME, and kernels before 5.5 do not know the other.
    which = IFLA_ALT_IFNAME if len(os.fsencode(name)) > _IFNAME else IFLA_IFNAME
    by_name = attr(which, text(name)) if name else b""
    return LINK.pack(0, 0, index, 0, 0) + by_name + attr(IFLA_EXT_MASK, u32(filters))


def new_link(  # noqa: PLR0913  # they are the message's attributes
    *, kind: str, data: bytes, parent: int, name: str, index: int = 0, mac: str = "", mtu: int = 0,
    ns_fd: int | None = None,
) -> bytes:  # fmt: skip
    """RTM_NEWLINK's body: a link of ``kind`` over ifindex ``parent``, created directly in the namespace ``ns_fd``.  For
    index 0 the kernel chooses one; it refuses an index in use there (EBUSY)."""
    body = LINK.pack(0, 0, index, 0, 0) + attr(IFLA_IFNAME, text(name)) + attr(IFLA_LINK, u32(parent))
    if mac:
        body += attr(IFLA_ADDRESS, pack_mac(mac))
    if mtu:
        body += attr(IFLA_MTU, u32(mtu))
    if ns_fd is not None:
        body += attr(IFLA_NET_NS_FD, u32(ns_fd))
    return body + attr(IFLA_LINKINFO, attr(IFLA_INFO_KIND, text(kind)) + attr(IFLA_INFO_DATA, data))


def setting_up(link: Link) -> Change:
    """The change that is equivalent to: ip link set DEV up."""
    return f"setting it up with MAC {link.mac}", RTM_NEWLINK, 0, LINK.pack(0, 0, link.index, IFF_UP, IFF_UP)


def without_xdp(mode: int) -> bytes:
    """IFLA_XDP that removes the program in this mode, a flag of ``XDP_MODES``."""
    return attr(IFLA_XDP | NLA_F_NESTED, attr(IFLA_XDP_FD, u32(0xFFFFFFFF)) + attr(IFLA_XDP_FLAGS, u32(mode)))


def altname(index: int, name: str) -> bytes:
    """The body of RTM_NEWLINKPROP and RTM_DELLINKPROP: one alternative name."""
    return LINK.pack(0, 0, index, 0, 0) + attr(IFLA_PROP_LIST | NLA_F_NESTED, attr(IFLA_ALT_IFNAME, text(name)))


def parse_link(body: bytes) -> Link:
    """The link that an RTM_NEWLINK message's body describes."""
    _, hardware, index, flags, _ = LINK.unpack_from(body)
    attrs = attributes(body[LINK.size :])
    info = attributes(attrs.get(IFLA_LINKINFO, b""))
    nsid = attrs.get(IFLA_LINK_NETNSID)
    return Link(
        index=index,
        name=read_text(attrs[IFLA_IFNAME]),
        flags=flags,
        mac=attrs.get(IFLA_ADDRESS, b"").hex(":"),
        mtu=read_u32(attrs[IFLA_MTU]),
        kind=read_text(info.get(IFLA_INFO_KIND, b"")),
        parent=read_u32(attrs.get(IFLA_LINK, bytes(4))),
        parent_nsid=None if nsid is None else int.from_bytes(nsid, sys.byteorder, signed=True),
        data=info.get(IFLA_INFO_DATA, b""),
        device=read_text(attrs.get(IFLA_PARENT_DEV_NAME, b"")),
        txqlen=read_u32(attrs.get(IFLA_TXQLEN, bytes(4))),
        alias=read_text(attrs.get(IFLA_IFALIAS, b"")),
        vfs=attrs.get(IFLA_VFINFO_LIST, b""),
        altnames=altnames_in(attrs),
        hardware=hardware,
        enslaved=read_u32(attrs.get(IFLA_MASTER, b"")),
        xdp=attrs.get(IFLA_XDP, b""),
        proto_down=any(attrs.get(IFLA_PROTO_DOWN, b"")),
        numbers={name: read_u32(attrs[number]) for name, number in NUMBERS.items() if number in attrs},
    )


def altnames_in(attrs: Mapping[int, bytes]) -> tuple[str, ...]:
    """The altnames among a link's attributes."""
    return tuple(read_text(name) for _, name in pairs(attrs.get(IFLA_PROP_LIST, b"")))


def name_of(sock: socket.socket, index: int, mac: str) -> str:
    """The name of the link with this index and MAC ("02:00:00:00:00:01") in the socket's namespace, by ioctl.

    It is empty if there is no such link, or if the kernel does not answer; then RTM_GETLINK may find it.  That request
    waits while any process changes a link of the system (rtnl_lock): a tenth of a DEL while many pods are deleted.  The
    ioctls read names and MACs under RCU and other locks (net/core/dev_ioctl.c).
    """
    try:
        name = fcntl.ioctl(sock, SIOCGIFNAME, _BY_INDEX.pack(index))[:16]
        (address,) = _ADDRESS.unpack_from(fcntl.ioctl(sock, SIOCGIFHWADDR, _BY_NAME.pack(name)))
    except OSError:
        return ""
    return os.fsdecode(name.rstrip(b"\0")) if address.hex(":") == mac else ""
