"""PCI functions and their devices in /sys (Documentation/ABI/testing/sysfs-bus-pci).  Devices of other buses that have
interfaces too, such as subfunctions (Documentation/driver-api/auxiliary_bus.rst).

A device's net/ and infiniband/ list only devices in the namespace in which /sys was mounted, the host's.  They miss the
devices of pods.  ``address`` is a bus address ("0000:3b:00.2", "mlx5_core.sf.4").  Tests pass another ``root``.

Functions that report a missing device raise OSError if /sys is not mounted or is hidden, because then nothing is known.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.kernel import files

SYS = Path("/sys")
# phys_port_name (devlink_port.c): a port to the wire; or a switch's representor of a PF, VF or SF.
_UPLINK: Final = re.compile(r"p\d+(s\d+)?")
_REPRESENTOR: Final = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?")
# A device of the auxiliary bus, in the directory of its PCI function.
_SF: Final = re.compile(r"[^:]+\.sf\.\d+")
_PAGE = 65536  # no attribute is longer than a page; arm64 has pages of this size

# With these drivers, a process drives the function itself, and the kernel has no netdev of it.
VFIO = "vfio-pci"
UIO = ("uio_pci_generic", "igb_uio")
USERSPACE = (VFIO, *UIO)


@dataclass(frozen=True)
class PciFunction:
    """One PCI function, or one device of another bus.

    - ``driver``: its driver's name, empty for none.
    - ``pf``: the address of its PF, empty if it is not a VF.
    - ``netdevs``, ``rdma_devs``: the names of its devices in the host's namespace.
    """

    address: str
    driver: str
    pf: str
    netdevs: tuple[str, ...]
    rdma_devs: tuple[str, ...]


@dataclass(frozen=True)
class Relatives:
    """A device by the names that claims and records have for it, and those of devices that it shares hardware with.

    - ``own``: its bus addresses (a virtio NIC has two), and the names of its interfaces here and of those over them.
    - ``above``: the functions that it is a part of: a VF's PF, an SF's parent.  Their holder decides about it.
    - ``below``: its parts: VFs and SFs, and their interfaces.
    """

    own: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.own, *self.above, *self.below)


def relatives(address: str, root: Path = SYS, *, has_parts: bool = True) -> Relatives:
    """The relatives of the device at an address of any bus; those below only if it ``has_parts``.  Raises OSError."""
    pci = pci_of(address, root)
    twin = with_netdev(pci, root)
    is_part = pci not in ("", address) and twin != address
    own = [address] if is_part else [*dict.fromkeys(filter(None, (address, pci, twin)))]
    here = device(twin or address, root) if not is_part else device(address, root)
    for name in own_netdevs(here.netdevs, root) if here else ():
        own += [name, *all_uppers(name, root)]
    pf = link(f"{root}/bus/pci/devices/{pci}/physfn") if pci else ""
    above = filter(None, (pci if is_part else "", pf))
    return Relatives(tuple(own), tuple(above), tuple(_parts(pci, root)) if pci and has_parts and not is_part else ())


def relatives_of_netdev(netdev: str, devices: Iterable[str]) -> Relatives:
    """The relatives of an interface that pods share as a master, without those below.

    They are its own name, and the relatives of the ``devices`` under it (``devices_under``).  Raises OSError.
    """
    found = Relatives((netdev, *all_uppers(netdev)))
    for address in devices:
        one = relatives(address, has_parts=False)
        found = Relatives(found.own + one.own, found.above + one.above)
    return found


def relatives_of(name: str, root: Path = SYS, *, is_interface: bool, has_parts: bool) -> Relatives:
    """The relatives of what a pod can be given: an interface that pods share, or a device by its address.  Raises
    OSError."""
    if is_interface:
        return relatives_of_netdev(name, devices_under(name))
    return relatives(name, root, has_parts=has_parts)


def _parts(pci: str, root: Path) -> Iterator[str]:
    """A PCI function's VFs and SFs with their interfaces, and those of its VFs."""
    for address in names(f"{root}/bus/pci/devices/{pci}"):
        if _SF.fullmatch(address):
            yield from (address, *names(f"{root}/bus/auxiliary/devices/{address}/net"))
    for address in vfs(pci, root):
        yield from (address, *names(f"{root}/bus/pci/devices/{address}/net"))
        yield from _parts(address, root)


