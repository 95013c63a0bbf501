"""Kind host-device: an interface of the host, moved into the pod as it is, and restored.

The plugin identifies hardware by its bus address, in any namespace and under any name, like a VF.  Hardware is a PCI
function, a virtio or USB NIC, or a device of the auxiliary bus, such as a scalable function.  When a pod's namespace
dies, the kernel returns the interface by itself, late and under the pod's name (default_device_exit_net).

The plugin identifies a software interface (veth, dummy, VLAN) by its ifindex in the pod, which is unique and random.
DEL restores the host's ifindex.  The kernel removes the interface with the namespace.

A device of a userspace driver (vfio-pci) has no interface, and the pod drives it itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from base.kernel import netns, nsid, rtnl, sysfs
from base.kernel.budget import attempts
from base.kernel.links import RTM_GETLINK, Link, get_link, parse_link
from base.kernel.rtnl import Rtnl
from base.kernel.sysfs import PciFunction, Relatives
from base.protocol.errors import DeviceInUse, InvalidConfig, LinkUnavailable, TryAgain
from base.protocol.result import Interface
from base.protocol.spec import Json
from base.state import journal, owned
from base.state.pod import Pod
from cni.features import rdma
from cni.kinds import child, device
from cni.kinds.device import Moved, Netdev, Software
from cni.kinds.escaped import Search
from hardware import needed

if TYPE_CHECKING:
    from base.protocol.location import Location
    from cni.models import NetConf
    from cni.models.host_device import HostDevice


@dataclass(frozen=True, kw_only=True)
class Plan(Moved):
    """One interface of the host.  ``pci`` is the PCI function that the device is, or is a part of.  A link made of
    ``software`` has an empty ``device``, and 0 as its ``incarnation``."""

    pci: str
    software: Software | None = None

    @classmethod
    def from_json(cls, body: Json) -> "Plan":
        return super().from_json({**body, "software": body["software"] and Software(**body["software"])})


@contextmanager
def claiming(conf: "NetConf") -> Iterator["NetConf"]:
    """Kind.claiming: one ADD at a time chooses a device, by whichever key, or one of a PF and its VFs."""
    address, name = _locate(cast("HostDevice", conf.attach))
    with owned.lock(address or name):
        yield conf


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan."""
    wanted = cast("HostDevice", conf.attach)
    function, link = _find(wanted, conf, host, pod.fd)
    if link and function.address:
        device.refuse_unnamed(link, function.address)
    return Plan(
        **Moved.common(wanted, function, link, pod),
        pci=sysfs.pci_of(function.address) if function.address else "",
        software=Software.of(link, child.unlikely_index()) if link and not function.address else None,
    ).to_json()


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.attach: move and rename the interface by one message, then move the RDMA devices."""
    p = Plan.from_json(plan)
    if p.home is None:
        return None
    link = device.here(host, p.netdev, p.device)
    if link.device != p.device or (p.software and link.index != p.software.at_home):
        raise TryAgain(f"{p.netdev} has just become another interface")
    return device.give(host, link, p, pod, ifname)


def interfaces(plan: Json, link: Link | None, _host: Rtnl, pod: Pod, ifname: str) -> tuple[Interface, ...]:
    """Kind.interfaces."""
    mac, mtu = (link.mac, link.mtu) if link else ("", 0)
    return (Interface(ifname, mac, sandbox=pod.path, mtu=mtu, pci_id=plan["pci"]),)


def stands(plan: Json, pod: Pod, ifname: str) -> bool:
    """Kind.stands."""
    return device.stands(Plan.from_json(plan), pod, ifname)


def detach(plan: Json, pod: Pod | None, ifname: str, _found: Callable[[], None]) -> Search | None:
    """Kind.detach: move the interface home and restore it.  There is nothing to restore if the device is gone or has
    another driver now."""
    p = Plan.from_json(plan)
    if p.home is None or not p.exists:
        return None
    index = device.put_back(p, partial(_put_back, p, p.home, pod, ifname))
    if not index and p.software:
        return _ended(p, p.software, pod)
    return device.settled(p, index, pod, _renamed(p, index))


def check(plan: Json, _host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.check."""
    p = Plan.from_json(plan)
    return device.check(p, pod, ifname, f"the host's {p.netdev} ({p.device or 'software'})")


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: check the interface that the configuration names.  A device that the runtime chose for a pod
    (deviceID) is not checked, because it may be in that pod."""
    wanted = cast("HostDevice", conf.attach)
    if wanted.rdma.mode != "off":
        rdma.is_exclusive(wanted.rdma)
    if not wanted.deviceID:
        function, link = _find(wanted, conf, host)
        if link and function.address:
            device.refuse_unnamed(link, function.address)
        rdma.of_function(wanted.rdma, function)


def describe(plan: Json, _interfaces: list[Json]) -> tuple[str, Json]:
    """Kind.describe."""
    address, netdev = str(plan["device"]), str(plan["netdev"])
    words = f"{netdev} ({address})" if address and netdev else address or netdev
    return words, {"device": address or netdev, "netdev": netdev, **({"pf": plan["pf"]} if plan["pf"] else {})}


def _renamed(p: Plan, index: int) -> str:
    """Return a note for the log if the interface is home under another name, because its own is taken."""
    with rtnl.open_in() as host:
        link = host.link(index=index) if index else None
    if not link or link.name == p.netdev:
        return ""
    return (
        f"the host's interface {p.netdev} came home as {link.name}, because another one has its name; rename that one, "
        f"then: ip link set {link.name} name {p.netdev}"
    )


def _ended(p: Plan, what: Software, pod: Pod | None) -> Search | None:
    """Return the search that reports an interface of software that was not found."""
    if not pod:
        gone = f"the host's interface {p.netdev} is gone: the kernel removes a {what.kind} with its namespace"
        return Search(0, note=gone)
    if not p.index:
        return None  # ADD failed before the pod could use it
    return Search(0, missing=f"the host's {p.netdev} is neither in the pod nor in namespaces that it moved links to")


def _put_back(p: Plan, was: Netdev, pod: Pod | None, ifname: str, host: Rtnl) -> int:
    """Move the interface home and restore it.  Returns its index at home; 0 if it is gone."""
    if p.software:
        if pod:
            _bring_software_home(p, p.software, pod, ifname)
        elif not _at_home(p, host):
            _bring_software_home_from_anywhere(p, ifname)
    elif pod:
        device.bring_home(p, pod, ifname)
    link = _at_home(p, host)
    if link is None:
        return 0
    device.restore(host, link, was, partial(device.set_mac, host))
    rdma.settle(p.rdma, p.device)
    return link.index


def _at_home(p: Plan, host: Rtnl) -> Link | None:
    """Return the interface on the host; None if it is gone, as one made of software is with the pod's namespace."""
    if p.software:
        # The host's index last: if another link has it now, ours came home with its index in the pod.
        indexes = p.software.in_pod, p.software.at_home
        found = (host.link(index=index) for index in indexes)
        return next((link for link in found if link and link.kind == p.software.kind), None)
    name = device.name_at_home(p.device)
    return device.here(host, name, p.device) if name else None


