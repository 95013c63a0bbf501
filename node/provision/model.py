"""What is of PFs and RDMA, and what is to be changed of it, as values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from hardware.model import Device

# Read by modprobe when ib_core is loaded (man 5 modprobe.d).
OPTION_FILE: Final = "/etc/modprobe.d/hpn-node.conf"


@dataclass(frozen=True)
class Vf:
    """A VF.

    - ``number``: on its PF.
    - ``mtu``: of its interface; while a pod has that, what it comes home with; 0 where it has none, and where nobody
      knows.
    - ``trust``: None where the PF does not say; ``has_guids``: None for Ethernet.
    - ``user``: which pod or process has it, in words; empty for none.
    - ``needed``: what the host or a pod needs its interface for, in words; empty for nothing, or where nothing would be
      changed.
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
        """Whether it may be changed."""
        return not self.user and not self.needed  # guard: a-pods-vf (user), the-hosts-vf (needed)


@dataclass(frozen=True)
class Pf:
    """A PF.

    - ``total_vfs``: how many VFs it can have; None without SR-IOV.
    - ``mtu``, ``most_mtu``: of its interface; 0 where that is not on the host, or has no limit.
    - ``guid``: its port's GUID, "00:11:22:33:44:55:66:77"; empty where it has none.
    - ``user``: as of a VF.
    - ``over``: whose an interface is over its own, as a pod's macvlan; empty for none, or where nothing would be
      changed.
    - ``lag``: the bond that it shares an RDMA device by, as two PFs of mlx5 do (RoCE LAG); empty for none.
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

    @property
    def title(self) -> str:
        """Its name for people."""
        name, address = next(iter(self.device.names), ""), self.device.id
        return f"{name} ({address})" if name else address


@dataclass(frozen=True)
class State:
    """What is: the PFs that rules are for.

    - ``exclusive``: whether an RDMA device is in one network namespace at a time; None while the kernel has no RDMA.
    - ``option``: what the file says that sets this at the next boot; empty without one.
    """

    pfs: tuple[Pf, ...] = ()
    exclusive: bool | None = None
    option: str = ""


@dataclass(frozen=True)
class SetVfs:
    """Give a PF another number of VFs.  ``then`` says for people what the new VFs get."""

    pf: Pf = field(repr=False)
    count: int
    then: str = ""

    def __str__(self) -> str:
        then = f", each with {self.then}" if self.then and self.count else ""
        return f"{self.pf.title}: numVfs {len(self.pf.vfs)} -> {self.count}{then}"


@dataclass(frozen=True)
class SetMtu:
    """Give the PF's interface, or with ``vfs`` those of its VFs, another MTU."""

    pf: Pf = field(repr=False)
    mtu: int
    vfs: tuple[Vf, ...] = ()

    def __str__(self) -> str:
        before = sorted({vf.mtu for vf in self.vfs} or {self.pf.mtu})
        return f"{self.pf.title}: mtu{_of(self.vfs)} {', '.join(map(str, before))} -> {self.mtu}"


@dataclass(frozen=True)
class SetTrust:
    """Have the PF trust its VFs, or not."""

    pf: Pf = field(repr=False)
    on: bool
    vfs: tuple[Vf, ...]

    def __str__(self) -> str:
        return f"{self.pf.title}: trust{_of(self.vfs)} -> {'true' if self.on else 'false'}"


@dataclass(frozen=True)
class SetGuids:
    """Give VFs GUIDs, in their order."""

    pf: Pf = field(repr=False)
    vfs: tuple[Vf, ...]
    guids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pf.title}: guids{_of(self.vfs)}: none -> {', '.join(self.guids)}"


@dataclass(frozen=True)
class SetMode:
    """Have RDMA devices in one network namespace at a time, or in all."""

    exclusive: bool

    def __str__(self) -> str:
        return f"rdmaNamespaces {mode(not self.exclusive)} -> {mode(self.exclusive)}"


@dataclass(frozen=True)
class WriteOption:
    """Write the file that sets this at the next boot."""

    text: str

    def __str__(self) -> str:
        return f"{OPTION_FILE}: {self.text.splitlines()[-1]}"


Change = SetVfs | SetMtu | SetTrust | SetGuids | SetMode | WriteOption


def mode(exclusive: bool) -> str:  # noqa: FBT001
    """The value of ``rdmaNamespaces``."""
    return "exclusive" if exclusive else "shared"


def ranges(numbers: Sequence[int]) -> str:
    """ "0-2, 5"."""
    return ", ".join(_ranges(numbers))


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in group]
        yield f"{found[0]}-{found[-1]}" if len(found) > 1 else f"{found[0]}"


def _of(vfs: Sequence[Vf]) -> str:
    return f" of VF {ranges([vf.number for vf in vfs])}" if vfs else ""
