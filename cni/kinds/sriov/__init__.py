"""Kind sriov: a VF, configured through its PF, moved into the pod with its RDMA devices, and restored.

The VF is identified by its PCI address, in any namespace and under any name.  /sys has that address on the host, and
IFLA_PARENT_DEV_NAME has it in the pod.  When a pod's namespace dies, the kernel returns netdev and RDMA devices by
itself, late and under the pod's name (default_device_exit_net, rdma_dev_exit_net).

A VF of a userspace driver (vfio-pci) only gets its attributes.  A PF itself (pfOnly) moves like a VF, and has no
attributes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from base.kernel import rtnl, sysfs, vf
from base.kernel.budget import attempts
from base.kernel.links import Link
from base.kernel.rtnl import Rtnl
from base.kernel.sysfs import Relatives
from base.kernel.vf import VfSettings
from base.protocol.errors import CheckFailed, DeviceInUse, InvalidConfig, LinkUnavailable, NoneFree, TryAgain
from base.protocol.result import Interface
from base.protocol.spec import Json
from base.state import owned
from base.state.pod import Pod
from cni.features import rdma
from cni.kinds import device
from cni.kinds.escaped import Search
from cni.kinds.sriov import attributes, infiniband
from cni.kinds.sriov.attributes import Plan
from hardware import needed

if TYPE_CHECKING:
    from cni.models import NetConf
    from cni.models.sriov import Sriov


@contextmanager
def claiming(conf: "NetConf") -> Iterator["NetConf"]:
    """Kind.claiming: one ADD at a time chooses among a PF and its VFs."""
    wanted = _wanted(conf)
    with owned.lock(sysfs.address_of(wanted.pf) if wanted.pf else wanted.deviceID):
        yield conf


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan: choose the function, and read its state on the host and on its PF."""
    wanted = _wanted(conf)
    function = _find(wanted, conf, host)
    pf = attributes.netdev_of_pf(function.pf, host) if function.pf else None
    if pf and pf.infiniband:
        function = infiniband.wait_until_complete(function)
    name = sysfs.uplink(function)
    link = device.here(host, name, function.address) if name else None
    common = device.Moved.common(wanted, function, link, pod)
    is_ib = any(side.infiniband for side in (pf, link) if side)
    if is_ib:
        infiniband.refuse(conf, function)
    elif conf.guid:
        raise InvalidConfig(f"guid {conf.guid!r}: {function.address} is Ethernet, which has no GUID; remove guid")
    number, before = _on_pf(conf, function, pf) if pf else (-1, VfSettings())
    guids, before = infiniband.guids(conf.guid, before, function.address)
    if link:
        device.refuse_unnamed(link, function.address)
    return Plan(
        **common,
        number=number,
        before=before,
        wanted=wanted.attributes() | ({"mac": conf.mac} if conf.mac and function.pf else {}) | guids,
        mac=conf.mac,
        port=infiniband.port(function) if is_ib else None,
    ).to_json()


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.attach: set attributes on the PF, move and rename the netdev by one message, then move the RDMA devices."""
    p = Plan.from_json(plan)
    link = device.here(host, p.netdev, p.device) if p.home else None
    if link and p.mac:
        attributes.set_mac(host, p, link, p.mac)
    attributes.apply(host, p)
    if link is None:
        return None
    if p.port:
        return infiniband.give(host, p, p.port, pod, ifname)
    return device.give(host, link, p, pod, ifname)


def interfaces(plan: Json, link: Link | None, host: Rtnl, pod: Pod, ifname: str) -> tuple[Interface, ...]:
    """Kind.interfaces: the pod's interface, then its PF's."""
    p = Plan.from_json(plan)
    pf = attributes.netdev_of_pf(p.pf, host) if p.pf else None
    mac, mtu = (link.mac, link.mtu) if link else ("", 0)
    if pf and not link:
        # The host cannot read the device itself, which chooses a MAC if the PF gave it none.
        mac, mtu = attributes.now(host, p).mac or "", pf.mtu
    ours = Interface(ifname, mac, sandbox=pod.path, mtu=mtu, pci_id=p.device)
    return (ours, Interface(pf.name, pf.mac, mtu=pf.mtu, pci_id=p.pf)) if pf else (ours,)


def stands(plan: Json, pod: Pod, ifname: str) -> bool:
    """Kind.stands."""
    return device.stands(Plan.from_json(plan), pod, ifname)


def detach(plan: Json, pod: Pod | None, ifname: str, _found: Callable[[], None]) -> Search | None:
    """Kind.detach: move the device home and restore it.  There is nothing to restore if the device is gone or has
    another driver now."""
    p = Plan.from_json(plan)
    if not p.exists:
        return None
    return device.settled(p, device.put_back(p, partial(_put_back, p, pod, ifname)), pod)


def check(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link | None:
    """Kind.check: compare interface, attributes on the PF, and RDMA devices."""
    p = Plan.from_json(plan)
    link = device.check(p, pod, ifname, p.device)
    if why := attributes.differing(host, p):
        raise CheckFailed(f"VF {p.device} has {why}")
    if link and p.port:
        infiniband.check(p, pod)
    return link


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: with ``pf``, check that an ADD would get a device.  With ``deviceID`` the device is not checked,
    because it may be in the pod that it was chosen for."""
    wanted = _wanted(conf)
    if wanted.rdma.mode != "off":
        rdma.is_exclusive(wanted.rdma)
    if wanted.pf:
        function = _find(wanted, conf, host)
        # The device has no link if an ADD takes it just now; then another one is free.
        if (name := sysfs.uplink(function)) and (link := host.link(name)):
            device.refuse_unnamed(link, function.address)
        rdma.of_function(wanted.rdma, function)


