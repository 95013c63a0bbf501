"""hpn agent: a warm plugin and IPAM for launchers of the same version."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent import idle, listening, workers
from agent.listening import SOCKET
from base.kernel import host_mounts
from base.protocol.location import OF_TEST, of_test
from base.protocol.spec import Reply, Request
from base.state import locks
from cni import chain, collect, commands, config, kinds, rails  # noqa: F401  # imported for every request
from cni.features import claimed  # noqa: F401  # as above
from cni.main import run
from ipam import config as ipam_config  # noqa: F401  # as above
from ipam import main as ipam
from ipam import models as ipam_models
from ipam.stores import access

HELP: Final = f"""\
usage: hpn agent [--host] [--socket PATH]

Answers the CNI requests of this version of hpn from warm processes, until SIGTERM.  It listens at the path that
launchers use: $HPN_AGENT, by default {SOCKET}; --socket sets another.  A socket passed by systemd takes precedence.
With --host it uses the host's files, from a container in a pod with hostPID.
"""


def main(arguments: Sequence[str], version: str) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    of_host = list(arguments[:1]) == ["--host"]
    arguments = arguments[of_host:]
    match arguments:
        case [] | ["--socket", _]:
            pass
        case _:
            sys.stderr.write(HELP)
            return 0 if arguments in (["--help"], ["help"]) else 2
    try:
        if of_host:
            # Only there can this agent and the next one prove that pods are dead, and only there are /sys and /proc/sys
            # writable.
            host_mounts.enter()
        with listening.listener(arguments) as (sock, where):
            _warm_up()
            sys.stderr.write(f"hpn agent: listens at {where}\n")
            workers.serve(sock, version, answer, idle.reclaim)
    except (host_mounts.NotEntered, listening.Unusable) as e:
        sys.stderr.write(f"hpn agent: {e}\n")
        return 1
    return 0


def _warm_up() -> None:
    """Do the work that every request would otherwise start with."""
    access.preload()
    locks.preload()
    # Build the validators now, in one thread.  A plugin's process builds one on first use.
    ipam_models.Conf.model_rebuild()
    for kind in kinds.KINDS:
        kinds.model(kind).model_rebuild()
    # The name in ps, top and systemctl; otherwise that of the loader, ld-hpn.so.2 (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-agent")
    # Nothing that exists now is garbage.  A collection would take 4 ms, and copy it into every worker.
    gc.freeze()


def answer(as_ipam: bool, request: Request) -> Reply:  # noqa: FBT001  # a frame's flag
    """Answer as the CNI plugin, or as the IPAM plugin if the launcher was called hpn-ipam."""
    of_test.directory = request.var(OF_TEST)
    try:
        return ipam.run(request) if as_ipam else run(request, {"hpn-ipam": ipam.ask})
    finally:
        of_test.directory = ""
