"""A device that moves: its interface into the pod under the pod's name, and home as it was.

All kinds that move a device use this module with their plan, a ``Moved``.  The journal keeps the plan, with the
device's state on the host.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from base.kernel import bpf, netns, nsid, offloads, rtnl, sysfs
from base.kernel.budget import attempts
from base.kernel.links import (
    IFF_ALLMULTI,
    IFF_MULTICAST,
    IFF_NOARP,
    IFF_PROMISC,
    IFF_UP,
    IFLA_ADDRESS,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MTU,
    IFLA_NET_NS_FD,
    IFLA_NEW_IFINDEX,
    IFLA_TXQLEN,
    NUMBERS,
    Link,
    pack_mac,
    without_xdp,
)
from base.kernel.netlink import attr, text, u32
from base.kernel.rtnl import Rtnl
from base.kernel.sysfs import PciFunction
from base.protocol.errors import CheckFailed, CniError, InterfaceExists, InvalidConfig, LinkUnavailable, TryAgain, doing
from base.protocol.spec import Json
from base.state.pod import Pod
from cni import features
from cni.features import rdma
from cni.features.rdma import Devices
from cni.kinds import escaped
from cni.kinds.escaped import Search

if TYPE_CHECKING:
    from cni.models.device import Device

# Flags that people set.  A move clears only the first.
FLAGS: Final = IFF_UP | IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI | IFF_MULTICAST
# Seconds.  The kernel returns a dying namespace's devices from a work queue, usually within 0.1 s.
HOME_TIMEOUT: Final = 5.0
POLL: Final = 0.02
# The most namespaces to search for a device that a pod has hidden.
NAMESPACES: Final = 100
# The prefix of a device's name if another interface of the host has that name when the device comes home.
_WAS: Final = "was-"
_IFNAME: Final = 15  # bytes


@dataclass(frozen=True)
class Netdev:
    """The state of a netdev on the host; ``flags`` are some of ``FLAGS``.  ``programs`` are the ids of the BPF programs
    on it, by XDP and tcx; the kernel never reuses an id.  ``network`` is empty, or what the pod takes of its network
    (cni/features/host_network.py).  ``numbers`` are the link's; ``offloads`` are ethtool's, empty if unknown."""

    name: str
    mac: str
    mtu: int
    txqlen: int
    alias: str
    flags: int
    altnames: tuple[str, ...]
    programs: tuple[int, ...] = ()
    network: Json = field(default_factory=dict)
    numbers: Json = field(default_factory=dict)
    offloads: tuple[int, ...] = ()

    @classmethod
    def of(cls, link: Link, network: Json) -> "Netdev":
        """Read the state of a link in our namespace.  Raises OSError."""
        flags, programs = link.flags & FLAGS, (*link.xdp_programs.values(), *bpf.on_tcx(link.index))
        names, more = (link.altnames, programs), (dict(link.numbers), offloads.read(link.name))
        return cls(link.name, link.mac, link.mtu, link.txqlen, link.alias, flags, *names, network, *more)

    @classmethod
    def from_json(cls, body: Json | None) -> "Netdev | None":
        """Read a plan's ``home``, in which JSON turned tuples into lists.  Older versions wrote no programs, no
        numbers, no offloads, and no IFF_MULTICAST."""
        if body is None:
            return None
        lists = {key: tuple(body.get(key, ())) for key in ("altnames", "programs", "offloads")}
        return cls(**{**body, **lists})

    @property
    def known(self) -> int:
        """Those of ``FLAGS`` whose state it has; an older version's has neither numbers nor IFF_MULTICAST."""
        return FLAGS if self.numbers else FLAGS & ~IFF_MULTICAST


