"""Facts about the installed program, and about the sockets of agents and plugins."""

import errno
import filecmp
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ctl.doctor import places
from ctl.doctor.model import Programs, Socket
from ctl.doctor.reading import Reader
from ctl.installation import layout

AGENT: Final = "/run/hpn/agent.sock"
_LISTENS: Final = 0x10000  # __SO_ACCEPTCON, of the flags in /proc/net/unix


def programs(read: Reader, file: str, build: str) -> Programs:
    """The programs.  ``file`` is the running program, and ``build`` its version."""
    plugin = read.at(read.first(*places.PLUGINS))
    is_this: bool | None = None
    if file:
        with suppress(OSError):
            is_this = filecmp.cmp(file, plugin, shallow=False)
    found = read.stat(plugin)
    return Programs(
        "" if plugin in read.unread else plugin,
        runs=bool(found and stat.S_ISREG(found.st_mode) and os.access(plugin, os.X_OK)),
        is_there=os.path.lexists(plugin),
        is_this=is_this,
        build=build,
        registry=registry if read.stat(registry := read.at(read.first(*places.REGISTRIES))) else "",
        agent=read.at(AGENT),
        sockets=tuple(_sockets(read)),
        daemonset_unit=unit if read.stat(unit := read.at(f"/{layout.UNITS}/{layout.LEAVE}")) else "",
    )


def _sockets(read: Reader) -> Iterator[Socket]:
    """The agent's socket, and those of plugins that kubelet would call."""
    # Connecting to a socket of systemd's would start the agent, so the kernel's list comes first.
    listening = set(_listening(read.line(read.at("/proc/net/unix"))))
    folder = read.first(*places.REGISTRIES)
    registry = [f"{folder}/{name}" for name in read.names(read.at(folder)) if not name.startswith(".")]
    for path in (AGENT, *registry):
        there = read.at(path)
        if (found := read.stat(there)) and stat.S_ISSOCK(found.st_mode):
            listens = path in listening or _accepts(there)
            name = ""
            if listens and path != AGENT:
                from base.kubelet.client import resource  # noqa: PLC0415  # slow, and many nodes have no such socket

                name = resource(Path(there))
            yield Socket(there, listens, name)


def _listening(table: str) -> Iterator[str]:
    """The paths with a listening process of this network namespace (man 5 proc_pid_net)."""
    for line in table.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) > 7 and int(fields[3], 16) & _LISTENS:
            yield fields[7]


def _accepts(path: str) -> bool:
    """True if a process listens there, or if that is unknown."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            # The path may be too long for a socket's address.
            return probe.connect_ex(f"/proc/self/fd/{folder}/{os.path.basename(path)}") != errno.ECONNREFUSED
    finally:
        os.close(folder)
