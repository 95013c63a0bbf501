"""A namespace's numbers for other namespaces (man 8 ip-netns, RTM_GETNSID), and the links in those.

A namespace gets a number for another one if a link moves from the first to the second.  It also gets one if the second
holds the lower device of a link in the first.  The number lasts as long as the second namespace.  So a moved link can
be found even if no process, mount or path leads to it.
"""

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from base.kernel import links, rtnl
from base.kernel.links import (
    IFLA_IFNAME,
    IFLA_LINK,
    IFLA_PARENT_DEV_NAME,
    LINK,
    RTM_DELLINK,
    RTM_GETLINK,
    RTM_NEWLINK,
    Link,
    parse_link,
)
from base.kernel.netlink import answers_strictly, attr, attributes, read_text, text, u32
from base.kernel.netns import inode, run_in
from base.kernel.rtnl import Rtnl

RTM_GETNEIGH, RTM_GETNSID = 30, 90
IFLA_GROUP, IFLA_TARGET_NETNSID = 27, 46
NDA_LLADDR: Final = 2
NETNSA_NSID, NETNSA_FD, NETNSA_TARGET_NSID, NETNSA_CURRENT_NSID = 1, 3, 4, 5
_UNASSIGNED: Final = -1
AF_BRIDGE: Final = 7
_RTGEN: Final = bytes(4)  # struct rtgenmsg
_NDMSG: Final = 12  # the size of struct ndmsg
_TUN: Final = "/dev/net/tun"
# From <linux/if_tun.h>, with the direction bits of asm-generic/ioctl.h: x86-64, arm64 and most others.
_TUNSETIFF, _TUNGETDEVNETNS = 0x400454CA, 0x54E3
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_TRIES: Final = 3
# Links removed at a time.  Other processes that change a link wait meanwhile.
_BATCH: Final = 200

# Whether a launcher does the work if this process may not open a TUN device (LeftToLauncher).
_has_launcher = False

# A namespace: its descriptor, and a socket inside.
Place = tuple[int, Rtnl]
# Finds links in the socket's namespace, or in the one of further attributes (IFLA_TARGET_NETNSID).
Look = Callable[..., list[Link]]


class LeftToLauncher(BaseException):
    """This process may not open a TUN device, so a request ends without an answer, as if the process were killed.  Its
    launcher then does the work itself.

    The agent's container may not with runc 1.2.0 to 1.2.3, and Kubernetes has no field for it.
    """


def leave_to_launcher() -> None:
    """From now on, leave to a launcher what needs a TUN device that this process may not open (LeftToLauncher)."""
    global _has_launcher  # noqa: PLW0603  # of the process
    _has_launcher = True


def can_be_asked(inside: Rtnl) -> bool:
    """Whether the kernel honors NETNSA_TARGET_NSID, which finds hidden links.  Raises OSError."""
    return answers_strictly(inside.sock, wanted=False)


def numbers(inside: Rtnl) -> set[int]:
    """Equivalent to: ip netns list-id.  The numbers that the socket's namespace has for others.  Raises OSError."""
    return {_number(body) for body in inside.dump(RTM_GETNSID, _RTGEN)}


def number(inside: Rtnl, fd: int, *more: bytes) -> int:
    """The number that the socket's namespace has for the namespace of a descriptor; -1 for none.  Raises OSError.
    ``more`` are attributes, such as NETNSA_TARGET_NSID for another namespace than the socket's."""
    return _number(inside.call(RTM_GETNSID, 0, _RTGEN + attr(NETNSA_FD, u32(fd)) + b"".join(more)))


def names_and_links(inside: Rtnl) -> tuple[set[str], list[Link]]:
    """The names and altnames of all links, and those links that have a lower device, in any namespace.  Raises
    OSError."""
    names, found = set[str](), list[Link]()
    for body in _dump_links(inside):
        attrs = attributes(body[LINK.size :])
        names |= {read_text(attrs[IFLA_IFNAME]), *links.altnames_in(attrs)}
        if IFLA_LINK in attrs:
            found.append(parse_link(body))
    return names, found


def links_over(inside: Rtnl, lowers: Collection[int], *more: bytes) -> list[Link]:
    """The links whose lower device has one of these indexes, in any namespace.  Raises OSError."""
    return _links(inside, IFLA_LINK, {u32(lower) for lower in lowers}, *more)


def links_over_others(inside: Rtnl, *more: bytes) -> list[Link]:
    """The links whose lower device is in another namespace.  Raises OSError."""
    return [link for link in map(parse_link, _dump_links(inside, *more)) if link.parent_nsid is not None]


def links_of_device(inside: Rtnl, device: str, *more: bytes) -> list[Link]:
    """The links of the hardware with this bus address.  Raises OSError."""
    return _links(inside, IFLA_PARENT_DEV_NAME, {text(device)}, *more)


def links_with_index(inside: Rtnl, index: int, *more: bytes) -> list[Link]:
    """The link with this index, as a list of one or none.  Raises OSError."""
    return [link for link in map(parse_link, _dump_links(inside, *more)) if link.index == index]


def _links(inside: Rtnl, kind: int, values: Collection[bytes], *more: bytes) -> list[Link]:
    bodies = _dump_links(inside, *more)
    return [parse_link(body) for body in bodies if attributes(body[LINK.size :]).get(kind) in values]


def _dump_links(inside: Rtnl, *more: bytes) -> Iterator[bytes]:
    return inside.dump(RTM_GETLINK, links.get_link() + b"".join(more))