@dataclass(frozen=True)
class Software:
    """A link of this kind with no device behind it, so with no bus address.

    It is identified by its ifindex on the host, and by the unique ifindex that it gets in the pod.  ``over`` is the
    ifindex of the host's link below it, or of its peer on the host; 0 if there is none.
    """

    kind: str
    at_home: int
    in_pod: int
    over: int = 0

    @classmethod
    def of(cls, link: Link, in_pod: int) -> "Software":
        return cls(link.kind, link.index, in_pod, link.parent if link.parent_nsid is None else 0)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A plan to move a device; each kind that moves one has its own subclass.  The journal keeps it.

    ``device`` is the bus address.  Another device may come to that address, so ``incarnation`` (base/kernel/sysfs.py)
    identifies this one.  ``pf`` is the address of a VF's PF, or empty.  ``netdev`` is its interface's name on
    the host, and ``home`` that interface's settings there; empty and None if a userspace driver has the device.
    ``mtu`` is the MTU in the pod; 0 keeps the MTU.  ``rdma`` are the RDMA devices that move too, ``rdma_devs`` the
    names of all RDMA devices that the pod has, moved or shared.  ``index`` is the ifindex in the pod; 0 until it is
    known.
    """

    device: str
    incarnation: int
    pf: str
    netdev: str
    home: Netdev | None
    mtu: int
    rdma: Devices
    rdma_devs: list[str]
    index: int = 0

    @property
    def software(self) -> Software | None:
        """How to find a link that no device is behind; None for a device."""
        return None

    @property
    def exists(self) -> bool:
        """Whether the device is still there.  For a link made of software this is unknown, and True."""
        return self.software is not None or sysfs.incarnation(self.device) == self.incarnation

    def to_json(self) -> Json:
        """The plan as a JSON object.  It omits a rare member, so that an older version can read most records."""
        body = asdict(self)
        if self.home and not self.home.network:
            del body["home"]["network"]
        return body

    @staticmethod
    def common(wanted: "Device", function: PciFunction, link: Link | None, pod: Pod) -> dict[str, Any]:
        """Return the members that all plans have, for a function with this interface.

        Raises InterfaceExists if the pod uses one of the interface's altnames, which move with it.  Raises
        InvalidConfig for a key that needs an interface, if there is none; and the errors of rdma.of_function.
        """
        what = function.address or (link.name if link else "")
        if link is None:
            for key, value in wanted.of_the_interface.items():
                shown = f" {value}" if isinstance(value, str | int) else ""
                raise InvalidConfig(f"{key}{shown}: {function.driver} leaves {what} to the pod; remove {key}")
        for altname in link.altnames if link else ():
            if pod.rtnl.link(altname):
                raise InterfaceExists(
                    f"{pod.path} has an interface named {altname!r}, an altname of {what}; remove either"
                )
        moved, rdma_devs = rdma.of_function(wanted.rdma, function)
        network = features.host_network.read(link) if link and wanted.useInterfaceNetwork else {}
        return {
            "device": function.address,
            "incarnation": sysfs.incarnation(function.address) if function.address else 0,
            "pf": function.pf,
            "netdev": link.name if link else "",
            "home": Netdev.of(link, network) if link else None,
            "mtu": wanted.mtu,
            "rdma": moved,
            "rdma_devs": rdma_devs,
        }

    @classmethod
    def from_json(cls, body: Json) -> Self:
        """Read ``to_json``'s object, in which JSON turned tuples into lists."""
        return cls(**{**body, "home": Netdev.from_json(body["home"])})


def instead_of(name: str) -> str:
    """Return the name of a device that came home while another interface had its name."""
    return f"{_WAS}{name}".encode(errors="surrogateescape")[:_IFNAME].decode(errors="ignore")


