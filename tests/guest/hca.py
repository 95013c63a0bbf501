"""rail1 as an InfiniBand HCA: testib drives its PF and VFs, and the stock ib_ipoib makes their netdevs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guest import node
from guest.machine import Guest
from guest.node import pci, rdma_devs
from support.topology import ip, until

PF, NAME, RDMA = "ib0", "ib1", "testib1"
VFS = 4
NONE = "00:00:00:00:00:00:00:00"
GUID, OTHER_GUID = "00:11:22:33:44:55:66:77", "02:00:00:00:00:00:00:05"
_PCI = Path("/sys/bus/pci")
_MODULES = ("ib_ipoib", "ib_umad")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def plugged() -> Iterator[None]:
    """ib0 the PF, ib1 to ib4 its VFs, testib0 to testib4 their RDMA devices; afterwards rail1 again."""
    pf = _PCI / "devices" / pci("rail1")
    _run("modprobe", "-a", *_MODULES)
    _run("insmod", "/run/lab/modules/testib.ko")
    _drive(pf, "testib")
    (pf / "sriov_drivers_autoprobe").write_text("0")
    (pf / "sriov_numvfs").write_text(str(VFS))
    for number in range(VFS):
        _drive((pf / f"virtfn{number}").resolve(), "testib")
    try:
        yield
    finally:
        (pf / "sriov_numvfs").write_text("0")
        (pf / "sriov_drivers_autoprobe").write_text("1")
        _drive(pf, "igb")
        (pf / "driver_override").write_text("\n")
        _run("rmmod", "testib")
        _run("modprobe", "-r", "-a", *_MODULES)
        _run("/run/lab/rail", "1", pf.name)


def _drive(function: Path, driver: str) -> None:
    if (function / "sriov_numvfs").exists():
        (function / "sriov_numvfs").write_text("0")
    (function / "driver_override").write_text(f"{driver}\n")
    if (function / "driver").exists():
        (function / "driver/unbind").write_text(function.name)
    (_PCI / "drivers" / driver / "bind").write_text(function.name)


def vf(number: int = 0) -> dict[str, Any]:
    """The PF's settings of a VF."""
    (link,) = ip("-d", "link", "show", "dev", PF)
    said = next(v for v in link["vfinfo_list"] if v["vf"] == number)
    return {k: said[k] for k in ("node guid", "port guid", "link_state")}


def tell(**guids: str) -> None:
    """Set these GUIDs of the first VF on its PF."""
    for what, guid in guids.items():
        ip("link", "set", PF, "vf", "0", what, guid)


def guids(device: str) -> tuple[str, str]:
    """The GUIDs in the VF itself."""
    (rdma,) = (_PCI / "devices" / device / "infiniband").iterdir()
    words = (rdma / "node_guid").read_text().strip(), (rdma / "ports/1/gids/0").read_text().strip()[20:]
    node, port = (bytes.fromhex(w.replace(":", "")).hex(":") for w in words)
    return node, port


def driver(device: str) -> Path:
    return (_PCI / "devices" / device / "driver").resolve()


def drive(device: str, name: str) -> None:
    """Bind the function to that driver, whichever drives it now."""
    _drive(_PCI / "devices" / device, name)


def netdev(name: str = NAME) -> dict[str, Any]:
    (link,) = ip("-d", "link", "show", "dev", name)
    return _attributes(link)


def _attributes(link: dict[str, Any]) -> dict[str, Any]:
    """The link's attributes except the carrier, which changes by itself."""
    keys = ("ifname", "mtu", "txqlen", "ifalias", "altnames", "linkinfo", "parentdev")
    flags = [flag for flag in link["flags"] if flag not in ("LOWER_UP", "NO-CARRIER")]
    return {k: link.get(k) for k in keys} | {"flags": flags}


def ipoib(node: Guest, **keys: Any) -> dict[str, Any]:
    """A configuration of a child of the PF's interface."""
    return node.conf(**{"deviceID": ..., "kind": "ipoib", "master": PF} | keys)


def children() -> list[str]:
    """The host's links that hpn made: their indexes differ from those of all other links."""
    return [link["ifname"] for link in ip("link") if link["ifindex"] >= 1 << 30]


class Node(node.Node):
    """A node with a configuration for the first VF of the HCA."""

    NAME, RDMA = NAME, RDMA

    def picture(self) -> tuple[Any, ...]:
        """The VF's state that a test must restore: on the host, on its PF, its RDMA device; and the host's links."""
        until(lambda: RDMA in rdma_devs() and Path(f"/sys/class/net/{NAME}").exists())
        # One dump for all: each program start takes the guest 40 ms.
        links = {link["ifname"]: link for link in ip("-d", "link")}
        said = next(v for v in links[PF]["vfinfo_list"] if v["vf"] == 0)
        own = guids(self.device)
        # A GUID that was never set reads as zero and cannot be restored: the VF's own GUID counts.
        told = tuple(own[n] if said[key] == NONE else said[key] for n, key in enumerate(("node guid", "port guid")))
        return _attributes(links[NAME]), own, told, said["link_state"], rdma_devs(), set(links)
