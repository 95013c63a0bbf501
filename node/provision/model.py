"""The state of PFs and RDMA, and changes of it, as values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from hardware.model import Device

# modprobe reads it for ib_core (man 5 modprobe.d).
OPTION_FILE: Final = "/etc/modprobe.d/hpn-node.conf"


@dataclass(frozen=True)
class Vf:
    """A VF.

    - ``number``: its index on the PF.
    - ``mtu``: of its interface; while a pod has that, the MTU that the plugin restores; 0 if unknown or without one.
    - ``trust``: None if the PF does not report it.
    - ``has_guids``: None for Ethernet.
    - ``user``: the pod or process that has it, as text; empty for none.
    - ``needed``: the host's or a pod's need for its interface, as text; empty for none, or if no change needs it.
    """

    address: str
    number: int
    mtu: int = 0
    trust: bool | None = None
    has_guids: bool | None = None
    user: str = ""
    needed: str = ""

    @property
    def is_free(self) -> bool:
        """Whether hpn node may change it."""
        return not self.user and not self.needed


@dataclass(frozen=True)
class Pf:
    """A PF.

    - ``total_vfs``: the number of VFs that it can have; None without SR-IOV.
    - ``mtu``, ``most_mtu``: of its interface; 0 if that is not on the host, or has no limit.
    - ``guid``: its port's GUID, "00:11:22:33:44:55:66:77"; empty without one.
    - ``user``: as for a VF.
    - ``over``: the owner of an interface over its own, such as a pod's macvlan; empty for none, or if no change needs
      it.
    - ``is_read_only``: whether its files are in a read-only mount of /sys, as in a container.
    - ``lag``: the bond with which it shares an RDMA device, as two PFs of mlx5 do (RoCE LAG); empty for none.
    """

    device: Device
    total_vfs: int | None = None
    vfs: tuple[Vf, ...] = ()
    mtu: int = 0
    most_mtu: int = 0
    guid: str = ""
    user: str = ""
    over: str = ""
    lag: str = ""
    is_read_only: bool = False

    @property
    def title(self) -> str:
        """Its interface and address, for messages."""
        name, address = next(iter(self.device.names), ""), self.device.id
        return f"{name} ({address})" if name else address


@dataclass(frozen=True)
class State:
    """The present state of the PFs that rules select, and of RDMA.

    - ``exclusive``: whether an RDMA device is in one network namespace at a time; None if the kernel has no RDMA.
    - ``option``: the contents of OPTION_FILE, which sets this at the next boot; empty without the file.
    """

    pfs: tuple[Pf, ...] = ()
    exclusive: bool | None = None
    option: str = ""


@dataclass(frozen=True)
class SetVfs:
    """Set a PF's number of VFs.  ``then`` is text on what the new VFs get."""

    pf: Pf = field(repr=False)
    count: int
    then: str = ""

    def __str__(self) -> str:
        then = f", each with {self.then}" if self.then and self.count else ""
        return f"{self.pf.title}: numVfs {len(self.pf.vfs)} -> {self.count}{then}"


@dataclass(frozen=True)
class SetMtu:
    """Set the MTU of the PF's interface, or of the interfaces of ``vfs``."""

    pf: Pf = field(repr=False)
    mtu: int
    vfs: tuple[Vf, ...] = ()

    def __str__(self) -> str:
        before = sorted({vf.mtu for vf in self.vfs} or {self.pf.mtu})
        return f"{self.pf.title}: mtu{_of(self.vfs)} {', '.join(map(str, before))} -> {self.mtu}"


@dataclass(frozen=True)
class SetTrust:
    """Set whether the PF trusts these VFs."""

    pf: Pf = field(repr=False)
    on: bool
    vfs: tuple[Vf, ...]

    def __str__(self) -> str:
        return f"{self.pf.title}: trust{_of(self.vfs)} -> {'true' if self.on else 'false'}"


@dataclass(frozen=True)
class SetGuids:
    """Set the VFs' GUIDs, in their order."""

    pf: Pf = field(repr=False)
    vfs: tuple[Vf, ...]
    guids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pf.title}: guids{_of(self.vfs)}: none -> {', '.join(self.guids)}"


@dataclass(frozen=True)
class SetMode:
    """Set whether an RDMA device is in one network namespace at a time, or in all."""

    exclusive: bool

    def __str__(self) -> str:
        before, after = ("shared", "exclusive") if self.exclusive else ("exclusive", "shared")
        return f"rdmaNamespaces {before} -> {after}"


@dataclass(frozen=True)
class WriteOption:
    """Write OPTION_FILE, which sets the RDMA mode at the next boot."""

    text: str

    def __str__(self) -> str:
        return f"{OPTION_FILE}: {self.text.splitlines()[-1]}"


Change = SetVfs | SetMtu | SetTrust | SetGuids | SetMode | WriteOption


def ranges(numbers: Sequence[int]) -> str:
    """ "0-2, 5"."""
    groups = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)


def _of(vfs: Sequence[Vf]) -> str:
    return f" of VF {ranges([vf.number for vf in vfs])}" if vfs else ""