def can_set_index() -> bool:
    """Whether a move can set a link's ifindex (IFLA_NEW_IFINDEX).  Kernels before 5.13 ignore the attribute."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return (int(major), int(minor)) >= (5, 13)


def refuse_unnamed(link: Link, address: str) -> None:
    """Raise LinkUnavailable if the kernel does not report a link's device (IFLA_PARENT_DEV_NAME, Linux 5.14 and kernels
    with that patch).  Without it we could not identify the link in a pod, and it would not come home."""
    if not link.device:
        raise LinkUnavailable(
            f"{link.name!r} of {address}: Linux {os.uname().release} does not report in a pod which device an "
            "interface belongs to; use a kernel from 5.14 on, or kind macvlan over it"
        )


def find(p: Moved, pod: Pod, ifname: str) -> Link | None:
    """Return the device's interface in the pod, under the pod's name or the host's; never another of that name."""
    if p.software:
        link = pod.rtnl.link(index=p.software.in_pod)
        return link if link and link.kind == p.software.kind else None
    ways = ({"index": p.index},) if p.index else ({"name": ifname}, {"name": p.netdev})
    return next((link for way in ways if (link := pod.rtnl.link(**way)) and link.device == p.device), None)


def stands(p: Moved, pod: Pod, ifname: str) -> bool:
    """Kind.stands: a device that the pod drives itself only has to exist."""
    return p.exists and (p.home is None or find(p, pod, ifname) is not None)


def check(p: Moved, pod: Pod, ifname: str, what: str) -> Link | None:
    """Return the interface in the pod; None for a device that the pod drives itself.  ``what`` describes the interface
    for the message.

    Raises CheckFailed if the device, its interface under the pod's name, or an RDMA device is lost, or if ARP differs
    from the host's.  The kind checks the RDMA devices of InfiniBand.
    """
    if not p.exists:
        raise CheckFailed(f"{p.device} is gone, or another one now")
    if p.home is None:
        return None
    link = find(p, pod, ifname)
    if link is None or (link.name != ifname and not pod.has_as_port(link)):
        raise CheckFailed(f"{ifname} in {pod.path} is not {what}")
    if not link.infiniband:
        if (link.flags ^ p.home.flags) & IFF_NOARP:
            arp = ("on", "off") if link.arp else ("off", "on")
            raise CheckFailed(f"{link.name} has ARP {arp[0]}, and on the host it had ARP {arp[1]}")
        rdma.check(p.rdma, p.rdma_devs, pod)
    return link


def here(host: Rtnl, name: str, device: str) -> Link:
    """Return the device's interface on the host.  Raises TryAgain."""
    link = host.link(name)
    if link is None:
        raise TryAgain(f"{name} of {device} is being renamed or moved")
    return link


def give(host: Rtnl, link: Link, p: Moved, pod: Pod, ifname: str) -> Link:
    """Move the interface into the pod and rename it, by one message.  Then move and rename the RDMA devices; those of
    InfiniBand the kind moves first.  Raises OSError, LinkUnavailable, InterfaceExists."""
    if ifname in link.altnames:
        host.remove_altname(link.index, ifname)
    body, tried = [attr(IFLA_NET_NS_FD, u32(pod.fd)), attr(IFLA_IFNAME, text(ifname))], list[Link]()
    mtu = [attr(IFLA_MTU, u32(p.mtu))] if p.mtu else []
    if p.software:
        body.append(attr(IFLA_NEW_IFINDEX, u32(p.software.in_pod)))

    def move() -> None:
        # The kernel moves first, so the link may be in the pod although its driver refused the MTU.
        moved = find(p, pod, ifname) if tried else None
        tried.append(link)
        if moved:
            pod.rtnl.set_link(moved.index, *mtu)
        else:
            host.set_link(link.index, *body, *mtu)

    with doing(f"moving {link.name} ({_what(p)}) to {pod.path} as {ifname}"):
        rtnl.while_resetting(move)
    there = find(p, pod, ifname)
    if there is None or there.name != ifname:
        raise LinkUnavailable(f"{link.name} ({_what(p)}) did not arrive in {pod.path} as {ifname}")
    if not link.infiniband:
        rdma.give(p.rdma, pod)
        rdma.rename(p.rdma, p.rdma_devs, pod)
    return there


