"""host-device: an interface of the host, moved into the pod as it is, and put back as it was.

Hardware is known by its bus address wherever it is and whatever it is called, as a VF is: a PCI function, a device of
the auxiliary bus such as a scalable function, a virtio or USB NIC.  When a pod's namespace dies, the kernel brings it
home by itself, late and under the pod's name (default_device_exit_net).

An interface made of software (veth, dummy, VLAN) is known by the ifindex that it is given in the pod, which no link has
and nobody can guess; DEL gives it its own again.  The kernel removes it with the namespace.

A device that a userspace driver has (vfio-pci) has no interface, and the pod drives it itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cni.kernel import rtnl, sysfs
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.kinds import child, device, escaped
from cni.kinds.escaped import Search
from cni.kinds.host_device import choose, software
from cni.kinds.host_device.plan import Plan
from cni.kinds.moved import Netdev, Software
from cni.parts import rdma
from cni.protocol.errors import CheckFailed, TryAgain
from cni.protocol.result import Interface
from cni.protocol.spec import Json
from cni.state import owned
from cni.state.pod import Pod

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.config import NetConf
    from cni.models.host_device import HostDevice


@contextmanager
def claiming(conf: "NetConf") -> Iterator[None]:
    """Kind.claiming: one at a time decides over a device, by whichever key it is named, and over a PF and its VFs."""
    address, name = choose.locate(cast("HostDevice", conf.attach))
    function = sysfs.device(address) if address else None
    with owned.lock((function.pf if function else "") or address or name):
        yield


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan."""
    wanted = cast("HostDevice", conf.attach)
    function, link = choose.find(wanted, conf.where, host, pod.fd)
    if link:
        if function.address:
            device.refuse_unnamed(link, function.address)
        device.refuse_taken_altname(link, function.address or link.name, pod)
    else:
        device.refuse_what_needs_an_interface(wanted, function.driver, function.address)
    moved, rdma_devs = rdma.of_function(wanted.rdma, function)
    pci = sysfs.pci_of(function.address) if function.address else ""
    return Plan(
        device=function.address,
        incarnation=sysfs.incarnation(function.address) if function.address else 0,
        pci=pci,
        pf=function.pf,
        netdev=link.name if link else "",
        home=Netdev.of(link) if link else None,
        software=Software.of(link, child.unlikely_index()) if link and not function.address else None,
        mtu=wanted.mtu,
        rdma=moved,
        rdma_devs=rdma_devs,
    ).to_json()


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.attach: one message that moves and renames, then the RDMA devices."""
    p = Plan.from_json(plan)
    if p.home is None:
        return None
    link = device.here(host, p.netdev, p.device)
    if link.device != p.device or (p.software and link.index != p.software.at_home):
        raise TryAgain(f"{p.netdev} is another interface now than it was a moment ago")
    there = device.give(host, link, p, pod, ifname)
    rdma.give(p.rdma, pod)
    rdma.rename(p.rdma, p.rdma_devs, pod)
    return there


def interfaces(plan: Json, link: Link | None, _host: Rtnl, pod: Pod, ifname: str) -> tuple[Interface, ...]:
    """Kind.interfaces."""
    mac, mtu = (link.mac, link.mtu) if link else ("", 0)
    return (Interface(ifname, mac, sandbox=pod.path, mtu=mtu, pci_id=plan["pci"]),)


def stands(plan: Json, pod: Pod, ifname: str) -> bool:
    """Kind.stands."""
    return device.stands(Plan.from_json(plan), pod, ifname)


def detach(plan: Json, pod: Pod | None, ifname: str, _found: Callable[[], None]) -> Search | None:
    """Kind.detach: home, and as it was.  What is no more, or has another driver now, has nothing to restore."""
    p = Plan.from_json(plan)
    if p.home is None or not p.exists:
        return None
    index = device.put_back(p, partial(_put_back, p, p.home, pod, ifname))
    if not index and p.software:
        return _ended(p, p.software, pod)
    search = escaped.stacked(index, pod)
    if note := _renamed(p, index):
        search = replace(search or Search(0), note=note)
    return search


def check(plan: Json, _host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.check."""
    p = Plan.from_json(plan)
    if not p.exists:
        raise CheckFailed(f"{p.device} is gone, or another one now")
    if p.home is None:
        return None
    link = device.find(p, pod, ifname)
    if link is None or link.name != ifname:
        raise CheckFailed(f"{ifname} in {pod.path} is not the host's {p.netdev} ({p.device or 'software'})")
    device.refuse_other_arp(link, p.home)
    rdma.check(p.rdma, p.rdma_devs, pod)
    return link


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: that the interface that the configuration names can be served; of one that the runtime chose for a
    pod (deviceID) nothing, for it may be in that pod."""
    wanted = cast("HostDevice", conf.attach)
    if wanted.rdma.mode != "off":
        rdma.is_exclusive(wanted.rdma)
    if not wanted.deviceID:
        function, link = choose.find(wanted, conf.where, host)
        if link and function.address:
            device.refuse_unnamed(link, function.address)
        rdma.of_function(wanted.rdma, function)


def describe(plan: Json, _interfaces: list[Json]) -> tuple[str, Json]:
    """Kind.describe."""
    address, netdev = str(plan["device"]), str(plan["netdev"])
    words = f"{netdev} ({address})" if address and netdev else address or netdev
    return words, {"device": address or netdev, "netdev": netdev, **({"pf": plan["pf"]} if plan["pf"] else {})}


def _renamed(p: Plan, index: int) -> str:
    """What is to be said of an interface that is home under another name, because its own is another's now."""
    with rtnl.open_in() as host:
        link = host.link(index=index) if index else None
    if not link or link.name == p.netdev:
        return ""
    return (
        f"the host's interface {p.netdev} came home as {link.name}, because another one has its name; rename that one, "
        f"then: ip link set {link.name} name {p.netdev}"
    )


def _ended(p: Plan, what: Software, pod: Pod | None) -> Search | None:
    """What is to be said of an interface of software that is nowhere to be found."""
    if not pod:
        gone = f"the host's interface {p.netdev} is no more: the kernel removes a {what.kind} with its namespace"
        return Search(0, note=gone)
    if not p.index:
        return None  # ADD came not so far that the pod could have used it
    return Search(0, missing=f"the host's {p.netdev} is neither in the pod nor in namespaces that it moved links to")


def _put_back(p: Plan, was: Netdev, pod: Pod | None, ifname: str, host: Rtnl) -> int:
    """The interface's index, where it is home; 0 if it is no more."""
    if p.software:
        if pod:
            software.bring_home(p, p.software, pod, ifname)
        elif not _at_home(p, host):
            software.bring_home_from_anywhere(p, ifname)
    elif pod:
        device.bring_home(p, pod, ifname)
    link = _at_home(p, host)
    if link is None:
        return 0
    device.restore(host, link, was, partial(device.set_mac, host))
    rdma.settle(p.rdma, p.device)
    return link.index


def _at_home(p: Plan, host: Rtnl) -> Link | None:
    """The interface on the host; None if it is no more.  Software's is gone with the pod's namespace."""
    if p.software:
        # Its own index last: if another link of the host has that now, ours came home with the one it had in the pod.
        indexes = p.software.in_pod, p.software.at_home
        found = (host.link(index=index) for index in indexes)
        return next((link for link in found if link and link.kind == p.software.kind), None)
    name = device.name_at_home(p.device)
    return device.here(host, name, p.device) if name else None