def describe(plan: Json, interfaces: list[Json]) -> tuple[str, Json]:
    """Kind.describe."""
    address, pf = str(plan["device"]), plan["pf"]
    if not pf:
        return address, {"device": address}
    # The PF's name at ADD's time, as everything in a record.
    name = "".join(i["name"] for i in interfaces[1:2])
    described = {"device": address, "pf": pf, "pfName": name, "vf": plan["number"]}
    return f"{address} VF {plan['number']} of {name or pf}", described


def _wanted(conf: "NetConf") -> "Sriov":
    """The kind's keys, with the PF's name in place of an altname."""
    wanted = cast("Sriov", conf.attach)
    name = rtnl.real_name(wanted.pf)
    return wanted if name == wanted.pf else wanted.model_copy(update={"pf": name})


def _on_pf(conf: "NetConf", function: sysfs.PciFunction, pf: Link) -> tuple[int, VfSettings]:
    """Return the VF's number on its PF, and its present attributes.  Raises LinkUnavailable; InvalidConfig for a value
    that the PF cannot have."""
    wanted = _wanted(conf)
    vfs = vf.parse(pf.vfs)
    number = next((n for n, address in enumerate(sysfs.vfs(function.pf)) if address == function.address), -1)
    if number not in vfs:
        raise LinkUnavailable(f"{pf.name} reports no VF {function.address}; is it the VF's PF?")
    if wanted.mtu > pf.mtu:
        raise InvalidConfig(f"mtu {wanted.mtu} is above {pf.mtu}, that of PF {pf.name!r}; lower it or raise that")
    for key in ("min_tx_rate", "max_tx_rate"):
        rate, speed = getattr(wanted, key) or 0, sysfs.speed(pf.name)
        if 0 < speed < rate:
            raise InvalidConfig(f"{key} {rate} is above {speed}, the speed of PF {pf.name!r} in Mbit/s; lower it")
    others = {other.mac: f"VF {n}" for n, other in vfs.items() if n != number} | {pf.mac: "the PF itself"}
    if conf.mac and conf.mac in others:
        raise InvalidConfig(f"mac {conf.mac!r} is that of {others[conf.mac]} of {pf.name!r}; choose another")
    return number, vfs[number]


def _put_back(p: Plan, pod: Pod | None, ifname: str, host: Rtnl) -> int:
    """Move everything home and restore it.  Returns the ifindex of an Ethernet netdev that is home now, else 0."""
    index = 0
    if p.port:
        infiniband.detach(host, p, p.port, pod, ifname)
        return 0
    if p.home:
        if pod:
            device.bring_home(p, pod, ifname)
        if name := device.name_at_home(p.device):
            link = device.here(host, name, p.device)
            device.restore(host, link, p.home, partial(attributes.set_mac, host, p))
            rdma.settle(p.rdma, p.device)
            index = link.index
    if p.pf:
        attributes.restore(host, p)
    return index


def _find(wanted: "Sriov", conf: "NetConf", host: Rtnl) -> sysfs.PciFunction:
    """Return the function that the configuration asks for, if no other pod has it.  Raises CniError with the
    reason."""
    state_dir = conf.where.state_dir
    if wanted.pfOnly:
        return _find_pf(wanted, state_dir, conf.claim, host)
    addresses = (wanted.deviceID,) if wanted.deviceID else _vfs_of(wanted.pf)
    if wanted.pf and wanted.vf is None:
        return _find_free_vf(wanted.pf, addresses, state_dir, conf.claim, host)
    if (number := wanted.vf or 0) >= len(addresses):
        raise InvalidConfig(f"vf {number}: pf {wanted.pf!r} has VFs 0 to {len(addresses) - 1}")
    address = addresses[number]
    what = f"vf {number} of pf {wanted.pf!r} ({address})" if wanted.pf else f"deviceID {address!r}"
    use = owned.use(state_dir, sysfs.relatives(address).all, conf.claim)
    if owner := use.devices.get(address):
        raise DeviceInUse(f"{what} belongs to {owner.title}, since {owner.time}; delete that first", address)
    function = _on_host(address)
    needed.refuse_function(function, use, host, prefix=f"{what}: ")
    return function


