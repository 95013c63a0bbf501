"""Programs, and what could not be looked at."""

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ctl.doctor.machine import MULTUS
from ctl.doctor.model import Facts, Finding, Severity

_COMMAND: Final = 28  # MiB that a command takes which does its work itself (docs/user/performance.md)
_NAMED: Final = 3  # paths that a finding names


def plugin_missing(facts: Facts) -> Iterator[Finding]:
    """The runtime finds no program of ours that it could run.  Where nothing here needs one, that is only noted."""
    programs = facts.programs
    if programs.runs or not programs.plugin:
        return
    used = facts.networks or facts.state.attachments or facts.node_file
    what = "is no file that can be run" if programs.is_there else "is not there"
    severity = Severity.ERROR if used or programs.is_there else Severity.NOTE
    yield Finding(severity, f"{programs.plugin} {what}", "hpn install, with the file of the version that is wanted")


def plugin_differs(facts: Facts) -> Iterator[Finding]:
    """The runtime runs another program than the person does."""
    if facts.programs.runs and facts.programs.is_this is False:
        evidence = f"{facts.programs.plugin} is another file than the program that runs now"
        yield Finding(Severity.WARNING, evidence, "hpn install, with the file of the version that is wanted")


def daemon_differs(facts: Facts) -> Iterator[Finding]:
    """A daemon of another version: the agent's help is refused then, and hpn node has what that version has."""
    programs = facts.programs
    if not programs.build or programs.is_this is False:  # which of the versions is wanted is not known then
        return
    for process in facts.machine.processes:
        daemon = next((word for word in process.words if word in ("agent", "node")), "")
        if daemon and process.build not in ("", programs.build):
            evidence = (
                f"{process.path}/exe is hpn {daemon} of build {process.build}; the program here is {programs.build}"
            )
            yield Finding(Severity.WARNING, evidence, f"systemctl restart hpn-{daemon}.service, or its pod")


def socket_dead(facts: Facts) -> Iterator[Finding]:
    """A socket at which nobody listens.  kubelet asks at a plugin's again and again."""
    for socket in facts.programs.sockets:
        if not socket.listens:
            yield Finding(
                Severity.WARNING,
                f"{socket.path}: nobody listens there",
                f"start the program whose it is, {_owner(socket.path)}; if that is gone for good: rm {socket.path}",
            )


def agent_missing(facts: Facts) -> Iterator[Finding]:
    """Nobody answers commands: each starts the program anew, within the memory of whoever calls it."""
    programs = facts.programs
    used = facts.networks or facts.state.attachments
    if not (programs.runs and used) or programs.agent in [socket.path for socket in programs.sockets]:
        return
    evidence = (
        f"no agent listens at {programs.agent}, so each command starts the program anew, which takes {_COMMAND} MiB"
    )
    limits = [(one.memory, one.path) for one in facts.machine.processes if one.name == MULTUS and one.memory]
    for limit, path in limits:
        evidence += f"; {path} ({MULTUS}) may have {limit >> 20} MiB for itself and all commands that run at once"
    yield Finding(
        Severity.WARNING if limits else Severity.NOTE,
        evidence,
        "systemctl enable --now hpn-agent.socket, or the agent of packaging/kubernetes",
    )


def resource_twice(facts: Facts) -> Iterator[Finding]:
    """Two device plugins offer one resource.  kubelet believes the one that came last."""
    by_name = defaultdict[str, list[str]](list)
    for socket in facts.programs.sockets:
        if socket.resource:
            by_name[socket.resource].append(socket.path)
    for name, paths in by_name.items():
        if len(paths) > 1:
            yield Finding(
                Severity.ERROR,
                f"{' and '.join(paths)} both offer {name}",
                "take the node out of one plugin's DaemonSet, or the resource out of one plugin's file",
            )


def _owner(path: str) -> str:
    name = os.path.basename(path)
    return "hpn-agent" if name == "agent.sock" else "hpn-node" if name.startswith("hpn-") else "a device plugin"


def not_readable(facts: Facts) -> Iterator[Finding]:
    """What could not be read, so nothing is known of it."""
    by_reason = defaultdict[str, list[str]](list)
    for path, why in facts.unread:
        by_reason[why].append(path)
    for why, paths in by_reason.items():
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        evidence = f"{', '.join(paths[:_NAMED])}{more}: {why}"
        yield Finding(Severity.NOTE, evidence, "run hpn doctor as root, in the host's namespaces")
