"""What the kernel says of links and devices, as it says it.

Three sockets hear all of it: rtnetlink's RTNLGRP_LINK (a link came, went, was renamed, has a carrier or lost it),
uevents (a PCI function, an RDMA device or a scalable function came, went or got a driver), and devlink's "config" (its
firmware failed, or was recovered).  Messages are only believed if the kernel sent them.  An event only says that it is
time to look: what is true is then read from the kernel.

RDMA netlink's own events (RDMA_NL_GROUP_NOTIFY, Linux 6.12) are not heard: uevents tell of the same devices, on older
kernels too.  No event tells of an RDMA port's state.  Of RoCE it is the carrier of the port's interface, and an IPoIB
interface that is up has a carrier while its port is active.  The ports' own events would be had by keeping uverbs
devices open (ibv_get_async_event), which a device that is to go to a pod must not be.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from base.kernel import budget, devlink, events, netlink, rtnl
from base.kernel.links import LINK, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, Link, get_link, parse_link

# Seconds that an event waits for others: a VF that comes is some twenty of them.
TOGETHER: Final = 0.03
_ADD_MEMBERSHIP: Final = 1
_RTNLGRP_LINK: Final = 1
_SO_RCVBUFFORCE: Final = 33
_IFLA_NEW_NETNSID: Final = 45  # in a link's end: where it is now
_BUFFER: Final = 4 << 20  # bytes of events that wait while this process has no processor
_ROOM: Final = 65536
_SUBSYSTEMS: Final = frozenset({"auxiliary", "infiniband", "infiniband_mad", "infiniband_verbs", "net", "pci", "vdpa"})
_SOFTWARE: Final = "/devices/virtual/net/"
T = TypeVar("T")


class Watch:
    """Hears the kernel, and calls ``changed`` soon after something has changed.

    ``changed`` is given whether a device may have come or gone, or may be another one; if not, only links or firmware
    have changed.

    - ``links``: the links of the host's namespace, by name.
    - ``failed``: the addresses of the devices whose firmware has failed.
    - ``moved``: the names of the interfaces that were moved to another namespace and have not come back, while
      ``software`` is true.  Whoever reads it forgets names in it: each pod has one.
    - ``software``: whether interfaces without a device below them count as devices, as those of pods' bridges are.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[bool], None]) -> None:
        """Raises OSError."""
        self.links: Mapping[str, Link] = {}
        self.failed = frozenset[str]()
        self.moved = set[str]()
        self.software = False
        self._loop, self._changed = loop, changed
        self._by_index = dict[int, Link]()
        self._alarm: asyncio.TimerHandle | None = None
        self._devices = False
        self._family = devlink.family()
        self._sockets = [netlink.open_socket(socket.NETLINK_ROUTE), events.open_devices()]
        hear = [self._hear_links, self._hear_uevents]
        self._sockets[0].setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, _RTNLGRP_LINK)
        if self._family:
            self._sockets.append(netlink.open_socket(devlink.NETLINK_GENERIC))
            self._sockets[2].setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, self._family.config)
            hear.append(self._hear_devlink)
        for sock, call in zip(self._sockets, hear, strict=True):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            loop.add_reader(sock.fileno(), call)
        self._read_all()

    def close(self) -> None:
        """Hear no more."""
        if self._alarm:
            self._alarm.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _read_all(self) -> None:
        """Read links and firmware anew, at the start and where an event was lost."""
        budget.begin()
        with rtnl.open_in() as asking:
            links = filter(None, map(_link, asking.dump(RTM_GETLINK, get_link())))
            self._by_index = {link.index: link for link in links}
        self._name_links()
        self._read_firmware()

    def _read_firmware(self) -> None:
        budget.begin()
        if self._family:
            with suppress(OSError):  # a device went during the dump; its going is an event too
                self.failed = devlink.failed(self._family)

    def _name_links(self) -> None:
        self.links = {link.name: link for link in self._by_index.values()}
        self.moved -= self.links.keys()

    def _hear_links(self) -> None:
        for kind, body in self._messages(self._sockets[0]):
            link = _link(body)
            if not link or kind not in (RTM_NEWLINK, RTM_DELLINK):
                continue
            before = self._by_index.pop(link.index, None)
            if kind == RTM_NEWLINK:
                self._by_index[link.index] = link
            elif self.software and _IFLA_NEW_NETNSID in netlink.attributes(body[LINK.size :]):
                self.moved.add(link.name)
            else:
                self.moved.discard(link.name)
            if kind == RTM_DELLINK or not before or before.name != link.name:
                if self.software or link.device:
                    self._tell(devices=True)
            elif (before.flags, before.enslaved) != (link.flags, link.enslaved):
                self._tell(devices=False)
        self._name_links()

    def _hear_uevents(self) -> None:
        for said in self._all(partial(events.receive_device, self._sockets[1])):
            is_software = said.get("DEVPATH", "").startswith(_SOFTWARE)
            if said.get("SUBSYSTEM") in _SUBSYSTEMS and not is_software:
                self._tell(devices=True)

    def _hear_devlink(self) -> None:
        heard = list(self._messages(self._sockets[2]))
        if any(devlink.is_of_health(body) for _, body in heard):
            self._read_firmware()
            self._tell(devices=False)

    def _messages(self, sock: socket.socket) -> Iterator[tuple[int, bytes]]:
        """The types and bodies of the messages that the kernel has sent until now."""
        for data, (port, _) in self._all(lambda: sock.recvfrom(_ROOM, socket.MSG_DONTWAIT)):
            if port == 0:  # guard: from-the-kernel = True
                yield from ((kind, body) for kind, _, _, body in netlink.messages(data))

    def _all(self, receive: Callable[[], T]) -> Iterator[T]:
        """What is received until there is no more.  If something was lost, all is read anew after what is left: that is
        older than what was lost."""
        has_lost = False
        while True:
            try:
                yield receive()
            except BlockingIOError:
                break
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                has_lost = True  # guard: what-was-lost
        if has_lost:
            self._read_all()
            self._tell(devices=True)

    def _tell(self, *, devices: bool) -> None:
        self._devices = self._devices or devices
        if not self._alarm:
            self._alarm = self._loop.call_later(TOGETHER, self._fire)

    def _fire(self) -> None:
        devices, self._devices, self._alarm = self._devices, False, None
        if devices:
            self._read_firmware()  # of devices that are new
        self._changed(devices)


def _link(body: bytes) -> Link | None:
    """The link that a message is about; None for one about a link's port in a bridge, or its radio."""
    try:
        return None if body[0] else parse_link(body)
    except KeyError:
        return None
