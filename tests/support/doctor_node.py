"""A healthy node as hpn doctor reads it: its files, and the changes that a test makes."""

import json
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.ipam_calls import Net
from support.sysfs_tree import Tree, write

from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from ctl.doctor import command
from ctl.doctor.command import facts
from ctl.doctor.model import Finding

PFS = ("0000:3b:00.0", "0000:5e:00.0")
PORTS = {pf: f"{pf[:4]}:{number}:00.0" for pf, number in zip(PFS, ("3a", "5d"), strict=True)}
VF = "0000:3b:00.2"
GPU, GPU_PORT, UPSTREAM = "0000:3d:00.0", "0000:3a:01.0", "0000:39:00.0"
NETWORK: dict[str, Any] = {
    "cniVersion": "1.0.0", "name": "rail0",
    "plugins": [{
        "type": "hpn", "pf": "rail0", "rdma": {"mode": "exclusive"},
        "ipam": {"type": "hpn-ipam", "subnet": "10.1.0.0/24"},
    }],
}  # fmt: skip
NODE = """\
resources:
- {name: example.com/rail0, kind: vf, selectors: {pfNames: [rail0]}}
pfs:
- {selectors: {ifNames: [rail0]}, numVfs: 1}
"""
ALIVE = Record(
    network="rail0", key=Key("0123456789abcdef", "hpn0"), netns="/run/netns/nobody",
    identity=Identity(inode=1, cookie=1),  # without its observer's namespaces, so it cannot be proved gone
    kind="macvlan", link={}, config={"name": "rail0"}, pod="default/a", complete=True,
    result={"ips": [{"address": "10.1.0.2/24"}]},
)  # fmt: skip


