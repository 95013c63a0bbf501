"""Checks of programs and their sockets, and the list of files that could not be read."""

import errno
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from base.table import abridged
from ctl.doctor.machine import MULTUS
from ctl.doctor.model import Facts, Finding, Process, Severity

_COMMAND: Final = 28  # MiB for a command without an agent (docs/user/performance.md)
_NAMED: Final = 3  # paths in one finding
_DENIED: Final = tuple(map(os.strerror, (errno.EACCES, errno.EPERM)))


def plugin_missing(facts: Facts) -> Iterator[Finding]:
    """The runtime finds no executable hpn.  This is only a note if nothing on the node needs it."""
    programs = facts.programs
    if programs.runs or not programs.plugin:
        return
    used = facts.networks or facts.state.attachments or facts.node_file
    what = "is not an executable file" if programs.is_there else "does not exist"
    severity = Severity.ERROR if used or programs.is_there else Severity.NOTE
    remedy = "run hpn install from the file of the wanted version"
    # That would make the installation one by hand, which the DaemonSet does not replace.
    if programs.daemonset_unit or next(_pods(facts), None):
        remedy = "delete the DaemonSet's pod on this node, which installs hpn again"
    yield Finding(severity, f"{programs.plugin} {what}", remedy)


def plugin_differs(facts: Facts) -> Iterator[Finding]:
    """The runtime runs another program than the operator."""
    if facts.programs.runs and facts.programs.is_this is False:
        evidence = f"{facts.programs.plugin} is not the same file as the running program"
        yield Finding(Severity.WARNING, evidence, "run hpn install from the file of the wanted version")


def daemon_differs(facts: Facts) -> Iterator[Finding]:
    """A daemon runs another version: an agent then refuses requests, and hpn node behaves as that version."""
    programs = facts.programs
    if not programs.build or programs.is_this is False:  # then the wanted version is unknown
        return
    for process in facts.machine.processes:
        daemon = next((word for word in process.words if word in ("agent", "node")), "")
        if daemon and process.build not in ("", programs.build):
            evidence = (
                f"{process.path}/exe is hpn {daemon} of build {process.build}; this program is build {programs.build}"
            )
            yield Finding(Severity.WARNING, evidence, f"systemctl restart hpn-{daemon}.service, or restart its pod")


def socket_dead(facts: Facts) -> Iterator[Finding]:
    """No process listens on a socket.  kubelet keeps trying to connect to a plugin's."""
    for socket in facts.programs.sockets:
        if not socket.listens:
            name = os.path.basename(socket.path)
            plugin = "hpn-node" if name.startswith("hpn-") else "a device plugin"
            owner = "hpn-agent" if name == "agent.sock" else plugin
            yield Finding(
                Severity.WARNING,
                f"{socket.path}: no process listens on this socket",
                f"start its program, {owner}; if that was removed for good: rm {socket.path}",
            )


def agent_missing(facts: Facts) -> Iterator[Finding]:
    """No agent answers commands.  Each then starts a process of its own, in the memory limit of its caller."""
    programs = facts.programs
    used = facts.networks or facts.state.attachments
    if not (programs.runs and used) or programs.agent in [socket.path for socket in programs.sockets]:
        return
    evidence = (
        f"no agent listens at {programs.agent}, so each command starts its own process, which needs {_COMMAND} MiB"
    )
    limits = [(one.memory, one.path) for one in facts.machine.processes if one.name == MULTUS and one.memory]
    for limit, path in limits:
        evidence += f"; {path} ({MULTUS}) has a limit of {limit >> 20} MiB for itself and all commands that run at once"
    yield Finding(
        Severity.WARNING if limits else Severity.NOTE,
        evidence,
        "systemctl enable --now hpn-agent.socket, or deploy the agent of packaging/kubernetes",
    )


def mode(facts: Facts) -> Iterator[Finding]:
    """The DaemonSet runs hpn on this node, as units of systemd or in containers."""
    if unit := facts.programs.daemonset_unit:
        remedy = "none; kubectl logs shows the units' log"
        yield Finding(Severity.NOTE, f"{unit}: the DaemonSet runs hpn as units of systemd", remedy)
        return
    # The agent is several processes.
    if process := next(_pods(facts), None):
        yield Finding(
            Severity.NOTE,
            f"{process.path}: the DaemonSet runs hpn in containers, so after a reboot kubelet refuses the pods "
            "with devices that it had",
            "kubectl logs --container install shows why; where systemd runs, set mode: systemd",
        )


def _pods(facts: Facts) -> Iterator[Process]:
    """The processes of the container agent of a DaemonSet's pod."""
    for process in facts.machine.processes:
        if process.build and process.words[-2:] in (("daemonset", "agent"), ("agent", "--host")):
            yield process


def resource_twice(facts: Facts) -> Iterator[Finding]:
    """Two device plugins offer one resource.  kubelet uses the one that registered last."""
    by_name = defaultdict[str, list[str]](list)
    for socket in facts.programs.sockets:
        if socket.resource:
            by_name[socket.resource].append(socket.path)
    for name, paths in by_name.items():
        if len(paths) > 1:
            yield Finding(
                Severity.ERROR,
                f"{' and '.join(paths)} both offer {name}",
                "remove the node from one plugin's DaemonSet, or the resource from one plugin's file",
            )


def not_readable(facts: Facts) -> Iterator[Finding]:
    """Files and directories that could not be read.  The other checks ignore them."""
    by_reason = defaultdict[str, list[str]](list)
    for path, why in facts.unread:
        by_reason[why].append(path)
    for why, paths in by_reason.items():
        evidence = f"{abridged(paths, _NAMED)}: {why}"
        remedy = "run hpn doctor as root, in the host's namespaces" if why in _DENIED else "follow this message"
        yield Finding(Severity.NOTE, evidence, remedy)
