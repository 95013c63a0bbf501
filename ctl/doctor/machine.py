"""The kernel and its processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ctl.doctor.model import Machine, Process
from ctl.doctor.reading import Reader

# By the processes' comm.  containerd and CRI-O start containers, which have their limits.
RUNTIMES: Final = ("containerd", "crio")
IRQBALANCE: Final = "irqbalance"
# Our processes run by a loader of our own, which lies in a directory of its version's name (docs/protocol.md).
_LOADER: Final = "ld-hpn.so.2"
_MEMLOCK: Final = "Max locked memory"


def machine(read: Reader) -> Machine:
    """The machine, but for its devices."""
    release, proc = read.at("/proc/sys/kernel/osrelease"), read.at("/proc/sys/net/ipv4/conf")
    filters = {path: read.number(path) for name in ("all", "default") for path in [f"{proc}/{name}/rp_filter"]}
    return Machine(
        kernel=read.line(release),
        kernel_path=release,
        processes=tuple(_processes(read)),
        rp_filter={path: value for path, value in filters.items() if value is not None},
    )


def _processes(read: Reader) -> Iterator[Process]:
    for number in read.names(read.at("/proc")):
        if number.isdecimal():
            path = read.at(f"/proc/{number}")
            name, build = read.line(f"{path}/comm"), _build(path)
            if build or name in (*RUNTIMES, IRQBALANCE):
                words = tuple(read.line(f"{path}/cmdline").rstrip("\0").split("\0"))
                yield Process(path, name, words, _memlock(read.line(f"{path}/limits")), build)


def _build(path: str) -> str:
    try:
        way = os.readlink(f"{path}/exe").removesuffix(" (deleted)").split("/")
    except OSError:  # a kernel thread, or somebody else's
        return ""
    return way[-2] if way[-1] == _LOADER else ""


def _memlock(limits: str) -> int | None:
    """The soft limit (man 5 proc_pid_limits)."""
    for line in limits.splitlines():
        if line.startswith(_MEMLOCK):
            with suppress(ValueError, IndexError):
                return int(line.removeprefix(_MEMLOCK).split()[0])
    return None
