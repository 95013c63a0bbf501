"""Facts under /sys about PCI functions (Documentation/ABI/testing/sysfs-bus-pci).

What a function's net/ and infiniband/ list is filtered by the network namespace /sys was mounted in, the
host's: a device that was moved into a pod is not there.  ``root`` is a parameter for the tests.
"""

from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")


@dataclass(frozen=True)
class Function:
    """One PCI function: ``pf`` is the address of the function it is a VF of, empty if it is none."""

    address: str
    driver: str
    pf: str
    netdevs: tuple[str, ...]
    rdma_devs: tuple[str, ...]


def function(address: str, root: Path = SYS) -> Function | None:
    """The function at a PCI address ("0000:3b:00.2"); None if there is none."""
    path = root / "bus/pci/devices" / address
    if "/" in address or not (path / "vendor").exists():
        return None
    return Function(
        address, _link(path / "driver"), _link(path / "physfn"), _names(path / "net"), _names(path / "infiniband")
    )


def vfs(pf: str, root: Path = SYS) -> tuple[str, ...]:
    """The addresses of a PF's VFs; a VF's place is its index."""
    path = root / "bus/pci/devices" / pf
    numbers = sorted(int(p.name.removeprefix("virtfn")) for p in path.glob("virtfn*"))
    return tuple(_link(path / f"virtfn{number}") for number in numbers)


def address_of(netdev: str, root: Path = SYS) -> str:
    """The PCI address of the function an interface is of; empty for one that is of none."""
    device = root / "class/net" / netdev / "device"
    return _link(device) if (device / "vendor").exists() else ""


def functions_under(netdev: str, root: Path = SYS) -> list[Function]:
    """The PCI functions that an interface's packets leave by: its own, or those of what a VLAN, bond or bridge is made
    over."""
    address = address_of(netdev, root)
    if address:
        there = function(address, root)
        return [there] if there else []
    lower = sorted((root / "class/net" / netdev).glob("lower_*"))
    found = {f.address: f for p in lower for f in functions_under(p.name.removeprefix("lower_"), root)}
    return list(found.values())


def speed(netdev: str, root: Path = SYS) -> int:
    """The link's speed in Mbit/s; 0 where the driver does not say, or the link is down."""
    try:
        return max(int((root / "class/net" / netdev / "speed").read_text()), 0)
    except (OSError, ValueError):
        return 0


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def _names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(p.name for p in path.iterdir()))
    except OSError:
        return ()
