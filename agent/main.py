"""hpn agent: the plugin and its IPAM, kept warm for launchers of the same version."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent import host, idle, listening, workers
from agent.listening import SOCKET
from cni import collect, commands, config, kinds  # noqa: F401  # every request needs these
from cni.main import run
from cni.protocol.spec import Reply, Request
from ipam import config as ipam_config  # noqa: F401  # as above
from ipam import main as ipam
from ipam import models as ipam_models
from ipam import stores

HELP: Final = f"""\
usage: hpn agent [--host] [--socket PATH]

Answers the CNI requests of this version of hpn from warm processes, until SIGTERM.  It listens where launchers look
for it: at $HPN_AGENT, by default {SOCKET}; --socket says another.  A socket passed by systemd is used instead.
With --host it sees the host's files from a container whose pod has hostPID.
"""


def main(arguments: Sequence[str], version: str) -> int:
    """Serve until SIGTERM or SIGINT; the exit status."""
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
            host.enter()
        with listening.listener(arguments) as (sock, where):
            _warm_up()
            sys.stderr.write(f"hpn agent: listens at {where}\n")
            workers.serve(sock, version, answer, idle.reclaim)
    except listening.Unusable as e:
        sys.stderr.write(f"hpn agent: {e}\n")
        return 1
    return 0


def _warm_up() -> None:
    """Do once what every request would do first."""
    stores.preload()
    # Here there is one thread.  A plugin's process builds a model's validator when it first needs it.
    ipam_models.Conf.model_rebuild()
    for kind in kinds.KINDS:
        kinds.model(kind).model_rebuild()
    # The name in ps, top and systemctl.  It would be ld-hpn.so.2, the loader that started it (packaging/launcher).
    Path("/proc/self/comm").write_text("hpn-agent")
    # Nothing that exists now is garbage.  Each look through it would take 4 ms, and copy it into every worker.
    gc.freeze()


def answer(as_ipam: bool, request: Request) -> Reply:  # noqa: FBT001  # a frame's flag
    """Answer as the CNI plugin or as the IPAM plugin, which ctl's entry decides by its name."""
    return ipam.run(request) if as_ipam else run(request, {"hpn-ipam": ipam.ask})
