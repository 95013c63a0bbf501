"""A tree like /sys, with PCI functions that the machine need not have."""

from pathlib import Path

import pytest

from base.kernel import sysfs

PF, VF = "0000:3b:00.0", "0000:3b:10.1"
ANOTHER = "0000:3b:10.3"  # VF


def function(root: Path, address: str, *, netdev: str = "", pf: str = "") -> None:
    """Draw a function, with its interface, and with the PF if it is a VF."""
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x8086\n")
    if netdev:
        (folder / "net" / netdev).mkdir(parents=True)
        (root / "class/net" / netdev).mkdir(parents=True)
        (root / "class/net" / netdev / "device").symlink_to(f"../../../bus/pci/devices/{address}")
    if pf:
        (folder / "physfn").symlink_to(f"../{pf}")


def is_sys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all functions of sysfs.py read this tree in place of /sys; each has a root as its default."""
    for asking in vars(sysfs).values():
        if getattr(asking, "__defaults__", None) == (sysfs.SYS,):
            monkeypatch.setattr(asking, "__defaults__", (root,))