def space(*, relaxed: bool = True, read_request: int = 4096, acs: int | None = None, ats: int | None = None) -> bytes:
    """Return a PCIe function's configuration space, with ACS and ATS if their registers have a value."""
    data = bytearray(4096)
    struct.pack_into("<H", data, 0x06, 0x10)
    data[0x34] = 0x40
    struct.pack_into("<BBH", data, 0x40, 0x05, 0x60, 0)  # MSI precedes it
    struct.pack_into("<BB", data, 0x60, 0x10, 0)
    struct.pack_into("<H", data, 0x68, relaxed << 4 | (read_request // 128).bit_length() - 1 << 12)
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    if acs is not None:
        struct.pack_into("<I", data, 0x148, 0x000D | 1 << 16)
        struct.pack_into("<H", data, 0x148 + 6, acs)
    if ats is not None:
        struct.pack_into("<IHH", data, 0x148, 0x000F | 1 << 16, 0x0020, ats)  # include/uapi/linux/pci_regs.h
    return bytes(data)


def listening(path: Path) -> socket.socket:
    """Listen on a socket there; the path may exceed the limit of a socket address."""
    sock, folder = socket.socket(socket.AF_UNIX), os.open(path.parent, os.O_PATH)
    sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    sock.listen()
    return sock


class Node:
    """Files below ``root``; ``at`` returns a path there and makes its directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file, self.build = Path(), ""  # of the running program
        self.sockets = [listening(self.at("run/hpn/agent.sock"))]
        self.sys = Tree(root / "sys")
        self._rails()
        self.at("sys/module/ib_core/parameters/netns_mode").write_text("N\n")
        self.at("dev/infiniband/rdma_cm").touch()
        self.at("proc/sys/kernel/osrelease").write_text("6.1.0-30-amd64\n")
        self.at("proc/net/unix").write_text("Num       RefCount Protocol Flags    Type St Inode Path\n")
        for name in ("all", "default"):
            self.at(f"proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0\n")
        self.process(811, "containerd", "unlimited")
        self.at("opt/cni/bin/hpn").write_text("#!/bin/sh\n")
        self.at("opt/cni/bin/hpn").chmod(0o755)
        self.at("etc/cni/net.d/10-rail0.conflist").write_text(json.dumps(NETWORK))
        self.at("etc/hpn/devices.yaml").write_text(NODE)
        self.save(ALIVE)

    def at(self, path: str) -> Path:
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def pci(self, address: str) -> Path:
        return (self.sys.root / "bus/pci/devices" / address).resolve()

    def process(self, number: int, name: str, memlock: str = "unlimited", *words: str) -> None:
        self.at(f"proc/{number}/comm").write_text(f"{name}\n")
        self.at(f"proc/{number}/cmdline").write_text("\0".join([f"/usr/bin/{name}", *words]) + "\0")
        limit = f"Max locked memory         {memlock:<20} {memlock:<20} bytes     \n"
        self.at(f"proc/{number}/limits").write_text(f"Limit                     Soft Limit  Hard Limit  Units\n{limit}")

    def save(self, record: Record, **fields: Any) -> Path:
        record = replace(record, **fields)
        with journal.lock(self.root / "run/hpn", record.network, record.key) as entry:
            entry.save(record)
            return entry.path

    def lease(self, container: str, first: str = "10.9.0.1", last: str = "10.9.0.200") -> None:
        """Allocate an address for a container, from hpn's own IPAM."""
        data_dir = self.at("var/lib/cni/hpn/ipam")
        ipam = {"subnet": "10.9.0.0/24", "rangeStart": first, "rangeEnd": last, "dataDir": f"{data_dir}"}
        self.net = Net(self.root, ipam)
        self.net.add(container)

    def findings(self) -> list[tuple[str, Finding]]:
        file = "" if self.file == Path() else f"{self.file}"
        return command.findings(facts(self.root, file, self.build))

    def _rails(self) -> None:
        """Draw two rails with RDMA, the first with a VF; each is below its own port, and a GPU is beside the first."""
        for address in (UPSTREAM, *PORTS.values(), GPU_PORT):
            self.sys.pci(address, driver="pcieport", **{"class": "0x060400"}, **link("32.0", 16))
            self.pci(address).joinpath("config").write_bytes(space(acs=0))
        for pf in PFS:
            self.sys.pci(pf, sriov_totalvfs=8, sriov_numvfs=0, **link("32.0", 16))
            self.pci(pf).joinpath("config").write_bytes(space())
        self.sys.pci(VF, pf=PFS[0])
        self.sys.pci(GPU, driver="nvidia", **{"class": "0x030200"})
        self._below(UPSTREAM, GPU_PORT, PORTS[PFS[0]])
        self._below(PORTS[PFS[0]], PFS[0], VF)
        self._below(PORTS[PFS[1]], PFS[1])
        self._below(GPU_PORT, GPU)
        for number, (address, name) in enumerate(zip((*PFS, VF), ("rail0", "rail1", "rail0v0"), strict=True)):
            self.sys.netdev(name, self.pci(address), mtu=9000, speed=200000)
            self.rdma(f"mlx5_{number}", address, number)
            (self.pci(address) / "msi_irqs").mkdir()
            (self.pci(address) / f"msi_irqs/{40 + number}").write_text("msix\n")

    def rdma(self, name: str, address: str, number: int) -> None:
        self.sys.rdma(name, self.pci(address), number)
        hca = self.pci(address) / "infiniband" / name
        write(hca, node_guid="0200:0000:0000:0001")
        port = hca / "ports/1"
        write(port, link_layer="Ethernet", state="4: ACTIVE")
        for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (port / folder).mkdir(parents=True)
        for index in range(10):
            self.gid(port, index, f"fe80::{index + 1:x}" if index < 2 else "::")

    def gid(self, port: Path, index: int, gid: str) -> None:
        write(port / "gids", **{str(index): gid})
        write(port / "gid_attrs/types", **{str(index): "RoCE v2"})
        write(port / "gid_attrs/ndevs", **{str(index): "rail0"})

    def _below(self, bridge: str, *addresses: str) -> None:
        """Move these functions below a bridge, as in the kernel's tree."""
        for address in addresses:
            new = self.pci(bridge) / address
            self.pci(address).rename(new)
            entry = self.sys.root / "bus/pci/devices" / address
            entry.unlink()
            entry.symlink_to(new)


def link(speed: str, width: int) -> dict[str, str | int]:
    """Return the attributes of a PCIe link at full speed and width."""
    both = {"link_speed": f"{speed} GT/s PCIe", "link_width": width}
    return {f"{which}_{name}": value for which in ("current", "max") for name, value in both.items()}
