"""A tree like /sys, with the kernel's links between a device and its bus and classes."""

from collections.abc import Sequence
from pathlib import Path


class Tree:
    """A tree that keeps its entries until a test removes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._vfs = dict[str, int]()
        for folder in ("bus/pci/devices", "bus/auxiliary/devices", "class/net"):
            (root / folder).mkdir(parents=True)

    def pci(
        self, address: str, *, pf: str = "", driver: str = "mlx5_core", above: str = "pci0000:00", **values: str | int
    ) -> Path:
        """Add a NIC's function, with ``pf`` as the PF's next VF; ``above`` is the path of its bridge."""
        path = self._device("pci", f"devices/{above}/{address}")
        common = {"class": "0x020000", "vendor": "0x15b3", "device": "0x101e" if pf else "0x101d", "numa_node": 0}
        write(path, **common | values)
        if driver:
            self.bind(path, driver)
        if pf:
            parent = self.root / "devices" / above / pf
            number = self._vfs.get(pf, 0)
            self._vfs[pf] = number + 1
            (parent / f"virtfn{number}").symlink_to(f"../{address}")
            (path / "physfn").symlink_to(f"../{pf}")
            write(parent, sriov_numvfs=number + 1)
        return path

    def auxiliary(self, pf: str, name: str, **attributes: str | int) -> Path:
        """Add a device of the auxiliary bus below a function."""
        path = self._device("auxiliary", f"devices/pci0000:00/{pf}/{name}")
        write(path, **attributes)
        self.bind(path, "mlx5_core.sf")
        return path

    def bind(self, device: Path, driver: str) -> None:
        (device / "driver").unlink(missing_ok=True)
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def netdev(self, name: str, device: Path | None = None, below: Sequence[str] = (), **attributes: str | int) -> None:
        """Add an interface of a device, or a software interface."""
        path = (device or self.root / "devices/virtual") / "net" / name
        path.mkdir(parents=True)
        write(path, **{"type": 1} | attributes)
        if device:
            (path / "device").symlink_to(device)
        for lower in below:
            (path / f"lower_{lower}").symlink_to(self.root / "class/net" / lower)
        (self.root / "class/net" / name).symlink_to(path)

    def rdma(self, name: str, device: Path | None, number: int, *, pkey: str = "", over: str = "") -> None:
        """Add an RDMA device with one port and its character devices; ``over`` adds soft-RoCE over that interface."""
        home = device or self.root / "devices/virtual"
        port = home / "infiniband" / name / "ports/1"
        (port / "pkeys").mkdir(parents=True)
        (port / "pkeys/0").write_text(f"{pkey or '0xffff'}\n")
        if over:
            write(home / "infiniband" / name, parent=over)
        self._link("infiniband", home / "infiniband" / name)
        for kind, nodes in (("infiniband_verbs", ["uverbs"]), ("infiniband_mad", ["umad", "issm"])):
            for node in nodes:
                path = home / kind / f"{node}{number}"
                path.mkdir(parents=True)
                write(path, ibdev=name)
                self._link(kind, path)

    def into_a_pod(self, device: Path) -> None:
        """Move the device's interfaces and RDMA device to another namespace, which sysfs hides from the host."""
        for kind in ("net", "infiniband"):
            for path in (device / kind).glob("*"):
                (self.root / "class" / kind / path.name).unlink()
                path.rename(device / f"hidden-{kind}-{path.name}")

    def home(self, device: Path) -> None:
        """Move them back."""
        for path in device.glob("hidden-*"):
            _, kind, name = path.name.split("-", 2)
            path.rename(device / kind / name)
            self._link(kind, device / kind / name)

    def _device(self, bus: str, path: str) -> Path:
        device = self.root / path
        device.mkdir(parents=True)
        (self.root / "bus" / bus / "devices" / device.name).symlink_to(device)
        return device

    def _link(self, kind: str, path: Path) -> None:
        (self.root / "class" / kind).mkdir(exist_ok=True)
        (self.root / "class" / kind / path.name).symlink_to(path)


def write(path: Path, **attributes: str | int) -> None:
    """Write a device's attributes, a file each."""
    for name, value in attributes.items():
        (path / name).write_text(f"{value}\n")
