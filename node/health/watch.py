"""Watches the kernel's events on links, addresses and devices.

There are three sockets.  rtnetlink reports links: new, gone, renamed, with or without a carrier.  It also reports
addresses, which the host would lose with a device, as a DHCP client's on a VF that came home.
Uevents report PCI functions, RDMA devices and scalable functions: new, gone, bound to a driver.  devlink's "config"
reports failed and recovered firmware.  Only messages from the kernel count.  An event only triggers a new reading of
the kernel's state.

Rejected: RDMA netlink's events (RDMA_NL_GROUP_NOTIFY, Linux 6.12), because uevents report the same devices on older
kernels too.  No event reports an RDMA port's state.  But a RoCE port follows its interface's carrier, and an IPoIB
interface that is up has a carrier while its port is active.  Rejected: the ports' own events (ibv_get_async_event),
because they need open uverbs devices, and a device for a pod must not be open.  Rejected: the events of routes, because
a routing daemon changes thousands, and few lead through an interface without an address.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from base.kernel import addresses, budget, devlink, events, netlink, rtnl
from base.kernel.addresses import RTM_DELADDR, RTM_NEWADDR
from base.kernel.links import LINK, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, Link, get_link, parse_link

# Seconds to wait for further events: a new VF causes some twenty.
TOGETHER: Final = 0.03
_ADD_MEMBERSHIP: Final = 1
_RTNLGRPS: Final = (1, 5, 9)  # RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR
_SO_RCVBUFFORCE: Final = 33
_IFLA_NEW_NETNSID: Final = 45  # in RTM_DELLINK: the namespace to which the link moved
_BUFFER: Final = 4 << 20  # bytes of events, for while this process does not run
_ROOM: Final = 65536
# "misc": rdma_cm, which containers get with any device.
_SUBSYSTEMS: Final = frozenset(
    {"auxiliary", "infiniband", "infiniband_mad", "infiniband_verbs", "misc", "net", "pci", "vdpa"}
)
_SOFTWARE: Final = "/devices/virtual/net/"
T = TypeVar("T")


class Watch:
    """Calls ``changed`` soon after an event.

    Its argument is whether a device may be new, gone or replaced; if not, only links or firmware changed.

    - ``failed``: the addresses of devices with failed firmware.
    - ``moved``: the names of interfaces that ``software`` counts, that moved to another namespace and have not
      returned.  The reader must remove names that it does not need, because each pod may add one.
    - ``software``: the interfaces without a device below that count, by name or altname; None for each one that can be
      a device.  All others, such as the hosts' ends of pods' interfaces, cause no report.
    - ``takes``: whether pods take devices from the host.  Then an interface over a device counts too: ADD refuses a
      device that has one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[bool], None]) -> None:
        """Raises OSError."""
        self.failed = frozenset[str]()
        self.moved = set[str]()
        self.software: frozenset[str] | None = frozenset()
        self.takes = False
        self._loop, self._changed = loop, changed
        self._by_index = dict[int, Link]()
        self._alarm: asyncio.TimerHandle | None = None
        self._devices = False
        self._family = devlink.family()
        self._sockets = [netlink.open_socket(socket.NETLINK_ROUTE), events.open_devices()]
        readers = [self._read_link_events, self._read_uevents]
        for group in _RTNLGRPS:
            self._sockets[0].setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, group)
        if self._family:
            self._sockets.append(netlink.open_socket(devlink.NETLINK_GENERIC))
            self._sockets[2].setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, self._family.config)
            readers.append(self._read_devlink_events)
        for sock, call in zip(self._sockets, readers, strict=True):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            loop.add_reader(sock.fileno(), call)
        self._read_all()

    @property
    def links(self) -> Mapping[str, Link]:
        """The links of the host's namespace, by name."""
        return {link.name: link for link in self._by_index.values()}

    def close(self) -> None:
        """Stop watching."""
        if self._alarm:
            self._alarm.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _read_all(self) -> None:
        """Read all links and firmware, at the start and after a lost event."""
        budget.begin()
        with rtnl.open_in() as asking:
            links = filter(None, map(_link, asking.dump(RTM_GETLINK, get_link())))
            self._by_index = {link.index: link for link in links}
        self.moved -= self.links.keys()
        self._read_firmware()

    def _read_firmware(self) -> None:
        budget.begin()
        if self._family:
            with suppress(OSError):  # a device went during the dump, which causes an event too
                self.failed = devlink.failed(self._family)

    def _read_link_events(self) -> None:
        for kind, body in self._messages(self._sockets[0]):
            if kind in (RTM_NEWADDR, RTM_DELADDR):
                over = self._by_index.get(addresses.index_of(body))
                if over and self._counts(over):
                    self._schedule(devices=True)
            link = _link(body) if kind in (RTM_NEWLINK, RTM_DELLINK) else None
            if link:
                self._note(link, body, is_there=kind == RTM_NEWLINK)

    def _note(self, link: Link, body: bytes, *, is_there: bool) -> None:
        """Note a link that is new, has changed or is gone.  The work must not grow with the number of links, because
        each pod causes some ten messages."""
        before = self._by_index.pop(link.index, None)
        counts = self._counts(link) or (before is not None and self._counts(before))
        if is_there:
            self._by_index[link.index] = link
        if counts and not is_there and _IFLA_NEW_NETNSID in netlink.attributes(body[LINK.size :]):
            self.moved.add(link.name)
        else:
            self.moved.discard(link.name)
        if counts and (not is_there or not before or _place(before) != _place(link)):
            self._schedule(devices=True)
        elif counts and before and before.flags != link.flags:
            self._schedule(devices=False)

    def _counts(self, link: Link) -> bool:
        """Whether the link is a device's, or may be a device, or is over one that pods take from the host."""
        below = self._by_index.get(link.parent) if self.takes and link.parent_nsid is None else None
        if _is_hardware(link) or (below and _is_hardware(below)):
            return True
        if self.software is not None:
            return not self.software.isdisjoint((link.name, *link.altnames))
        above = self._by_index.get(link.enslaved)
        return link.ethernet and not (above and above.kind == "bridge")

    def _read_uevents(self) -> None:
        for event in self._all(partial(events.receive_device, self._sockets[1])):
            is_software = event.get("DEVPATH", "").startswith(_SOFTWARE)
            if event.get("SUBSYSTEM") in _SUBSYSTEMS and not is_software:
                self._schedule(devices=True)

    def _read_devlink_events(self) -> None:
        bodies = [body for _, body in self._messages(self._sockets[2])]
        if any(map(devlink.is_of_health, bodies)):
            self._read_firmware()
            self._schedule(devices=False)

    def _messages(self, sock: socket.socket) -> Iterator[tuple[int, bytes]]:
        """The types and bodies of the kernel's pending messages."""
        for data, (port, _) in self._all(lambda: sock.recvfrom(_ROOM, socket.MSG_DONTWAIT)):
            if port == 0:
                yield from ((kind, body) for kind, _, _, body in netlink.messages(data))

    def _all(self, receive: Callable[[], T]) -> Iterator[T]:
        """All pending results of ``receive``.

        If the kernel dropped some, all state is read again after the rest, which is older than the dropped ones.
        """
        is_incomplete = False
        while True:
            try:
                yield receive()
            except BlockingIOError:
                break
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                is_incomplete = True
        if is_incomplete:
            self._read_all()
            self._schedule(devices=True)

    def _schedule(self, *, devices: bool) -> None:
        self._devices = self._devices or devices
        if not self._alarm:
            self._alarm = self._loop.call_later(TOGETHER, self._fire)

    def _fire(self) -> None:
        devices, self._devices, self._alarm = self._devices, False, None
        if devices:
            self._read_firmware()  # of new devices
        self._changed(devices)


def _is_hardware(link: Link) -> bool:
    # Linux names the device since 5.14.
    return bool(link.device) or link.infiniband or (link.ethernet and not link.kind)


def _place(link: Link) -> tuple[object, ...]:
    """What decides which device the link is, and whose."""
    return link.name, *link.altnames, link.enslaved


def _link(body: bytes) -> Link | None:
    """The link of a message; None if the message concerns a link's port in a bridge, or its radio."""
    try:
        return None if body[0] else parse_link(body)
    except KeyError:
        return None
