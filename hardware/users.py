"""The holder of a VF or a PF: a pod, another namespace, or a process that drives it; and the host's need for one.

The host cannot spare an interface with a default route, or one in Open vSwitch.  kubelet is not asked: between its
Allocate and the pod's ADD, a VF counts as free.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from socket import if_indextoname
from typing import Final

from base.kernel import budget, routes, rtnl, sysfs
from base.kernel.rtnl import Rtnl
from base.protocol import location
from base.protocol.errors import CniError, IoFailure
from base.state import claims, owned
from base.state.claims import Claim
from base.state.record import Record

# Open vSwitch's interface in the kernel (dpif-netlink.c): the ports of all its bridges are below it.
OVS: Final = "ovs-system"
_VFIO: Final = Path("/dev/vfio")


def reserved_interfaces(root: str) -> dict[str, str]:
    """Interface -> why the host needs it: the default route leaves through it, or through one over it.

    Each port of Open vSwitch is included.  Only ovs-vswitchd knows the ports of a bridge, so a default route through a
    bridge may leave through any of them.  Raises OSError.
    """
    budget.begin()
    ports = dict.fromkeys(
        all_below(root, OVS), "Open vSwitch owns its interface and may carry the host's traffic through it"
    )
    by_routes = {
        name: f"the host's default route leaves by {uplink}"
        for uplink in routes.uplinks()
        for name in (uplink, *all_below(root, uplink))
    }
    return ports | by_routes


def in_use_by_the_host() -> dict[str, str]:
    """Interface -> what the host would lose with it: addresses, and routes through it.  Raises OSError."""
    with rtnl.open_in(strictly=True) as host:
        by_index = routes.uses(host)
    found = dict[str, str]()
    for index, why in by_index.items():
        with suppress(OSError):  # it has just gone
            found[if_indextoname(index)] = why
    return found


def all_below(root: str, netdev: str) -> Iterator[str]:
    """The interfaces below a bond, a VLAN or a bridge, recursively."""
    for name in sysfs.lowers(netdev, root):
        yield name
        yield from all_below(root, name)


Owners = Mapping[str, Record | Claim]


def owners() -> Owners:
    """The attachments that own a device, by its bus address, and the claims that have one alone without any.  Raises
    IoFailure, RecordUnreadable."""
    lost = list[str]()
    attached = owned.devices(location.state_dir(), lost)
    if lost:  # the kernel may not show who has such a device: a VM opens a VFIO group late
        raise IoFailure(f"{lost[0]} cannot be read, and may be of any device; if its pod has ended, remove the file")
    claimed = {one.id: claim for claim in claims.prepared() for one in claim.own if not one.is_shared}
    return {**claimed, **attached}


def user(address: str, attached: Owners, root: Path = sysfs.SYS, vfio: Path = _VFIO) -> str:
    """The pod or process that has the function, for people; empty for none."""
    if owner := attached.get(address):
        return owner.title
    path = f"{root}/bus/pci/devices/{address}"
    # sysfs hides devices of other namespaces, but not the directory that they are in (kobject_rename).
    if os.path.isdir(f"{path}/net") and not sysfs.names(f"{path}/net"):
        return "a namespace that holds its interface"
    if set(sysfs.rdma_names(address, root)) - set(sysfs.names(f"{path}/infiniband")):
        return "a namespace that holds its RDMA device"
    # Vendors have VFIO drivers too, and without an IOMMU the node has another name (vfio_group_init).
    group = sysfs.link(f"{path}/iommu_group")
    for node in (vfio / group, vfio / f"noiommu-{group}") if group else ():
        if why := _why_not_free(node):
            return f"a process that {why}"
    driver = sysfs.link(f"{path}/driver")
    # The kernel does not report whether a process has opened it.
    return f"a process that may use it through {driver}" if driver in sysfs.UIO else ""


def lag(address: str, root: Path) -> str:
    """The bond of a PF, if its members share an RDMA device; empty for none.

    The driver then keeps one RDMA device, at one member's function, under any name (mlx5_lag_dev_alloc: mlx5_bond_0),
    and the other members have none.  NICs of other drivers take no part.
    """
    path = f"{root}/bus/pci/devices/{address}"
    driver = sysfs.link(f"{path}/driver")
    for name in sysfs.names(f"{path}/net"):
        bond = sysfs.master_of(name, root)
        if bond and os.path.exists(f"{root}/class/net/{bond}/bonding"):
            members = [one for one in sysfs.functions_under(bond, root) if one.driver == driver]
            if 0 < sum(bool(sysfs.rdma_names(one.address, root)) for one in members) < len(members):
                return bond
    return ""


def needed(address: str, host: Rtnl, above: Mapping[int, str]) -> str:
    """The reason why the host or a pod needs a function's interface; empty for none.

    ``above`` holds pods' attachments over the host's interfaces, by index (``owners_over`` of node/provision/scan.py).
    """
    # Deferred: it is rarely called.
    from hardware import needed as refusing  # noqa: PLC0415

    for name in sysfs.names(f"{sysfs.SYS}/bus/pci/devices/{address}/net"):
        link = host.link(name)
        if link and link.index in above:
            return f"{name!r} is the master of {above[link.index]}"
        try:
            if link:
                refusing.refuse(link, sysfs.relatives(address), owned.Use(None), host, other="remove the route first")
        except CniError as e:
            return e.msg
    return ""


def _why_not_free(group: Path) -> str:
    """Whether a process has a VFIO group open, as a clause about it; empty if none has.

    The kernel opens a group once (vfio_group_fops_open).  If we may not open it ourselves, as in a container without
    its device, one may have it open.
    """
    try:
        os.close(os.open(group, os.O_RDWR))
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            return ""
        if e.errno == errno.EBUSY:
            return f"has {group} open"
        return f"may have {group} open, which hpn cannot check here ({e.strerror})"
    return ""
