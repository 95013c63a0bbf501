"""The nodes of a cluster: the commands of their IPAM, each in a process that may be killed before any of its steps.

    node.py {"clock": path, "folder": ..., "conf": {...}, "netns": ...}

Each line of its input is a command: {"node", "verb", "cid", "step", "full", "ahead", "together"}.  A verb is a CNI
command, or KEEP for the agent's background work.  The command is killed before the step with number ``step``, counted
from 0, or never.  The node's disk is full from its step ``full`` on; its clock is ``ahead`` by this many seconds.  With
``together`` the command is not forked, for the many nodes of one process.  The answer is {"code", "ips", "msg"}, with
"killed" for a killed command.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from checker.clock import Clock
from checker.history import name_in
from support import killing

from base.protocol.spec import Request
from base.state import policy
from ipam.cluster import copies
from ipam.cluster.backends import etcd, kubernetes  # noqa: F401  # before the first fork
from ipam.cluster.reconcile import claim_block  # noqa: F401  # before the first fork
from ipam.cluster.reconcile.reconcile import rounds
from ipam.main import run
from ipam.stores import none_gone

Command = dict[str, Any]
# Sending to the store counts as a step, too.
killing._CALLS.add("sendall")


class Nodes:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._clock = Clock(settings["clock"])
        self._folder = Path(settings["folder"])
        self._conf, self._netns = settings["conf"], settings["netns"]

    def act(self, command: Command) -> Command:
        name = command["node"]
        ahead = command.get("ahead", 0)
        time.time = lambda: self._clock.now() + ahead
        policy.FILE = str(self._folder / name / "hpn.json")
        copies.FOLDER = str(self._folder / name / "copies")
        if command["verb"] == "KEEP":
            return self._keep(name)
        conf = self._conf | {"ipam": self._conf["ipam"] | {"dataDir": str(self._folder / name / "data")}}
        environ = {
            "CNI_COMMAND": command["verb"], "CNI_CONTAINERID": command["cid"], "CNI_IFNAME": "hpn0",
            "CNI_NETNS": self._netns, "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"K8S_POD_NAME={name_in(command['cid'])}",
        }  # fmt: skip
        reply = run(Request(environ, json.dumps(conf).encode()))
        said = json.loads(reply.stdout) if reply.stdout else {}
        ips = [ip["address"].partition("/")[0] for ip in said.get("ips", [])]
        return {"code": said.get("code", 0), "ips": ips, "msg": said.get("msg", "")}

    def _keep(self, name: str) -> Command:
        reports = list(rounds(copies.networks([self._folder / name / "data"])[0], none_gone))
        return {"code": 11 if any(one.problem for one in reports) else 0, "ips": [], "msg": str(reports)}

    def forked(self, command: Command) -> Command:
        """Run the command in a child process that may be killed."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(reading)
                if command.get("full") is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    full = (0, resource.RLIM_INFINITY)
                    killing.at_step(command["full"], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, full))
                if command.get("step") is not None:
                    killing.at_step(command["step"], lambda: os.kill(os.getpid(), signal.SIGKILL))
                answer = self.act(command)
                sys.setprofile(None)
                os.write(writing, json.dumps(answer).encode())
                os._exit(0)
            finally:
                os._exit(2)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if said and status == 0:
            return json.loads(said)
        return {"code": -1, "ips": [], "msg": f"status {status}", "killed": status == -signal.SIGKILL}


def main(settings: dict[str, Any]) -> None:
    nodes = Nodes(settings)
    print("{}", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        act = nodes.act if command.get("together") else nodes.forked
        print(json.dumps(act(command)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
