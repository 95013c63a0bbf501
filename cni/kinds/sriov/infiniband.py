"""VFs and PFs with an InfiniBand link.

The netdev belongs to ib_ipoib, a client of the RDMA device.  When that device moves, the kernel removes the netdev and
makes another one, in the first namespace, or since Linux 7 in the RDMA device's.  So the RDMA device moves first, in
both directions, and then we search the netdev by its PCI function.

A VF gets its GUIDs through the PF, and mlx5's VF reads them only when its driver is bound, so a change takes another
bind.  That replaces RDMA device and netdev, so we rely on no index or name of theirs in the journal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from base.kernel import dump, netns, pci, rdma_netlink, sysfs
from base.kernel.budget import attempts
from base.kernel.links import IFLA_IFNAME, IFLA_MTU, Link
from base.kernel.netlink import attr, text, u32
from base.kernel.rtnl import Rtnl
from base.kernel.vf import VfSettings
from base.protocol.errors import CheckFailed, InvalidConfig, TryAgain, doing
from base.protocol.spec import Json
from base.state import numbers, owned
from base.state.pod import Pod
from cni.kinds import device
from cni.kinds.sriov import attributes
from cni.kinds.sriov.attributes import Plan, Port

if TYPE_CHECKING:
    from cni.models import NetConf

T = TypeVar("T")

# Keys that an IPoIB netdev does not support, and why.
_REFUSED: Final = {
    "mac": "which derives its address from its GUID; remove mac, or set guid",
    "vlan": "where the subnet manager sets partitions (pkeys); remove vlan",
    "spoofchk": "which has no MAC to check; remove spoofchk",
    "trust": "which has no MAC to trust it with; remove trust",
}
# No GUID.  ib-sriov-cni too sets this on a VF that had none.
_NONE: Final = "ff:ff:ff:ff:ff:ff:ff:ff"
_REBIND_TIMEOUT: Final = 20.0


def wait_until_complete(function: sysfs.PciFunction) -> sysfs.PciFunction:
    """Return the function with its netdev and RDMA devices.  Waits for those that a dying namespace still has, because
    an RDMA device that comes home removes a netdev that came before.  Raises TryAgain."""

    def here() -> sysfs.PciFunction | None:
        now = sysfs.function(function.address)
        complete = now and sysfs.ipoib_netdev(now.netdevs) and now.rdma_devs == sysfs.rdma_names(now.address)
        return now if complete else None

    if function.driver in sysfs.USERSPACE:
        return function
    return _until(here, f"the RDMA device of {function.address} is in another namespace still")


def port(function: sysfs.PciFunction) -> Port:
    """Return the function's state that DEL restores besides the netdev."""
    return Port(function.driver, function.rdma_devs, sysfs.ipoib_mode(sysfs.ipoib_netdev(function.netdevs)))


def refuse(conf: "NetConf", function: sysfs.PciFunction) -> None:
    """Raise InvalidConfig for a key that an InfiniBand function does not support."""
    asked = {key: getattr(conf.attach, key) for key in _REFUSED} | {"mac": conf.mac or None}
    for key, why in _REFUSED.items():
        if asked[key] is not None:
            raise InvalidConfig(f"{key} {asked[key]!r}: {function.address} is InfiniBand, {why}")
    if name := conf.attach.rdma.name:
        raise InvalidConfig(
            f"rdma.name {name!r}: {function.address} is InfiniBand, where a name is not kept; remove rdma.name"
        )
    if conf.attach.soft_roce:
        raise InvalidConfig(f"rdma.mode rxe: {function.address} is InfiniBand, which has no RoCE; set auto")
    if "useInterfaceNetwork" in conf.attach.of_the_interface:
        raise InvalidConfig(
            f"useInterfaceNetwork: {function.address} is InfiniBand, where no interface moves with it; remove the key"
        )
    if conf.guid and not function.pf:
        raise InvalidConfig(f"guid {conf.guid!r}: {function.address} is a PF, which has its own; remove guid")


def guids(wanted: str, before: VfSettings, address: str) -> tuple[Json, VfSettings]:
    """Return the attributes that give the VF this GUID, and those from before: the PF's, else the VF's own."""
    if not wanted:
        return {}, before
    node, port = (own if own.strip("0:") else _NONE for own in sysfs.guids(address) or (_NONE, _NONE))
    before = replace(before, node_guid=before.node_guid or node, port_guid=before.port_guid or port)
    return {"node_guid": wanted, "port_guid": wanted}, before


def give(host: Rtnl, p: Plan, port: Port, pod: Pod, ifname: str) -> Link:
    """Move the function into the pod, after its PF got the GUID.  Raises TryAgain, OSError."""
    if guid := p.wanted.get("port_guid"):
        _adopt_guids(p, port, guid, guid)
        _rename(p, port)
    if p.rdma:
        _move(p, pod, to=pod.fd, of=None)
    where, link = _until(lambda: _find_netdev(host, p, pod), f"{p.device} has no IPoIB interface; is ib_ipoib loaded?")
    if where is host:
        return device.give(host, link, p, pod, ifname)
    with doing(f"renaming {link.name} ({p.device}) in {pod.path} to {ifname}"):
        body = attr(IFLA_IFNAME, text(ifname)), *([attr(IFLA_MTU, u32(p.mtu))] if p.mtu else [])
        where.set_link(link.index, *body)
    return device.here(where, ifname, p.device)