def _on_host(address: str, *, whole: bool = False) -> sysfs.PciFunction:
    """Return the VF at an address, or the whole function, with its netdev or a userspace driver.  Waits while a dying
    namespace still has the netdev.  Raises CniError."""
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        function = sysfs.function(address)
        if function is None:
            raise LinkUnavailable(
                f"deviceID {address!r} is not a PCI function of this host now; if kubelet allocated it, delete "
                "the pod, and its successor gets another; else see: ls /sys/bus/pci/devices"
            )
        if whole and function.pf:
            raise InvalidConfig(f"deviceID {address!r} is a VF; remove pfOnly")
        if not (whole or function.pf):
            raise InvalidConfig(_not_a_vf(function))
        if function.netdevs or function.driver in sysfs.USERSPACE:
            return function
        if not function.driver:
            raise LinkUnavailable(
                f"deviceID {address!r} has no driver; bind it: echo {address} > /sys/bus/pci/drivers_probe"
            )
    raise TryAgain(f"deviceID {address!r} is in another namespace still, perhaps one that is being removed")


def _not_a_vf(function: sysfs.PciFunction) -> str:
    address = function.address
    if sysfs.vfs(address):
        return f"deviceID {address!r} is a PF; let the resource offer its VFs, or move the PF itself by pfOnly: true"
    return (
        f"deviceID {address!r} is not a VF; move the function itself: over Ethernet by kind host-device, over "
        "InfiniBand by kind sriov with pfOnly: true"
    )


def _vfs_of(pf: str) -> tuple[str, ...]:
    """Return the addresses of the PF's VFs, in the order of their numbers.  Raises LinkUnavailable if there are none;
    OSError."""
    address = sysfs.address_of(pf)
    if not address:
        sysfs.refuse_hidden()
        raise LinkUnavailable(f"pf {pf!r} is not a PCI network interface of this host; correct it, see: ip link")
    addresses = sysfs.vfs(address)
    if not addresses:
        raise LinkUnavailable(f"pf {pf!r} has no VFs; write their number to /sys/class/net/{pf}/device/sriov_numvfs")
    return addresses


def _find_free_vf(pf: str, addresses: tuple[str, ...], state_dir: Path, claim: str, host: Rtnl) -> sysfs.PciFunction:
    """Return the first VF that no pod has, that is down on the host, and that the host does not need.  Raises
    NoneFree; DeviceInUse if another pod has the PF."""
    why, pf_address = "", sysfs.address_of(pf)
    use = owned.use(state_dir, (*addresses, pf_address), claim)
    owned.refuse_held(use, Relatives(above=(pf_address,)), prefix=f"a VF of pf {pf!r}: ")
    for address in addresses:
        if address in use.devices or address in use.claimed:
            continue
        function = sysfs.function(address)
        if function is None or not function.netdevs:
            continue
        link = host.link(function.netdevs[0])
        if link is None or link.up:
            continue
        try:
            asked = sysfs.relatives(address)
            owned.refuse_held(owned.use(None, asked.all, claim), asked)  # a claim may name its interface
            needed.refuse_function(function, use, host)
        except (DeviceInUse, InvalidConfig, LinkUnavailable) as e:
            why = why or f"; the host needs {address}: {e}"
            continue
        return function
    raise NoneFree(
        f"pf {pf!r} has no free VF: all {len(addresses)} are attached, claimed, up on the host, elsewhere, or needed"
        f"{why}",
        *(address for address in addresses if address in use.devices),
    )


def _find_pf(wanted: "Sriov", state_dir: Path, claim: str, host: Rtnl) -> sysfs.PciFunction:
    """Return the PF itself, or a virtual machine's function that has no PF.  Raises CniError if the host or another pod
    needs it on the host."""
    pf, address = wanted.pf, wanted.deviceID
    what = f"pf {pf!r}" if pf else f"deviceID {address!r}"
    if owner := owned.owner(state_dir, pf or address):
        raise DeviceInUse(f"{what} belongs to {owner.title}, since {owner.time}; delete that first", owner.device)
    function = _on_host(address, whole=True) if address else sysfs.function(sysfs.address_of(pf))
    name = pf or (sysfs.uplink(function) if function else "")
    link = host.link(name) if name else None
    if function is None or link is None:
        raise LinkUnavailable(f"{what} is not a PCI network interface of this host; correct it, see: ip link")
    if function.pf:
        raise InvalidConfig(f"pf {pf!r} is a VF; give it as deviceID {function.address!r}, without pfOnly")
    asked = sysfs.relatives(function.address)
    use = owned.use(state_dir, asked.all, claim)
    takes = wanted.useInterfaceNetwork
    needed.refuse(link, asked, use, host, prefix="pfOnly: ", other="choose another PF", takes=takes)
    return function
