"""The processors that handle an interface's received packets: by receive packet steering
(Documentation/networking/scaling.rst), and by its interrupts (Documentation/core-api/irq/irq-affinity.rst)."""

import os
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from base.kernel import files, sysfs

IRQ: Final = Path("/proc/irq")
MOST: Final = 8192  # processors of the largest kernel (NR_CPUS on x86-64; arm64 has 4096 at most)
_ITEM: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def parse(text: str) -> tuple[int, ...]:
    """The processors of a list such as "0-3,8", in order.  Raises ValueError for an empty or malformed list."""
    found = set[int]()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST:
            raise ValueError("is not a list of processors; write 0-3,8")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def spell(cpus: Iterable[int]) -> str:
    """``parse``'s inverse."""
    spans = []
    for _, run in groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0]):
        numbers = [cpu for _, cpu in run]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}")
    return ",".join(spans)


def mask(cpus: Iterable[int]) -> str:
    """The processors in the kernel's form of a mask: words of eight hexadecimal digits, with commas (bitmap_parse)."""
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    padded = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(padded[at : at + 8] for at in range(0, len(padded), 8)).lstrip("0") or "0"


def near(address: str, root: Path = sysfs.SYS) -> tuple[int, ...]:
    """The processors of a PCI function's NUMA node; all processors if the machine does not report one; none for no
    function."""
    text = sysfs.line(root / "bus/pci/devices" / address / "local_cpulist") if address else ""
    return parse(text) if text else ()


def possible(root: Path = sysfs.SYS) -> tuple[int, ...]:
    """The processors that this machine may have."""
    return parse(sysfs.line(root / "devices/system/cpu/possible"))


def vectors(address: str, root: Path = sysfs.SYS) -> tuple[int, ...]:
    """The numbers of a PCI function's message-signalled interrupts that its driver uses, in order.  /proc/irq lacks an
    interrupt until a driver uses it for the first time (register_irq_proc)."""
    names = sysfs.names(f"{root}/bus/pci/devices/{address}/msi_irqs") if address else ()
    return tuple(sorted(int(name) for name in names if (IRQ / name).exists()))


def affinity(irq: int) -> str:
    """The processors that may handle an interrupt, as a list.  Raises OSError."""
    return (IRQ / str(irq) / "smp_affinity_list").read_text().strip()


def set_affinity(irq: int, cpus: str) -> None:
    """Let the processors of a list handle an interrupt.  Raises OSError: EIO for one that the kernel spreads itself."""
    files.write_value(f"{IRQ}/{irq}/smp_affinity_list", cpus)


def steering(netdev: str, root: Path) -> Mapping[str, str]:
    """The steering masks of an interface's receive queues: "rx-0" -> "00000003".  Raises OSError."""
    folder = root / "class/net" / netdev / "queues"
    return {
        name: (folder / name / "rps_cpus").read_text().strip()
        for name in sorted(os.listdir(folder))
        if name[:3] == "rx-"
    }


def steer(netdev: str, masks: Mapping[str, str], root: Path) -> None:
    """Set masks as ``steering`` returns them.  Raises OSError."""
    for name, value in masks.items():
        files.write_value(f"{root}/class/net/{netdev}/queues/{name}/rps_cpus", value)