def hidden(p: Moved, pod: Pod, host_fd: int) -> Iterator[Pod]:
    """Yield the namespaces that may have the device: those that the pod knows by number, and those known from there.
    Yields none if the device is on the host."""
    if not p.software:
        function = sysfs.device(p.device)
        if function is None or function.netdevs:
            return
    host = netns.inode(host_fd)

    def look(inside: Rtnl, *more: bytes) -> list[Link]:
        return _look(p, inside, *more)

    with nsid.walk(pod.fd, lambda fd, _: netns.inode(fd) == host, look, NAMESPACES, []) as places:
        for fd, inside in places:
            yield Pod(f"a namespace that {pod.path} knows", fd, inside, ours=False)


def _look(p: Moved, inside: Rtnl, *more: bytes) -> list[Link]:
    """Return the device's links in the socket's namespace, under any name."""
    if p.software:
        return [one for one in nsid.links_with_index(inside, p.software.in_pod, *more) if one.kind == p.software.kind]
    return nsid.links_of_device(inside, p.device, *more)


def take(p: Moved, pod: Pod, ifname: str, host_fd: int) -> None:
    """Move the interface out of the pod, if it is there, under the host's name if that is free."""
    link = find(p, pod, ifname) or next(iter(_look(p, pod.rtnl)), None)
    if link is None:
        return
    with doing(f"moving {link.name} ({_what(p)}) back from {pod.path}"):
        try:
            _send_home(p, pod, link, host_fd, attr(IFLA_IFNAME, text(p.netdev)))
        except OSError as e:
            # A name or altname is taken on the host.  The kernel has moved the link nevertheless, or not at all.
            if e.errno != errno.EEXIST:
                raise
            if find(p, pod, ifname):
                for altname in link.altnames:
                    pod.rtnl.remove_altname(link.index, altname)
                free = f"vf{link.index}{os.getpid() % 10_000}"[:15]
                # Before Linux 6.2 an interface that is up keeps its name.
                pod.rtnl.set_link(link.index, mask=IFF_UP)
                pod.rtnl.set_link(link.index, attr(IFLA_IFNAME, text(free)))
                _send_home(p, pod, link, host_fd)


def _send_home(p: Moved, pod: Pod, link: Link, host_fd: int, *more: bytes) -> None:
    to_host = (attr(IFLA_NET_NS_FD, u32(host_fd)), *more)
    try:
        own_index = [attr(IFLA_NEW_IFINDEX, u32(p.software.at_home))] if p.software else []
        pod.rtnl.set_link(link.index, *to_host, *own_index)
    except OSError as e:
        # Another process gave the index to a link of the host; the kernel itself never reuses one.
        if not p.software or e.errno != errno.EBUSY:
            raise
        pod.rtnl.set_link(link.index, *to_host)


def bring_home(p: Moved, pod: Pod, ifname: str) -> None:
    """Move the netdev and its RDMA devices home, from wherever the pod has put them.  RDMA devices move first, because
    an attribute of the netdev may hold them."""
    with netns.hold_open("/proc/self/ns/net") as own:
        rdma.take(p.rdma, pod, own)
        take(p, pod, ifname, own)
        for place in hidden(p, pod, own):
            rdma.take(p.rdma, place, own)
            take(p, place, ifname, own)


def put_back(p: Moved, work: Callable[[Rtnl], int]) -> int:
    """Return the result of ``work``, which brings the device home; 0 if the device disappeared or was replaced
    meanwhile.  Raises CniError, OSError."""
    try:
        with rtnl.open_in() as host:
            return work(host)
    except (CniError, OSError):
        if p.exists:
            raise
    return 0


def settled(p: Moved, index: int, pod: Pod | None, *notes: str) -> Search | None:
    """Give the host's network back to the device of that index at home, 0 if it is not home.  Returns the search for
    links that the pod stacked on it, with the notes for the log; None for neither.  Raises OSError."""
    if index and p.home and p.home.network:
        notes = (*notes, features.host_network.give_back(p.home.network, index, p.netdev))
    search, note = escaped.stacked(index, pod), "; ".join(filter(None, notes))
    return replace(search or Search(0), note=note) if note else search


