"""The guest's first VF with another driver."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guest.node import NAME, RDMA
from support.topology import ip, until

PCI = Path("/sys/bus/pci")


@contextmanager
def driven_by(driver: str, device: str, mac: str) -> Iterator[None]:
    """Bind the VF to another driver, or to none; afterwards restore the first driver and its RDMA device."""
    was = (PCI / "devices" / device / "driver").resolve().name
    bind(device, driver)
    try:
        yield
    finally:
        bind(device, was)
        until(lambda: any((PCI / "devices" / device).glob("net/*")))
        (name,) = (p.name for p in (PCI / "devices" / device / "net").iterdir())
        ip("link", "set", name, "name", NAME)
        # A VF without a MAC from its PF has a new one now.
        ip("link", "set", NAME, "address", mac)
        subprocess.run(["rdma", "link", "add", RDMA, "type", "testhca", "netdev", NAME], check=True)


def bind(device: str, driver: str) -> None:
    path = PCI / "devices" / device
    (path / "driver_override").write_text(f"{driver}\n")
    if (path / "driver").exists():
        (path / "driver/unbind").write_text(device)
    if driver:
        (PCI / "drivers_probe").write_text(device)
        assert (path / "driver").resolve().name == driver