def top(address: str, root: Path = SYS) -> str:
    """The PCI function at the top of a device's relatives; the address itself for another device."""
    pci = pci_of(address, root) or address
    return link(f"{root}/bus/pci/devices/{pci}/physfn") or pci


def uplink(function: PciFunction, root: Path = SYS) -> str:
    """The name of a PF's own interface, which controls its VFs; of another function, its interface's.  Empty if it has
    none here."""
    return next(own_netdevs(function.netdevs, root), "")


def own_netdevs(found: Iterable[str], root: Path = SYS) -> Iterator[str]:
    """A device's own interfaces among those below it, the uplink first, without a switchdev PF's representors of VFs
    and SFs.

    A driver may be slow to report a port's name, so each name is read only when needed.  Mostly the uplink has the
    shortest interface name.
    """
    names, others = sorted(found, key=lambda name: (len(name), name)), list[str]()
    for name in names:
        port = line(f"{root}/class/net/{name}/phys_port_name") if names[1:] else ""
        if _UPLINK.fullmatch(port):
            yield name
        elif not _REPRESENTOR.fullmatch(port):
            others.append(name)
    yield from others


def refuse_hidden(root: Path = SYS) -> None:
    """Raise OSError if /sys is not mounted, or is hidden."""
    if not os.path.exists(f"{root}/bus"):
        why = f"{root} shows no devices: no sysfs is mounted there, or something hides it"
        raise OSError(errno.ENOENT, f"{why}; run: mount -t sysfs sysfs {root}")


def function(address: str, root: Path = SYS) -> PciFunction | None:
    """The function at a PCI address; None if there is none.  Raises OSError."""
    path = f"{root}/bus/pci/devices/{address}"
    if "/" not in address and os.path.exists(f"{path}/vendor"):
        return _function(address, path)
    refuse_hidden(root)
    return None


def device(address: str, root: Path = SYS) -> PciFunction | None:
    """The device at an address of any bus; None if there is none.  Raises OSError."""
    if found := function(address, root):
        return found
    paths = _other_paths(address, root) if address and "/" not in address else ()
    return next((_function(address, path) for path in paths if os.path.exists(path)), None)


def _function(address: str, path: str) -> PciFunction:
    return PciFunction(
        address, link(f"{path}/driver"), link(f"{path}/physfn"), names(f"{path}/net"), names(f"{path}/infiniband")
    )


def incarnation(address: str, root: Path = SYS) -> int:
    """A number that no other device gets at this address in this boot; 0 if there is no device.  Raises OSError.

    After a new sriov_numvfs or a hot-plug, another function has the address.  The number is the inode of its directory,
    which sysfs never reuses (kernfs, Linux 5.5).
    """
    for path in _paths(address, root):
        with suppress(OSError):
            return os.stat(path).st_ino
    refuse_hidden(root)
    return 0


def numa_node(address: str, root: Path = SYS) -> int:
    """The NUMA node of a function; negative if the machine has none, or does not report it."""
    return number(f"{root}/bus/pci/devices/{address}/numa_node")


def vfs(pf: str, root: Path = SYS) -> tuple[str, ...]:
    """The addresses of a PF's VFs, in the order of their indexes."""
    path = f"{root}/bus/pci/devices/{pf}"
    numbers = sorted(int(name.removeprefix("virtfn")) for name in names(path) if name.startswith("virtfn"))
    return tuple(link(f"{path}/virtfn{number}") for number in numbers)


def is_vf(address: str, root: Path = SYS) -> bool:
    """Whether the device is a VF; false for an empty address."""
    return bool(address) and bool(link(f"{root}/bus/pci/devices/{address}/physfn"))


def uppers(netdev: str, root: Path = SYS) -> list[str]:
    """The interfaces over this one, in its namespace: VLANs, macvlans, and its bridge or bond."""
    entries = names(f"{root}/class/net/{netdev}")
    return [name.removeprefix("upper_") for name in entries if name.startswith("upper_")]


