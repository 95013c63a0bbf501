"""The rails of this network namespace, from the kernel: RDMA ports with their interface, address, GID and settings.

/sys shows every RDMA device in shared mode, also those of other namespaces.  So a port counts only if its interface is
here: its first GID must come from that interface's MAC.
"""

import os
import re
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface, IPv6Address
from pathlib import Path
from typing import Final

from base.kernel import dump, gids, sysfs
from base.protocol.errors import LinkUnavailable
from ctl.fabric.model import FabricRail
from ctl.hints.command import read as read_hints
from ctl.top import counters
from hardware import ports, rdma_devices
from hardware.rdma_devices import Hca, Port

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")


def read(wanted: Sequence[str] = (), root: Path = sysfs.SYS) -> tuple[FabricRail, ...]:
    """The rails in the order of ``wanted``, which names interfaces or RDMA devices.  By default they are all, in the
    natural order of their interfaces, without VFs and SFs whose PF is here.  Raises LinkUnavailable for a name without
    a rail; OSError."""
    hcas = rdma_devices.hcas(root)
    by_device = [(hca.device, rail) for hca in hcas for port in hca.ports if (rail := _rail(hca, port, root))]
    found = [rail for _, rail in by_device]
    if not wanted:
        devices = {device for device, _ in by_device}
        tops = [rail for device, rail in by_device if sysfs.top(device, root) not in devices - {device}]
        return tuple(sorted(tops, key=lambda rail: (sysfs.natural(rail.netdev), rail.port)))
    chosen = []
    for name in wanted:
        fitting = [rail for rail in found if name in (rail.netdev, rail.device)]
        if not fitting:
            there = ", ".join(f"{rail.netdev} ({rail.device})" for rail in found) or "none"
            raise LinkUnavailable(f"{name!r} is not a rail of this network namespace; its rails: {there}")
        chosen += [rail for rail in fitting if rail not in chosen]
    return tuple(chosen)


def memlock() -> int:
    """The limit of locked memory in bytes, -1 for none; also -1 with CAP_IPC_LOCK, which root mostly has."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        if int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_IPC_LOCK & 1:
            return -1
    return -1 if limit == resource.RLIM_INFINITY else limit


_CAP_IPC_LOCK: Final = 14


def _rail(hca: Hca, port: Port, root: Path) -> FabricRail | None:
    """The rail of a port; None if its interface is in another namespace."""
    counted = ports.Port(hca.name, f"{port.number}", port.path, ports.NOBODY, root)
    netdev = port.netdev if port.link_layer != rdma_devices.ROCE else counters.netdev_of(counted, root)
    if not netdev:
        return None
    address, gid = _address(hca, port, netdev)
    mtu, rdma_mtus = sysfs.line(f"{root}/class/net/{netdev}/mtu"), rdma_devices.mtus(hca, port, root)
    rate = _RATE.match(port.rate)
    _, classes = read_hints(root, [hca.name])
    return FabricRail(
        device=hca.name,
        port=port.number,
        netdev=netdev,
        address=address,
        gid=gid,
        layer=port.link_layer,
        state=port.state_name,
        mtu=int(mtu) if mtu.isdecimal() else 0,
        path_mtu=rdma_devices.MTUS[rdma_mtus[1]] if rdma_mtus else 0,
        rate=float(rate[1]) if rate and hca.device else 0.0,
        lanes=port.rate if hca.device else "",
        pcie=_pcie(hca, root, "current"),
        pcie_most=_pcie(hca, root, "max"),
        traffic_class=classes.get(hca.name, -1),
        errors=counters.read(counted, root).errors,
    )


def _address(hca: Hca, port: Port, netdev: str) -> tuple[str, int]:
    """An IPv4 address of the interface, and its RoCE v2 GID's index.  Prefer one that has a GID; the index is -1
    without."""
    with suppress(OSError):
        found = dump.addresses(None, socket.if_nametoindex(netdev))
        here = sorted(one.ip for one in found if isinstance(one, IPv4Interface))
        if port.link_layer != rdma_devices.ROCE:
            return (f"{here[0]}" if here else ""), -1
        table = {
            IPv4Address(int(IPv6Address(gid.gid)) & 0xFFFFFFFF): gid.index
            for gid in rdma_devices.gids(hca, port)
            if gid.kind == gids.ROCE_V2 and gid.address and gid.netdev == netdev
        }
        with_gid = [one for one in here if one in table]
        if with_gid:
            return f"{with_gid[0]}", table[with_gid[0]]
        return (f"{here[0]}" if here else ""), -1
    return "", -1


def _pcie(hca: Hca, root: Path, which: str) -> str:
    """The PCIe link's speed and width, such as "16.0 GT/s PCIe x16"; empty if the kernel does not report it."""
    address = sysfs.pci_of(hca.device, root) if hca.device else ""
    path = os.path.join(root, "bus/pci/devices", address)
    speed, width = (sysfs.line(f"{path}/{which}_link_{what}") if address else "" for what in ("speed", "width"))
    return f"{speed} x{width}" if speed and width.isdecimal() and int(width) else ""
