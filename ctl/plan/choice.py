"""The NICs that pods can have, and how: VFs, scalable functions, whole PFs, or interfaces over a master.

``nics`` reads the facts.  All else is pure.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol.errors import LinkUnavailable
from hardware import functions, inventory, users
from hardware.model import Device, Kind

MOVED: Final = ("vf", "sf", "pf")  # with an RDMA device of their own
_VFS: Final = 8  # for a PF without VFs
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # an interface that a selector can name
_IWARP: Final = "4"  # enum rdma_node_type
_NOWHERE: Final = Path("/nonexistent")
_NVIDIA: Final = "15b3"
_DPUS: Final = frozenset({"a2d2", "a2d6", "a2dc", "a2df"})  # BlueField to BlueField-4 (pci.ids): their host's PFs


@dataclass(frozen=True)
class Nic:
    """A PF, a bond, or a named interface of software, with the facts that decide how pods can have it.

    - ``below``: a PF's VFs and SFs, or the devices below a bond.
    - ``total_vfs``: as sriov_totalvfs; ``master``: the bridge, bond or VRF that it is in.
    - ``lag``, ``holder``: as in hardware/users.py; ``gpus``: the nearest ones, as text.
    - ``is_switchdev``: whether its switch is in that mode, where only its VFs and SFs have RoCE.
    """

    device: Device
    below: tuple[Device, ...] = ()
    total_vfs: int = 0
    master: str = ""
    lag: str = ""
    holder: str = ""
    gpus: tuple[str, ...] = ()
    is_iwarp: bool = False
    is_switchdev: bool = False

    @property
    def name(self) -> str:
        """Its interface, or without one its id."""
        return next(iter(self.device.names), self.device.id)

    @property
    def title(self) -> str:
        return self.name if self.name == self.device.id else f"{self.name} ({self.device.id})"

    @property
    def is_infiniband(self) -> bool:
        return self.device.link_type == "infiniband"

    def of(self, kind: Kind) -> list[Device]:
        return [one for one in self.below if one.kind is kind]

    def free(self) -> list[Device]:
        """The VFs that pods can have."""
        return [vf for vf in self.of(Kind.VF) if not why_not_free(vf)]


def why_not_free(vf: Device) -> str:
    """Why no pod can have a VF; empty if one can."""
    return vf.needed or (f"{vf.driver} drives it" if vf.driver in sysfs.USERSPACE else "")


@dataclass(frozen=True)
class Rail:
    """A NIC for pods: the kind of its resource with the reason, and for kind vf the PF's number of VFs."""

    nic: Nic
    how: str
    why: str
    vfs: int = 0

    @property
    def name(self) -> str:
        """Its name in Kubernetes."""
        return re.sub(r"[^a-z0-9.-]", "-", self.nic.name.lower()).strip("-.")

    @property
    def has_rdma(self) -> bool:
        moved = self.nic.of(Kind(self.how)) if self.how in ("vf", "sf") else []
        return any(one.rdma for one in moved or [self.nic.device])


@dataclass(frozen=True)
class Plan:
    """The choice: the rails, the reason for each other NIC by its id, and RDMA's mode, which is empty without RDMA."""

    rails: tuple[Rail, ...]
    left_out: Mapping[str, str]
    mode: str

    @property
    def networks(self) -> list[Rail]:
        """The rails that give a pod an interface."""
        return [rail for rail in self.rails if rail.how != "shared"]


def nics(root: Path, named: Sequence[str] = ()) -> list[Nic]:
    """The PFs and bonds, or only what is named.  Raises LinkUnavailable, OSError."""
    devices = inventory.devices(root, inventory.MEMORY if root == sysfs.SYS else None)
    tops = [one for one in devices if one.kind in (Kind.PF, Kind.NETDEV)]
    called = {one.id: {one.id, *one.names, *(rdma.name for rdma in one.rdma)} for one in tops}
    for name in named:
        if not any(name in names for names in called.values()):
            raise LinkUnavailable(f"no NIC here is called {name!r}; there are: {', '.join(called) or 'none'}")
    if named:
        return [_nic(one, devices, root) for one in tops if called[one.id] & set(named)]
    folder = f"{root}/class/net"
    return [_nic(d, devices, root) for d in tops if d.kind is Kind.PF or os.path.exists(f"{folder}/{d.id}/bonding")]