def name_at_home(address: str) -> str:
    """Return the name of the device's netdev on the host; empty if it no longer has one.  Waits for a dying namespace.
    Raises TryAgain."""
    for _ in attempts(HOME_TIMEOUT, POLL):
        function = sysfs.device(address)
        if function is None or function.driver in ("", *sysfs.USERSPACE):
            return ""
        if name := sysfs.uplink(function):
            return name
    raise TryAgain(f"{address} is in another namespace still, perhaps one that is being removed")


def _what(p: Moved) -> str:
    return p.device or p.netdev


def set_mac(host: Rtnl, link: Link, mac: str) -> None:
    """Set the netdev's MAC.  Raises OSError."""
    with doing(f"setting MAC {mac} of {link.name}"):
        rtnl.while_resetting(lambda: host.set_link(link.index, attr(IFLA_ADDRESS, pack_mac(mac)), mask=IFF_UP))


def restore(host: Rtnl, link: Link, was: Netdev, set_mac: Callable[[Link, str], None] | None) -> None:
    """Restore the netdev's state on the host; keep the MAC if ``set_mac`` is None.  Raises OSError."""
    now, numbers = Netdev.of(link, was.network), {name: link.numbers.get(name) for name in was.numbers}
    now = replace(now, offloads=now.offloads if was.offloads else ())
    if replace(now, numbers=numbers, flags=link.flags & was.known) == was:
        return  # it never left: to set it down would cost the host its routes
    # First, because a driver that runs XDP refuses some MTUs.
    with doing(f"detaching the pod's BPF programs from {link.name} ({link.device or was.name})"):
        _detach_programs(host, link, was)
    if link.mac != was.mac and set_mac:
        set_mac(link, was.mac)
    changed = [
        body
        for differs, body in (
            (link.mtu != was.mtu, attr(IFLA_MTU, u32(was.mtu))),
            (link.txqlen != was.txqlen, attr(IFLA_TXQLEN, u32(was.txqlen))),
            (link.alias != was.alias, attr(IFLA_IFALIAS, os.fsencode(was.alias))),
            *((numbers != was.numbers, attr(NUMBERS[name], u32(value))) for name, value in was.numbers.items()),
        )
        if differs
    ]
    with doing(f"restoring {link.name} ({link.device or was.name})"):
        if changed or link.flags & was.known != was.flags & ~IFF_UP:
            flags = was.flags & ~IFF_UP
            rtnl.while_resetting(lambda: host.set_link(link.index, *changed, flags=flags, mask=was.known))
        if now.offloads != was.offloads:
            rtnl.while_resetting(lambda: offloads.write(link.name, was.offloads, now.offloads))
        _restore_names(host, link, was)
        if was.flags & IFF_UP:
            rtnl.while_resetting(lambda: host.set_up(link.index))


def _detach_programs(host: Rtnl, link: Link, was: Netdev) -> None:
    """Detach the pod's BPF programs (XDP, tcx), which the device's next user would run; keep the host's."""
    for mode, program in link.xdp_programs.items():
        if program in was.programs:
            continue
        try:
            host.set_link(link.index, without_xdp(mode))
        except OSError as e:
            if e.errno != errno.EBUSY or not bpf.detach_xdp_link(link.index, program):
                raise
    for program, (where, holder) in bpf.on_tcx(link.index).items():
        if program not in was.programs:
            bpf.detach_from_tcx(link.index, program, where, holder)


def _restore_names(host: Rtnl, link: Link, was: Netdev) -> None:
    """Restore name and altnames, except those that another interface has now.  Keep no name that the pod gave: it may
    be the name of another device that is not home yet."""
    for altname in link.altnames:
        if altname not in was.altnames:
            host.remove_altname(link.index, altname)
    for name in (was.name, instead_of(was.name)) if link.name != was.name else ():
        with suppress(FileExistsError):
            host.rename(link.index, name)
            break
    for altname in was.altnames:
        if altname not in link.altnames:
            with suppress(FileExistsError):
                host.add_altname(link.index, altname)
