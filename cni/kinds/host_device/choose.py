"""Which interface an attachment gets, and which the host cannot spare; looks only, under the device's lock."""

from typing import TYPE_CHECKING

from cni.kernel import rtnl, sysfs
from cni.kernel.budget import attempts
from cni.kernel.links import RTM_GETLINK, Link, get_link, parse_link
from cni.kernel.rtnl import Rtnl
from cni.kernel.sysfs import Function
from cni.kinds import device, needed, wires
from cni.protocol.errors import DeviceInUse, InvalidConfig, LinkUnavailable, TryAgain
from cni.state import journal, owned, places

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.models.host_device import HostDevice
    from cni.protocol.location import Location


def locate(wanted: "HostDevice") -> tuple[str, str]:
    """The device's bus address, empty for an interface without one, and the interface's name, empty where the address
    says which.  Neither need exist.  Raises InvalidConfig where several interfaces have the MAC."""
    if address := wanted.deviceID or wanted.kernelpath.rpartition("/")[2]:
        return sysfs.with_netdev(address), ""
    name = wanted.device or _with_mac(wanted.hwaddr)
    return sysfs.device_of(name) if name else "", name


def _with_mac(mac: str) -> str:
    """The host's interface of that MAC: the hardware, where links over it have its MAC too.  Empty if there is none."""
    with rtnl.open_in() as host:
        links = [link for body in host.dump(RTM_GETLINK, get_link()) if (link := parse_link(body)).mac == mac]
    names = sorted(link.name for link in links if link.device) or sorted(link.name for link in links)
    if len(names) > 1:  # guard: one-of-a-mac
        raise InvalidConfig(f"hwaddr {mac!r} is that of {', '.join(names)}; set device to one of them")
    return "".join(names)


def find(wanted: "HostDevice", where: "Location", host: Rtnl, own: int | None = None) -> tuple[Function, Link | None]:
    """The device, free, with its interface, or with none where the pod drives the device itself.  What is not on a bus
    stands as a device without driver.  ``own`` is the pod's namespace.  Raises CniError saying why there is none."""
    address, name = locate(wanted)
    if address:
        _refuse_owned(where, address)
        function = _on_bus(address)
        name = name or "".join(function.netdevs)
        if not name:
            return function, None
    else:
        function = Function("", "", "", (name,), ())
    link = host.link(name) if name else None
    if link is None:
        raise _missing(wanted, where, host)
    if link.name != name:  # guard: altname
        raise LinkUnavailable(f"device {name!r} is an altname of {link.name}; write that")
    _refuse_unmovable(link, function.address)
    vfs = sysfs.vfs(function.address) if function.address else ()
    use = owned.use(places.state_dirs_with(where.state_dir), vfs)
    needed.refuse(link, function.address, use, host, other="name another interface")
    if wires.is_pair(link):  # guard: a-pods-wire
        wires.refuse(link, host, use.state_dirs, own=own)
    return function, link


def _on_bus(address: str) -> Function:
    """It, with its interface, unless a userspace driver has it.  Waits for one that a dying namespace still has."""
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        function = sysfs.device(address)
        if function is None:
            raise LinkUnavailable(f"device {address!r} is not on this host; see: ls /sys/bus/*/devices")
        if len(function.netdevs) > 1:
            raise InvalidConfig(
                f"device {address!r} has several interfaces, {', '.join(function.netdevs)}, which nothing would tell "
                "from each other in a pod; give the pod a VF or scalable function of it"
            )
        if function.netdevs or function.driver in sysfs.USERSPACE:
            return function
        if not function.driver:
            raise LinkUnavailable(f"device {address!r} has no driver, and so no interface; bind its driver")
    raise TryAgain(f"device {address!r} has no interface on the host: it is in another namespace, or never had one")


def _missing(wanted: "HostDevice", where: "Location", host: Rtnl) -> DeviceInUse | LinkUnavailable:
    """Why the interface is not on the host: an attachment has it, as far as the journal knows, or there is none."""
    key, value = ("device", wanted.device) if wanted.device else ("hwaddr", wanted.hwaddr)
    named = (r for one in places.state_dirs_with(where.state_dir) for r in journal.naming(one, value))
    for record in named:
        home = record.link.get("home") or {}
        if record.of_this_boot and value in (home.get("name"), home.get("mac")):
            devices = [record.device] if record.device else []
            return DeviceInUse(
                f"{key} {value!r} belongs to {record.whose}, since {record.time}; delete that first", *devices
            )
    if wanted.device and host.link(other := device.instead_of(wanted.device)):
        return LinkUnavailable(
            f"{key} {value!r} is no interface of the host; it came home as {other}, because another interface had its "
            f"name then; run: ip link set {other} name {value}"
        )
    return LinkUnavailable(f"{key} {value!r} is no interface of the host; correct it, see: ip link")


def _refuse_owned(where: "Location", address: str) -> None:
    if owner := owned.owner(places.state_dirs_with(where.state_dir), address):
        raise DeviceInUse(
            f"device {address!r} belongs to {owner.whose}, since {owner.time}; delete that first", owner.device
        )


def _refuse_unmovable(link: Link, address: str) -> None:
    """Raise for what no kernel moves, or what would not come back as it was.  ``address`` is empty for software."""
    name = link.name
    if name == "lo":  # guard: lo
        raise InvalidConfig("device 'lo' is every namespace's own; name another interface")
    if link.infiniband:
        raise LinkUnavailable(f"{name!r} is InfiniBand, whose interface does not move with its device; use kind sriov")
    if not address and not device.keeps_software_apart():
        raise LinkUnavailable(f"{name!r} is made of software, which needs Linux 5.13 to be moved safely")