def master_of(netdev: str, root: Path = SYS) -> str:
    """The bond, bridge or VRF that an interface is in; empty if it is in none."""
    return link(f"{root}/class/net/{netdev}/master")


def lowers(netdev: str, root: Path | str = SYS) -> list[str]:
    """The interfaces directly below this one: a VLAN's, a bond's or a bridge's."""
    entries = names(f"{root}/class/net/{netdev}")
    return [name.removeprefix("lower_") for name in entries if name.startswith("lower_")]


def all_uppers(netdev: str, root: Path = SYS) -> list[str]:
    """The interfaces over this one, recursively, in its namespace."""
    direct = uppers(netdev, root)
    return [*direct, *(name for one in direct for name in all_uppers(one, root))]


def address_of(netdev: str, root: Path = SYS) -> str:
    """The PCI address of an interface's function; empty if it has none."""
    device = f"{root}/class/net/{netdev}/device"
    return link(device) if os.path.exists(f"{device}/vendor") else ""


def device_of(netdev: str, root: Path = SYS) -> str:
    """The bus address of an interface's device; empty for an interface of software.  Raises OSError."""
    found = link(f"{root}/class/net/{netdev}/device")
    if not found:
        refuse_hidden(root)
    return found


def pci_of(address: str, root: Path = SYS) -> str:
    """The address of the PCI function that a device is, or belongs to, as auxiliary and virtio devices do; empty if
    none."""
    if os.path.exists(f"{root}/bus/pci/devices/{address}/vendor"):
        return address
    for path in filter(os.path.exists, _other_paths(address, root)):
        parent = os.path.basename(os.path.dirname(os.path.realpath(path)))
        if os.path.exists(f"{root}/bus/pci/devices/{parent}/vendor"):
            return parent
    return ""


def with_netdev(address: str, root: Path = SYS) -> str:
    """The device with the netdev: the virtio device below a virtio NIC's PCI function, else the device at the
    address."""
    below = names(f"{root}/bus/pci/devices/{address}") if address and "/" not in address else ()
    return next((name for name in below if name.startswith("virtio")), address)


def functions_under(netdev: str, root: Path = SYS) -> list[PciFunction]:
    """The PCI functions that carry an interface's packets: its own, or those of the interfaces below a VLAN, bond or
    bridge."""
    address = address_of(netdev, root)
    if address:
        there = function(address, root)
        return [there] if there else []
    return list({f.address: f for name in lowers(netdev, root) for f in functions_under(name, root)}.values())


def devices_under(netdev: str, root: Path = SYS) -> list[str]:
    """The bus addresses of the devices that carry an interface's packets: its own, or those of the interfaces below a
    VLAN, bond or bridge.  Raises OSError."""
    if address := device_of(netdev, root):
        return [address]
    return list(dict.fromkeys(one for name in lowers(netdev, root) for one in devices_under(name, root)))


def rdma_names(address: str, root: Path = SYS) -> tuple[str, ...]:
    """The names of a device's RDMA devices in all namespaces, from infiniband_verbs/: infiniband/ lists one
    namespace's."""
    for path in _paths(address, root):
        verbs = f"{path}/infiniband_verbs"
        if found := [line(f"{verbs}/{name}/ibdev") for name in names(verbs) if name.startswith("uverbs")]:
            return tuple(sorted(filter(None, found)))  # one may have gone meanwhile
    return ()


def rdma_nodes(address: str, root: Path = SYS) -> tuple[str, ...]:
    """The names in /dev/infiniband of a device's RDMA devices ("uverbs0", "umad0"), in any namespace."""
    for path in _paths(address, root):
        if found := (*names(f"{path}/infiniband_verbs"), *names(f"{path}/infiniband_mad")):
            return found
    return ()


def guids(address: str, root: Path = SYS) -> tuple[str, str] | None:
    """The node GUID and port GUID of a function's RDMA device ("00:11:22:33:44:55:66:77"); None if it has none here."""
    folder = f"{root}/bus/pci/devices/{address}/infiniband"
    for name in names(folder):
        node, gid = line(f"{folder}/{name}/node_guid"), line(f"{folder}/{name}/ports/1/gids/0")
        if node and gid:
            return _bytes(node), _bytes(gid[-len(node) :])
    return None