def _is_of_interest(fd: int, inside: Rtnl, nsid: int, look: Look) -> bool:
    """Whether the namespace with that number has links that ``look`` finds, or numbers that the one at ``fd`` lacks.
    It is queried from outside, a thousand times faster than by entering it.  Raises OSError."""
    target = attr(NETNSA_TARGET_NSID, u32(nsid))
    unknown = [
        _number(body)
        for body in inside.dump(RTM_GETNSID, _RTGEN + target)
        if _number(body, NETNSA_CURRENT_NSID) == _UNASSIGNED
    ]
    # A namespace has no number for itself, so the target does not list itself, and the one at fd is unknown here.
    if unknown and unknown != [number(inside, fd, target)]:
        return True
    return bool(look(inside, attr(IFLA_TARGET_NETNSID, u32(nsid))))


def bridge_macs(host: Rtnl, index: int) -> set[str]:
    """Equivalent to: bridge fdb show dev DEV.  The MACs that the link receives for, including those of its macvlans
    that are up.  Raises OSError."""
    bodies = host.dump(RTM_GETNEIGH, LINK.pack(AF_BRIDGE, 0, index, 0, 0))
    return {attributes(body[_NDMSG:]).get(NDA_LLADDR, b"").hex(":") for body in bodies}


def remove_links(inside: Rtnl, indexes: Collection[int]) -> bool:
    """Remove the links, each batch as by: ip link delete group GROUP; return whether the kernel removed any.

    Missing links are no error.  One RTM_DELLINK takes 20 ms for a link or for a group, and a pod may have thousands of
    links.
    """
    rest, removed = list(indexes), False
    while rest:
        batch, rest = rest[:_BATCH], rest[_BATCH:]
        group = attr(IFLA_GROUP, os.urandom(4))
        with suppress(OSError):  # a link went meanwhile
            inside.change_all(
                [(f"removing link {index}", RTM_NEWLINK, 0, LINK.pack(0, 0, index, 0, 0) + group) for index in batch]
            )
        with suppress(OSError):
            inside.change(RTM_DELLINK, 0, LINK.pack(0, 0, 0, 0, 0) + group)
            removed = True
    return removed


@contextmanager
def walk(
    top: int, is_strange: Callable[[int, Rtnl], bool], look: Look, most: int, shut: list[OSError]
) -> Iterator[Iterator[Place]]:
    """The namespace ``top`` and those that its numbers lead to, each once, at most ``most``.  Raises OSError.

    Namespaces without links that ``look`` finds are left out, unless they lead to others.  Namespaces for which
    ``is_strange`` is true are left out, with all behind them.  All stay open until the end, so that the kernel reuses
    no inode number meanwhile.  ``shut`` gets an error for each namespace that could not be entered.
    """
    places = list[Place]()
    try:
        yield _places(top, is_strange, look, most, places, shut)
    finally:
        for fd, inside in places:
            inside.sock.close()
            os.close(fd)


def _places(
    top: int,
    is_strange: Callable[[int, Rtnl], bool],
    look: Look,
    most: int,
    places: list[Place],
    shut: list[OSError],
) -> Iterator[Place]:
    seen = set[int]()
    if _visit(os.dup(top), seen, is_strange, places):
        yield places[-1]
    for fd, inside in places:  # the list grows while it is read
        for one in numbers(inside):
            if len(places) >= most:
                return
            try:
                if not _is_of_interest(fd, inside, one, look):
                    continue
                if not _visit(open_numbered(fd, inside, one), seen, is_strange, places):
                    continue
            except OSError as e:  # it ended meanwhile, or no TUN device can be sent there
                shut.append(e)
                continue
            yield places[-1]


def _visit(fd: int, seen: set[int], is_strange: Callable[[int, Rtnl], bool], places: list[Place]) -> bool:
    """Add the namespace to ``places``, unless it was seen before or is strange; return whether it was added.  Closes
    ``fd`` if not."""
    inside, is_added = None, False
    try:
        if inode(fd) not in seen:
            seen.add(inode(fd))
            inside = rtnl.open_in(fd, strictly=True)  # else a dump ignores NETNSA_TARGET_NSID
            if not is_strange(fd, inside):
                places.append((fd, inside))
                is_added = True
        return is_added
    finally:
        if not is_added:
            if inside:
                inside.sock.close()
            os.close(fd)


def open_numbered(fd: int, inside: Rtnl, nsid: int) -> int:
    """A descriptor of the namespace for which the one at ``fd`` has this number.  Raises OSError.

    No request returns such a descriptor.  But a TUN device can move to the namespace of a number, and its file then
    returns its namespace (TUNGETDEVNETNS, Linux 5.2).
    """
    for attempt in range(_TRIES):
        name = f"hpn{os.urandom(5).hex()}"
        tun = run_in(fd, partial(_tun, name))
        try:
            link = inside.link(name)
            if link is None:
                continue  # the pod renamed or moved it
            inside.change(RTM_NEWLINK, 0, LINK.pack(0, 0, link.index, 0, 0) + attr(IFLA_TARGET_NETNSID, u32(nsid)))
            return fcntl.ioctl(tun, _TUNGETDEVNETNS)
        except OSError:
            if attempt == _TRIES - 1:
                raise
        finally:
            os.close(tun)
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def _tun(name: str) -> int:
    try:
        fd = os.open(_TUN, os.O_RDWR)
    except PermissionError as e:
        if _has_launcher:
            raise LeftToLauncher from e
        raise
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("=16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _number(body: bytes, kind: int = NETNSA_NSID) -> int:
    value = attributes(body[4:]).get(kind)
    return _UNASSIGNED if value is None else int.from_bytes(value, sys.byteorder, signed=True)