def _locate(wanted: "HostDevice") -> tuple[str, str]:
    """Return the device's bus address, empty if it has none, and the interface's name, empty if the address was given.
    Neither need exist.  Raises InvalidConfig if several interfaces have the MAC."""
    if address := wanted.deviceID or wanted.kernelpath.rpartition("/")[2]:
        return sysfs.with_netdev(address), ""
    name = rtnl.real_name(wanted.device) or _with_mac(wanted.hwaddr)
    return sysfs.device_of(name) if name else "", name


def _with_mac(mac: str) -> str:
    """Return the name of the host's interface with that MAC, hardware before the links over it; empty for none."""
    with rtnl.open_in() as host:
        links = [link for body in host.dump(RTM_GETLINK, get_link()) if (link := parse_link(body)).mac == mac]
    names = sorted(link.name for link in links if link.device) or sorted(link.name for link in links)
    if len(names) > 1:
        raise InvalidConfig(f"hwaddr {mac!r} is that of {', '.join(names)}; set device to one of them")
    return "".join(names)


def _find(wanted: "HostDevice", conf: "NetConf", host: Rtnl, own: int | None = None) -> tuple[PciFunction, Link | None]:
    """Return the free device with its interface; without one if the pod drives the device itself.  An interface of
    software gets a function without address and driver.  ``own`` is the pod's namespace.  Raises CniError."""
    address, name = _locate(wanted)
    state_dir = conf.where.state_dir
    if address:
        if owner := owned.owner(state_dir, address):
            raise DeviceInUse(
                f"device {address!r} belongs to {owner.title}, since {owner.time}; delete that first", owner.device
            )
        function = _on_bus(address)
        name = name or "".join(function.netdevs)
        if not name:
            use = owned.use(state_dir, sysfs.relatives(address).all, conf.claim)
            needed.refuse_function(function, use, host)
            return function, None
    else:
        function = PciFunction("", "", "", (name,), ())
    link = host.link(name) if name else None
    if link is None or link.name != name:  # renamed meanwhile, and the name is an altname of another one
        raise _missing(wanted, conf.where, host)
    _refuse_unmovable(link, function.address)
    asked = sysfs.relatives(function.address) if function.address else Relatives((name,))
    use = owned.use(state_dir, asked.all, conf.claim)
    takes = wanted.useInterfaceNetwork
    needed.refuse(link, asked, use, host, other="name another interface", takes=takes)
    if needed.is_pair(link):
        needed.refuse_end_of_pair(link, host, state_dir, own=own)
    return function, link