def detach(host: Rtnl, p: Plan, port: Port, pod: Pod | None, ifname: str) -> None:
    """Move the function home and restore it.  Raises CniError, OSError."""
    if p.home and pod:
        with netns.hold_open("/proc/self/ns/net") as own:
            if p.rdma:
                _move(p, pod, to=own, of=pod.fd)
            device.take(p, pod, ifname, own)
    if p.pf:
        # Before the next bind, in which the VF reads its GUIDs.
        attributes.restore(host, p)
    if p.home and (name := _settle(host, p, port)):
        # The MAC contains a queue pair's number and cannot be set.
        device.restore(host, device.here(host, name, p.device), p.home, set_mac=None)


def check(p: Plan, pod: Pod) -> None:
    """Raise CheckFailed unless the RDMA devices that moved are in the pod."""
    for name in sysfs.rdma_names(p.device) if p.rdma else ():
        if rdma_netlink.index_of(name, pod.fd) is None:
            raise CheckFailed(f"RDMA device {name} is not in {pod.path}")


def _settle(host: Rtnl, p: Plan, port: Port) -> str:
    """Wait until the function's devices are on the host with the GUIDs that the PF has now.  Returns the netdev's name;
    empty if no driver makes one.  Raises TryAgain, OSError."""
    rebound = "port_guid" in p.wanted
    if rebound:
        with _try_again_later():
            pci.wait(p.device, _REBIND_TIMEOUT, owned.rebinding(p.device))
    function = sysfs.function(p.device)
    # Without a driver, an earlier undo may have died between unbind and bind.
    if function is None or function.driver in sysfs.USERSPACE or not (function.driver or rebound):
        return ""
    if function.driver and not _rdma_home(p.device):
        return ""
    if rebound:
        _adopt_guids(p, port, p.before.node_guid, p.before.port_guid)
    _rename(p, port)
    if not sysfs.is_loaded("ib_ipoib"):
        return ""
    _, link = _until(lambda: _find_netdev(host, p, None), f"the IPoIB interface of {p.device} has not come back yet")
    if port.mode and sysfs.ipoib_mode(link.name) != port.mode:
        # Before the MTU, which is lower in datagram mode.
        with doing(f"setting {link.name} ({p.device}) to mode {port.mode}"):
            sysfs.set_ipoib_mode(link.name, port.mode)
    return link.name


def _adopt_guids(p: Plan, port: Port, *guids: str | None) -> None:
    """Bind the VF's driver again, on the host, unless it already has the node and port GUID that its PF keeps."""
    if sysfs.guids(p.device) == guids:
        return
    with numbers.lock():
        with doing(f"binding {p.device} to {port.driver} again, for its GUIDs"), _try_again_later():
            pci.rebind(p.device, port.driver, _REBIND_TIMEOUT, owned.rebinding(p.device))
        _until(lambda: _rdma_here(p.device), f"{p.device} has no RDMA device; is {port.driver}'s loaded?")


def _rename(p: Plan, port: Port) -> None:
    """Restore the RDMA devices' names on the host, because a device plugin may have offered them.  A name that another
    device has now stays with that device."""
    for now, was in zip(sysfs.rdma_names(p.device), port.rdma, strict=False):
        index = rdma_netlink.index_of(now)
        if now != was and index is not None:
            with suppress(FileExistsError), doing(f"renaming RDMA device {now} back to {was}"):
                rdma_netlink.rename(index, was)


def _move(p: Plan, pod: Pod, *, to: int, of: int | None) -> None:
    """Move the function's RDMA devices from the namespace ``of`` (None: the host's) to the namespace ``to``."""
    for name in sysfs.rdma_names(p.device):
        index = rdma_netlink.index_of(name, of)
        if index is not None:
            way, lock = ("to", numbers.lock) if of is None else ("back from", numbers.lock_for_a_moment)
            with lock(), doing(f"moving RDMA device {name} {way} {pod.path}"):
                rdma_netlink.move(index, to=to, of=of)


def _rdma_home(address: str) -> bool:
    """Wait until the function's RDMA devices are on the host.  Returns False if it has none, as without an RDMA driver.
    Raises TryAgain."""
    elsewhere = False
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        if _rdma_here(address):
            return True
        elsewhere = elsewhere or bool(sysfs.rdma_names(address))
    if elsewhere:
        raise TryAgain(f"the RDMA device of {address} has not come back yet")
    return False


def _rdma_here(address: str) -> bool:
    """Whether the function has its RDMA devices, and all of them are on the host."""
    function = sysfs.function(address)
    return function is not None and bool(function.rdma_devs) and function.rdma_devs == sysfs.rdma_names(address)


def _find_netdev(host: Rtnl, p: Plan, pod: Pod | None) -> tuple[Rtnl, Link] | None:
    """Return the netdev with a socket in its namespace: the host's or the pod's."""
    function = sysfs.function(p.device)
    if function and (name := sysfs.ipoib_netdev(function.netdevs)) and (link := host.link(name)):
        return host, link
    if pod and (index := dump.link_of_device(pod.fd, p.device)) and (link := pod.rtnl.link(index=index)):
        return pod.rtnl, link
    return None


@contextmanager
def _try_again_later() -> Iterator[None]:
    """Turn a timeout into TryAgain, because the driver may complete later."""
    try:
        yield
    except TimeoutError as e:
        raise TryAgain(str(e)) from e


def _until(look: Callable[[], T | None], otherwise: str) -> T:
    """Call ``look`` until its result is true, and return that.  Raises TryAgain."""
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        if seen := look():
            return seen
    raise TryAgain(otherwise)
