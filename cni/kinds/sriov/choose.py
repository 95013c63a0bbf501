"""Finds the PCI function that an attachment gets, under the PF's lock; changes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cni.kernel import links, sysfs, vf
from cni.kernel.budget import attempts
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.kinds import device, needed
from cni.protocol.errors import DeviceInUse, InvalidConfig, LinkUnavailable, NoneFree, TryAgain
from cni.state import owned, places

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.models.sriov import Sriov
    from cni.protocol.location import Location


def pf_address(wanted: "Sriov") -> str:
    """The address of the PF whose lock is to be taken; empty if there is no such PF, which ``find`` refuses."""
    if wanted.pf:
        return sysfs.address_of(wanted.pf)
    function = sysfs.function(wanted.deviceID)
    return function.pf if function else ""


def find(wanted: "Sriov", where: "Location", host: Rtnl) -> sysfs.Function:
    """The function that the configuration asks for, if no attachment has it.  Raises CniError, which says why there is
    none."""
    state_dirs = places.state_dirs_with(where.state_dir)
    if wanted.pfOnly:
        return find_pf(wanted.pf, state_dirs, host)
    addresses = (wanted.deviceID,) if wanted.deviceID else vfs_of(wanted.pf)
    use = owned.use(state_dirs, addresses)
    if wanted.pf and wanted.vf is None:
        return find_free_vf(wanted.pf, addresses, use, host)
    if (number := wanted.vf or 0) >= len(addresses):  # guard: vf-there
        raise InvalidConfig(f"vf {number}: pf {wanted.pf!r} has VFs 0 to {len(addresses) - 1}")
    address = addresses[number]
    what = f"vf {number} of pf {wanted.pf!r} ({address})" if wanted.pf else f"deviceID {address!r}"
    if owner := use.devices.get(address):  # guard: vf-owned
        raise DeviceInUse(f"{what} belongs to {owner.whose}, since {owner.time}; delete that first", address)
    function = find_vf(address)
    needed.refuse_function(function, use, host, said=f"{what}: ")  # guard: vf-needed
    return function


def find_vf(address: str) -> sysfs.Function:
    """The VF at an address.  It has its netdev, unless a userspace driver has the VF.  Waits while a dying namespace
    still has the netdev."""
    for _ in attempts(device.HOME_TIMEOUT, device.POLL):
        function = sysfs.function(address)
        if function is None:
            raise LinkUnavailable(f"deviceID {address!r} is no PCI function of this host; see: ls /sys/bus/pci/devices")
        if not function.pf:  # guard: a-vf
            raise InvalidConfig(f"deviceID {address!r} is no VF; give one of its VFs, see: ls -l virtfn* beside it")
        if function.netdevs or function.driver in sysfs.USERSPACE:
            return function
        if not function.driver:  # guard: a-driver
            raise LinkUnavailable(
                f"deviceID {address!r} has no driver; bind it: echo {address} > /sys/bus/pci/drivers_probe"
            )
    raise TryAgain(f"deviceID {address!r} is in another namespace still, perhaps one that is being removed")


def vfs_of(pf: str) -> tuple[str, ...]:
    """The addresses of the PF's VFs, in the order of their numbers.  Raises LinkUnavailable if there are none,
    OSError."""
    address = sysfs.address_of(pf)
    if not address:
        sysfs.refuse_hidden()
        raise LinkUnavailable(f"pf {pf!r} is no PCI network interface of this host; correct it, see: ip link")
    addresses = sysfs.vfs(address)
    if not addresses:
        raise LinkUnavailable(f"pf {pf!r} has no VFs; write their number to /sys/class/net/{pf}/device/sriov_numvfs")
    return addresses


def find_free_vf(pf: str, addresses: tuple[str, ...], use: owned.Use, host: Rtnl) -> sysfs.Function:
    """The first VF that no attachment has, that is down on the host, and that nobody needs there.  Raises NoneFree."""
    why = ""
    for address in addresses:
        if address in use.devices:  # guard: any-owned
            continue
        function = sysfs.function(address)
        if function is None or not function.netdevs:
            continue
        link = host.link(function.netdevs[0])
        if link is None or link.up:  # guard: any-up (up)
            continue
        try:
            needed.refuse_function(function, use, host)  # guard: any-needed
        except (InvalidConfig, LinkUnavailable) as e:
            why = why or f"; the host needs {address}: {e}"
            continue
        return function
    raise NoneFree(
        f"pf {pf!r} has no free VF: all {len(addresses)} are attached, up on the host, elsewhere, or needed{why}",
        *(address for address in addresses if address in use.devices),
    )


def find_pf(pf: str, state_dirs: Sequence[Path], host: Rtnl) -> sysfs.Function:
    """The PF itself.  Refuses one that the host, or another pod, needs where it is."""
    if owner := owned.owner(state_dirs, pf):  # guard: pf-owned
        raise DeviceInUse(f"pf {pf!r} belongs to {owner.whose}, since {owner.time}; delete that first", owner.device)
    function = sysfs.function(sysfs.address_of(pf))
    link = host.link(pf)
    if function is None or link is None:
        raise LinkUnavailable(f"pf {pf!r} is no PCI network interface of this host; correct it, see: ip link")
    if function.pf:  # guard: whole-a-vf
        raise InvalidConfig(f"pf {pf!r} is a VF; give it as deviceID {function.address!r}, without pfOnly")
    use = owned.use(state_dirs, sysfs.vfs(function.address))
    needed.refuse(link, function.address, use, host, said="pfOnly: ", other="choose another PF")
    return function


def netdev_of_pf(address: str, host: Rtnl) -> Link:
    """The PF's netdev, with the attributes that it has of its VFs.  Raises LinkUnavailable."""
    function = sysfs.function(address)
    name = sysfs.uplink(function) if function else ""
    link = host.link(name, filters=links.RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF) if name else None
    if link is None:
        raise LinkUnavailable(
            f"PF {address} has no network interface on the host; bind its driver, or bring it back from the namespace "
            "that it is in"
        )
    return link
