"""The machine's GPUs and other accelerators, and how near each is to a NIC on PCI Express.

The words for that are those of ``nvidia-smi topo -m``: PIX through one switch, PXB through several, PHB through the
processor's host bridge, NODE through several host bridges of one NUMA node, SYS from one NUMA node to another.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from cni.kernel import sysfs

_CLASSES: Final = ("0x0302", "0x0380", "0x12")  # 3D controllers, other displays, processing accelerators
_VGA: Final = "0x0300"
_MAKERS: Final = frozenset({"0x10de", "0x1002", "0x8086"})  # of a VGA controller others' are the BMC's or a guest's
_ORDER: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class Place:
    """Where a PCI function is: what is above it from the host bridge down ("pci0000:3a", "0000:3a:00.0"), and its NUMA
    node, -1 where the machine does not say."""

    address: str
    above: tuple[str, ...]
    numa: int


@dataclass(frozen=True)
class Near:
    """A GPU, and how near it is: a word of ``nvidia-smi topo -m``."""

    address: str
    word: str


def gpus(root: Path = sysfs.SYS) -> tuple[Place, ...]:
    """The GPUs and accelerators, without the VFs that are made of one."""
    folder = f"{root}/bus/pci/devices"
    return tuple(place(address, root) for address in sysfs.names(folder) if _is_gpu(f"{folder}/{address}"))


def place(address: str, root: Path = sysfs.SYS) -> Place:
    """Where the PCI function at an address is."""
    parts = os.path.realpath(f"{root}/bus/pci/devices/{address}").split("/")
    begin = next((number for number, part in enumerate(parts) if part.startswith("pci")), len(parts) - 1)
    return Place(address, tuple(parts[begin:-1]), sysfs.numa_node(address, root))


def nearest(one: Place, others: Iterable[Place]) -> tuple[Near, ...]:
    """Those of the others that no other is nearer than; none if the nearest is on another NUMA node."""
    found = [Near(other.address, relation(one, other)) for other in others]
    best = min((near.word for near in found), key=_ORDER.index, default="SYS")
    return tuple(near for near in found if near.word == best != "SYS")


def relation(one: Place, other: Place) -> str:
    """How near two functions are."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.above, other.above, strict=False)))
    if common > 1:
        # A switch is an upstream port, and below it a downstream port for each of its devices.
        return "PIX" if max(len(one.above), len(other.above)) - common <= 1 else "PXB"
    if common:
        return "PHB"
    return "NODE" if one.numa == other.numa >= 0 else "SYS"


def _is_gpu(path: str) -> bool:
    code = sysfs.line(f"{path}/class")
    if code.startswith(_VGA) and sysfs.line(f"{path}/vendor") not in _MAKERS:  # guard: a-bmc
        return False
    return code.startswith((_VGA, *_CLASSES)) and not sysfs.link(f"{path}/physfn")
