"""PCI functions, and their devices, as /sys has them (Documentation/ABI/testing/sysfs-bus-pci).

A function's net/ and infiniband/ list only the devices of the namespace in which /sys was mounted, the host's: what was
moved into a pod is not there.  ``address`` is a PCI address ("0000:3b:00.2").  Tests give another ``root``.
"""

import os
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")


@dataclass(frozen=True)
class Function:
    """One PCI function.

    - ``driver``: its driver's name, empty for none.
    - ``pf``: the address of its PF, empty if it is no VF.
    - ``netdevs``, ``rdma_devs``: the names of its devices that are in the host's namespace.
    """

    address: str
    driver: str
    pf: str
    netdevs: tuple[str, ...]
    rdma_devs: tuple[str, ...]


def function(address: str, root: Path = SYS) -> Function | None:
    """The function at a PCI address; None if there is none."""
    path = f"{root}/bus/pci/devices/{address}"
    if "/" in address or not os.path.exists(f"{path}/vendor"):
        return None
    return Function(
        address, _link(f"{path}/driver"), _link(f"{path}/physfn"), _names(f"{path}/net"), _names(f"{path}/infiniband")
    )


def incarnation(address: str, root: Path = SYS) -> int:
    """A number that no other function has at this address in this boot; 0 if there is no function.

    After a new sriov_numvfs or a hot-plug another function is there.  The number is the inode of its directory, which
    sysfs never uses again (kernfs, Linux 5.5).
    """
    try:
        return os.stat(f"{root}/bus/pci/devices/{address}").st_ino
    except OSError:
        return 0


def numa_node(address: str, root: Path = SYS) -> int:
    """The NUMA node of a function; negative where the machine has none, or does not say."""
    try:
        return int((root / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def vfs(pf: str, root: Path = SYS) -> tuple[str, ...]:
    """The addresses of a PF's VFs, in the order of their indexes."""
    path = f"{root}/bus/pci/devices/{pf}"
    numbers = sorted(int(name.removeprefix("virtfn")) for name in _names(path) if name.startswith("virtfn"))
    return tuple(_link(f"{path}/virtfn{number}") for number in numbers)


def address_of(netdev: str, root: Path = SYS) -> str:
    """The PCI address of an interface's function; empty if it has none."""
    device = f"{root}/class/net/{netdev}/device"
    return _link(device) if os.path.exists(f"{device}/vendor") else ""


def functions_under(netdev: str, root: Path = SYS) -> list[Function]:
    """The PCI functions by which an interface's packets leave: its own, or those of the interfaces below a VLAN, a bond
    or a bridge."""
    address = address_of(netdev, root)
    if address:
        there = function(address, root)
        return [there] if there else []
    lower = [n.removeprefix("lower_") for n in _names(f"{root}/class/net/{netdev}") if n.startswith("lower_")]
    return list({f.address: f for name in lower for f in functions_under(name, root)}.values())


def rdma_names(address: str, root: Path = SYS) -> tuple[str, ...]:
    """The names of a function's RDMA devices in all namespaces: infiniband_verbs/ is not filtered as infiniband/ is."""
    return tuple(
        sorted(_line(p / "ibdev") for p in (root / "bus/pci/devices" / address / "infiniband_verbs").glob("uverbs*"))
    )


def guids(address: str, root: Path = SYS) -> tuple[str, str] | None:
    """The node GUID and port GUID of a function's RDMA device ("00:11:22:33:44:55:66:77"); None if it has none here."""
    for device in (root / "bus/pci/devices" / address / "infiniband").glob("*"):
        node, gid = _line(device / "node_guid"), _line(device / "ports/1/gids/0")
        if node and gid:
            return _bytes(node), _bytes(gid[-len(node) :])
    return None


def ipoib_mode(netdev: str, root: Path = SYS) -> str:
    """The mode of an IPoIB interface: "datagram" or "connected"; empty for another interface."""
    return _line(root / "class/net" / netdev / "mode")


def set_ipoib_mode(netdev: str, mode: str, root: Path = SYS) -> None:
    """Set the mode of an IPoIB interface.  Raises OSError.

    Not by rtnetlink: the kernel drops its lock in the middle, and only here it expects that somebody else may have
    changed the mode meanwhile (ipoib_set_mode).
    """
    (root / "class/net" / netdev / "mode").write_text(f"{mode}\n")


def is_loaded(module: str, root: Path = SYS) -> bool:
    """Whether the kernel has a module.  A module that is built in is seen only if it has parameters."""
    return os.path.exists(f"{root}/module/{module}")


def speed(netdev: str, root: Path = SYS) -> int:
    """The link's speed in Mbit/s; 0 where the driver does not say, or the link is down."""
    try:
        return max(int((root / "class/net" / netdev / "speed").read_text()), 0)
    except (OSError, ValueError):
        return 0


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _bytes(words: str) -> str:
    """A GUID as "00:11:22:33:44:55:66:77"; /sys has "0011:2233:4455:6677"."""
    return bytes.fromhex(words.replace(":", "")).hex(":")