def ipoib_netdev(netdevs: Iterable[str], root: Path = SYS) -> str:
    """A function's own IPoIB interface, which is not a child, once it has all its files; empty before.

    ib_ipoib registers the interface, and adds its own files later (ipoib_add_port): "mode", and "delete_child" as the
    last.
    """
    return next((name for name in netdevs if os.path.exists(f"{root}/class/net/{name}/delete_child")), "")


def ipoib_mode(netdev: str, root: Path = SYS) -> str:
    """The mode of an IPoIB interface: "datagram" or "connected"; empty for another interface."""
    return line(root / "class/net" / netdev / "mode")


def set_ipoib_mode(netdev: str, mode: str, root: Path = SYS) -> None:
    """Set the mode of an IPoIB interface.  Raises OSError.  Not by rtnetlink: the kernel drops its lock halfway, and
    expects a concurrent change of the mode only in this file (ipoib_set_mode)."""
    files.write_value(f"{root}/class/net/{netdev}/mode", mode)


def pkeys(netdev: str, root: Path = SYS) -> tuple[int, ...]:
    """The keys of the partitions of an IPoIB interface's port; none if its RDMA device is not visible."""
    port = int(line(root / "class/net" / netdev / "dev_port") or 0) + 1
    folder = f"{root}/class/net/{netdev}/device/infiniband"
    tables = [f"{folder}/{device}/ports/{port}/pkeys" for device in names(folder)]
    found = (int(line(f"{table}/{name}") or "0", 16) for table in tables for name in names(table))
    return tuple(sorted({key for key in found if key & 0x7FFF}))


def is_read_only(path: str) -> bool:
    """Whether the mount of /sys with this path refuses writes, as a container's does; False if that is unknown."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def is_loaded(module: str, root: Path = SYS) -> bool:
    """Whether the kernel has a module.  A built-in module is visible only if it has parameters."""
    return os.path.exists(f"{root}/module/{module}")


def speed(netdev: str, root: Path = SYS) -> int:
    """The link's speed in Mbit/s; 0 if the driver does not report it, or the link is down."""
    return max(number(f"{root}/class/net/{netdev}/speed"), 0)


def link(path: str) -> str:
    """The last part of a link's target, as "driver" leads to the driver's name; empty if there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def names(path: str) -> tuple[str, ...]:
    """A directory's entries, in order; none if there is no directory.  Raises OSError only for a shortage."""
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError as e:
        refuse_short(e)
        return ()


def line(path: Path | str) -> str:
    """An attribute's value; empty if there is none, or if the driver does not report it.  Raises OSError only for a
    shortage."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as e:
        refuse_short(e)
        return ""
    try:
        return os.read(fd, _PAGE).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    finally:
        os.close(fd)


def refuse_short(error: OSError) -> None:
    """Raise the error if it reports a shortage of descriptors or memory: then the path may exist."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error


def number(path: Path | str) -> int:
    """An attribute's decimal number; -1 if there is none."""
    try:
        return int(line(path))
    except ValueError:
        return -1


def natural(name: str) -> list[tuple[str, int]]:
    """A sort key that compares the numbers inside names as numbers: mlx5_10 comes after mlx5_2."""
    return [(letters, int(digits or 0)) for letters, digits in re.findall(r"(\D*)(\d*)", name)]


def _paths(address: str, root: Path) -> Iterator[str]:
    """The paths where a device may be.  Other buses are listed only if it is not a PCI function."""
    yield f"{root}/bus/pci/devices/{address}"
    yield from _other_paths(address, root)


def _other_paths(address: str, root: Path) -> list[str]:
    """The paths of a device that is not a PCI function, one on each bus."""
    return [f"{root}/bus/{bus}/devices/{address}" for bus in names(f"{root}/bus") if bus != "pci"]


def _bytes(guid: str) -> str:
    """A GUID as "00:11:22:33:44:55:66:77"; /sys has "0011:2233:4455:6677"."""
    return bytes.fromhex(guid.replace(":", "")).hex(":")