def _nic(one: Device, devices: Sequence[Device], root: Path) -> Nic:
    lowers = set(users.all_below(f"{root}", one.id)) if one.kind is Kind.NETDEV else set()
    below = [d for d in devices if (d.pf == one.id and d.kind in (Kind.VF, Kind.SF)) or lowers & set(d.netdevs)]
    types = [sysfs.line(f"{root}/class/infiniband/{rdma.name}/node_type") for rdma in one.rdma]
    near = functions.nearest(functions.place(one.id, root), functions.gpus(root)) if one.kind is Kind.PF else ()
    return Nic(
        one,
        tuple(sorted(below, key=lambda d: d.index)),
        max(sysfs.number(f"{root}/bus/pci/devices/{one.id}/sriov_totalvfs"), 0),
        next((sysfs.master_of(name, root) for name in one.netdevs), ""),
        users.lag(one.id, root),
        users.user(one.id, {}, root, _NOWHERE),
        tuple(f"GPU {gpu.address} {gpu.word}" for gpu in near),
        is_iwarp=any(text.startswith(_IWARP) for text in types),
        is_switchdev=root == sysfs.SYS and functions.eswitch_mode(one) == "switchdev",
    )


def decide(found: Sequence[Nic], asked: str = "", vfs: int = 0) -> Plan:
    """The plan.  ``asked`` is the kind of all rails, by default each one's own; ``vfs`` is the number of VFs."""
    rails, left_out = list[Rail](), dict[str, str]()
    for nic in found:
        how, why = _way(nic, asked)
        if obstacle := next(filter(None, _obstacles(nic, how, is_asked=bool(asked))), ""):
            left_out[nic.device.id] = obstacle
        else:
            count = min(vfs or nic.device.vfs or _VFS, nic.total_vfs or nic.device.vfs)
            rails.append(Rail(nic, how, why, count))
    with_rdma = [rail.how for rail in rails if rail.has_rdma]
    mode = "exclusive" if set(MOVED) & set(with_rdma) else "shared" if with_rdma else ""
    if mode == "exclusive":
        why = "it has no interface, and in exclusive mode its RDMA device stays on the host"
        left_out |= {rail.nic.device.id: why for rail in rails if rail.how == "shared"}
        rails = [rail for rail in rails if rail.how != "shared"]
    return Plan(tuple(rails), left_out, mode)


def _way(nic: Nic, asked: str) -> tuple[str, str]:
    """The kind of resource for a NIC, and the reason."""
    one = nic.device
    ways = (
        ("shared", not one.names, "it has no interface"),
        (asked, asked, f"--as is {asked}"),
        ("master", one.kind is Kind.NETDEV, "it is not a PF"),
        ("vf", one.vfs, f"it has {one.vfs} VFs"),
        ("sf", nic.of(Kind.SF), f"it has {len(nic.of(Kind.SF))} scalable functions, and no VFs"),
        ("master", nic.master, ""),  # an obstacle
        ("vf", nic.total_vfs, f"it can have {nic.total_vfs} VFs"),
        ("pf", one.rdma and not one.needed, "it can have no VFs, and its RDMA device moves with it"),
        ("master", True, f"it can have no VFs, and {one.needed or 'it has no RDMA device'}"),
    )
    return next((how, why) for how, suits, why in ways if suits)


def _obstacles(nic: Nic, how: str, *, is_asked: bool) -> Iterator[str]:
    """Reasons why pods cannot have a NIC in this way; empty ones do not count."""
    one, is_software = nic.device, nic.device.kind is Kind.NETDEV
    yield one.reserved
    if nic.is_switchdev and one.rdma and how in ("pf", "master", "shared") and not is_asked:
        yield f"it is in switchdev mode, where its RDMA device has no RoCE; --as {how} includes it"
    yield "" if one.driver or is_software else "it has no driver"
    yield f"{one.driver} drives it, so a process may use it" if one.driver in sysfs.USERSPACE else ""
    yield "no selector can name its interface" if one.names and not _NAME.fullmatch(nic.name) else ""
    if how in MOVED and is_software:
        yield "it is not a PF"
    if how == "vf":
        yield "" if nic.total_vfs or one.vfs else "it can have no VFs"
        yield f"new VFs would remove the RDMA device that it shares in {nic.lag}" if nic.lag and not one.vfs else ""
        yield "no pod can have one of its VFs" if one.vfs and not nic.free() else ""
    elif how == "sf":
        yield "" if nic.of(Kind.SF) else "it has no scalable functions"
        yield "no pod can have a scalable function of InfiniBand" if nic.is_infiniband else ""
    elif how == "pf":
        yield one.needed
        is_dpu = one.vendor == _NVIDIA and one.product in _DPUS
        yield "its DPU serves the host by it; --as pf includes it" if is_dpu and not is_asked else ""
        yield f"it has {one.vfs} VFs, which send through it" if one.vfs else ""
    elif how == "master":
        yield f"it is in {nic.master}" if nic.master else ""
        yield "IPoIB children cannot be over it" if nic.is_infiniband and is_software else ""
        with_vfs = [pf.netdevs[0] for pf in nic.of(Kind.PF) if pf.vfs]
        yield f"pods get the VFs of {', '.join(with_vfs)} below it" if with_vfs and not is_asked else ""
    else:
        yield f"{nic.holder} has it" if nic.holder else ""
        yield "" if one.rdma else "it has neither interface nor RDMA device"
