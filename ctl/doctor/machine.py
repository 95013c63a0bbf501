"""Facts about the kernel, its processes and disks."""

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from base.kernel import dump, syscalls, sysfs
from base.protocol.result import Address
from ctl.command_line import build_of
from ctl.doctor.model import Disk, Machine, Process
from ctl.doctor.reading import Reader

# The comm of containerd and CRI-O, which start containers with their own limits.
RUNTIMES: Final = ("containerd", "crio")
IRQBALANCE: Final = "irqbalance"
MULTUS: Final = "multus-daemon"  # thick: commands run in its container, within its memory limit
# Bytes.  Without a limit, version 1 of cgroups shows a number near 2^63.
_NO_LIMIT: Final = 1 << 60
_MEMLOCK: Final = "Max locked memory"


_PACKAGES: Final = ("containerd", "containerd.io")
_STATUS: Final = "/var/lib/dpkg/status"


def own_addresses(read: Reader) -> dict[Address, str]:
    """The host's addresses with their interfaces; none for another kernel's files."""
    found = dict[Address, str]()
    for address, index in dump.own_addresses().items() if read.is_this_kernel else ():
        with suppress(OSError):  # the interface is gone meanwhile
            found[address] = socket.if_indextoname(index)
    return found


def machine(read: Reader, folders: Iterable[str]) -> Machine:
    """The machine, with the file systems of these folders."""
    release, proc = read.at("/proc/sys/kernel/osrelease"), read.at("/proc/sys/net/ipv4/conf")
    filters = {path: read.number(path) for name in ("all", "default") for path in [f"{proc}/{name}/rp_filter"]}
    return Machine(
        kernel=read.line(release),
        kernel_path=release,
        processes=tuple(_processes(read)),
        rp_filter={path: value for path, value in filters.items() if value is not None},
        numa=dict(_numa(read)),
        packages=dict(_packages(read)),
        packages_path=read.at(_STATUS),
        now=time.time() if read.is_this_kernel else 0.0,
        synchronized=not read.is_this_kernel or syscalls.is_clock_synchronized(),
        disks=tuple(_disks(folders)),
    )


def _processes(read: Reader) -> Iterator[Process]:
    """The host's processes, as far as they can be recognized: a pod can give its process any name."""
    host = sysfs.link(read.at("/proc/1/ns/pid"))
    for number in read.names(read.at("/proc")):
        path = read.at(f"/proc/{number}")
        theirs = sysfs.link(f"{path}/ns/pid")
        if number.isdecimal() and (theirs == host or not (theirs and host)):
            name, build = read.line(f"{path}/comm"), build_of(path)
            if build or name in (*RUNTIMES, IRQBALANCE, MULTUS):
                words = tuple(read.line(f"{path}/cmdline").rstrip("\0").split("\0"))
                memory = _memory(read, read.line(f"{path}/cgroup"))
                yield Process(path, name, words, _memlock(read.line(f"{path}/limits")), build, memory)


def _packages(read: Reader) -> Iterator[tuple[str, str]]:
    """The installed packages (man 5 deb-control).

    Rejected: to ask the program for its version.  It may be a user's, which has that name.
    """
    for block in read.line(read.at(_STATUS)).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") in _PACKAGES and fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields.get("Version", "")


def _numa(read: Reader) -> Iterator[tuple[int, frozenset[int]]]:
    folder = read.at("/sys/devices/system/node")
    for name in read.names(folder):
        if (number := name.removeprefix("node")).isdecimal() and name != number:
            yield int(number), read.ranges(f"{folder}/{name}/cpulist")


def _memlock(limits: str) -> int | None:
    """The soft limit (man 5 proc_pid_limits)."""
    for line in limits.splitlines():
        if line.startswith(_MEMLOCK):
            with suppress(ValueError, IndexError):
                return int(line.removeprefix(_MEMLOCK).split()[0])
    return None


def _memory(read: Reader, cgroups: str) -> int | None:
    """The limit of a process's cgroup, from /proc/PID/cgroup (man 7 cgroups); versions 1 and 2."""
    for line in cgroups.splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            limit = read.number(read.at(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"))
        elif not controllers:
            limit = read.number(read.at(f"/sys/fs/cgroup{group}/memory.max"))
        else:
            continue
        if limit is not None and limit < _NO_LIMIT:
            return limit
    return None


def _disks(folders: Iterable[str]) -> Iterator[Disk]:
    """Each file system once."""
    seen = set[int]()
    for folder in folders:
        with suppress(OSError):  # it does not exist, or is hidden
            if (device := os.stat(folder).st_dev) not in seen:
                seen.add(device)
                found = os.statvfs(folder)
                size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
                yield Disk(folder, size, free, found.f_files, found.f_favail)