def _on_bus(address: str) -> PciFunction:
    """Return the device with its interface, or with a userspace driver.  Waits while a dying namespace still has the
    interface.  Raises CniError."""
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        function = sysfs.device(address)
        if function is None:
            raise LinkUnavailable(
                f"device {address!r} is not on this host now; if kubelet allocated it, delete the pod, and its "
                "successor gets another; else see: ls /sys/bus/*/devices"
            )
        if len(function.netdevs) > 1:
            raise InvalidConfig(
                f"device {address!r} has several interfaces, {', '.join(function.netdevs)}, which cannot be "
                "distinguished in a pod; give the pod a VF or scalable function of it"
            )
        if function.netdevs or function.driver in sysfs.USERSPACE:
            return function
        if not function.driver:
            raise LinkUnavailable(f"device {address!r} has no driver, and so no interface; bind its driver")
    raise TryAgain(f"device {address!r} has no interface on the host: it is in another namespace, or never had one")


def _missing(wanted: "HostDevice", where: "Location", host: Rtnl) -> DeviceInUse | LinkUnavailable:
    """Return the error for an interface that is not on the host, with the attachment that owns it by the journal."""
    key, value = ("device", wanted.device) if wanted.device else ("hwaddr", wanted.hwaddr)
    for record in journal.naming(where.state_dir, value):
        home = record.link.get("home") or {}
        if record.of_this_boot and value in (home.get("name"), home.get("mac"), *home.get("altnames", ())):
            devices = [record.device] if record.device else []
            return DeviceInUse(
                f"{key} {value!r} belongs to {record.title}, since {record.time}; delete that first", *devices
            )
    if wanted.device and host.link(other := device.instead_of(wanted.device)):
        return LinkUnavailable(
            f"{key} {value!r} is not an interface of the host; it came home as {other}, because another interface had "
            f"its name then; run: ip link set {other} name {value}"
        )
    return LinkUnavailable(f"{key} {value!r} is not an interface of the host; correct it, see: ip link")


def _refuse_unmovable(link: Link, address: str) -> None:
    """Raise InvalidConfig or LinkUnavailable for an interface that the kernel does not move, or that could not be
    restored.  ``address`` is empty for software."""
    name = link.name
    if name == "lo":
        raise InvalidConfig("device 'lo' belongs to its namespace; name another interface")
    if link.infiniband:
        raise LinkUnavailable(
            f"{name!r} is InfiniBand, where no interface moves with its device; use kind "
            "sriov, for a function that is not a VF with pfOnly: true"
        )
    if not address and not device.can_set_index():
        raise LinkUnavailable(f"{name!r} is made of software, which needs Linux 5.13 to be moved safely")


def _bring_software_home(p: Plan, software: Software, pod: Pod, ifname: str) -> None:
    """Move a link made of software home from the pod, or from where the pod has put it.  Raises OSError, CniError.

    The link is identified by its index in the pod.  The pod sees that index, may move the host's link away, and give
    the index to a link of its own.  But it cannot make a link over the same device of the host.  For a veth, that
    device is the peer, which already has its other end.

    If no link found is over the host's device that ADD saw, move all of them.  A pair's other end may have moved
    meanwhile, and a dummy is over nothing.
    """
    if software.over:
        with netns.hold_open("/proc/self/ns/net") as own:
            for place in chain([pod], device.hidden(p, pod, own)):
                link = device.find(p, place, ifname)
                if link and link.parent == software.over and link.parent_nsid == nsid.number(place.rtnl, own):
                    device.take(p, place, ifname, own)
                    return
    device.bring_home(p, pod, ifname)


def _bring_software_home_from_anywhere(p: Plan, ifname: str) -> None:
    """Move a dead pod's link home from another pod's namespace, to which it moved the link.  Raises OSError,
    CniError."""
    with netns.hold_open("/proc/self/ns/net") as own:
        for place in _visible_namespaces(netns.inode(own)):
            if device.find(p, place, ifname):
                device.take(p, place, ifname, own)


def _visible_namespaces(host: int) -> Iterator[Pod]:
    """Yield every namespace that a visible mount or process has, except the host's."""
    for number, path in (netns.inhabited() or {}).items():
        if number != host:
            with suppress(OSError), netns.hold_open(path) as fd, rtnl.open_in(fd) as inside:  # it may have ended
                yield Pod(path, fd, inside, ours=False)
