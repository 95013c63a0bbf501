"""An agent in the node of the tests, and requests to it as a runtime makes them."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.topology import until
from system.machine import Machine, ours

from agent.workers import WORKERS

# A launcher with this directory cannot serve a request itself.
BY_THE_AGENT = {"HPN_PROGRAM_DIR": "/proc/nowhere"}


@contextmanager
def running(machine: Machine, path: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent in the node; afterwards stopped as systemd would, if it still runs."""
    argv = machine.node.command(str(machine.tools.hpn), "agent", "--socket", str(path))
    with subprocess.Popen(argv, env={**os.environ, **env}) as process:
        try:
            until(lambda: answers(machine, path))
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(60) == 0
        finally:
            process.kill()


def answers(machine: Machine, path: Path) -> bool:
    return path.exists() and once(machine, path, "VERSION", "", "{}", direct=False).returncode == 0


def once(
    machine: Machine, agent: Path | str, verb: str, pod: str, conf: str, *, direct: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """One request as a runtime makes it; if the agent must serve it, no other program is there to fall back to."""
    command = machine.command(verb, pod) if pod else {"CNI_COMMAND": verb}
    elsewhere = {} if direct else BY_THE_AGENT
    environ = {**os.environ, **command, "HPN_AGENT": str(agent), **elsewhere, **env}
    argv = machine.node.command(str(machine.tools.hpn))
    return subprocess.run(argv, env=environ, input=conf, capture_output=True, text=True, check=False)


def call(
    machine: Machine, agent: Path | str, verb: str, pod: str, conf: str, *, direct: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """The same, repeated if no worker got a processor in the two seconds that a launcher waits."""
    return taken(lambda: once(machine, agent, verb, pod, conf, direct=direct, **env))


def taken(ask: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """Repeat until an agent accepts the request; a launcher that may not serve it changes nothing."""

    def done() -> subprocess.CompletedProcess[str] | None:
        answer = ask()
        return None if BY_THE_AGENT["HPN_PROGRAM_DIR"] in answer.stdout + answer.stderr else answer

    answer: subprocess.CompletedProcess[str] = until(done)
    return answer


def ok(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else {}


def conf(machine: Machine, **keys: Any) -> str:
    return json.dumps({"cniVersion": "1.1.0", "name": "rail0", **machine.local(ours(**keys))})


def processes(agent: subprocess.Popen[bytes]) -> list[int]:
    """The agent's first process and its workers."""
    return [agent.pid, *map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())]


def processes_at_rest(agent: subprocess.Popen[bytes]) -> list[int]:
    """``processes`` without idle work, which would keep its locks if it were stopped."""

    def found() -> list[int]:
        now = processes(agent)
        return now if len(now) == 1 + WORKERS else []

    return list(until(found))


def descriptors(agent: subprocess.Popen[bytes]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes(agent))


def descriptors_at_rest(agent: subprocess.Popen[bytes]) -> int:
    """The number of descriptors once it is stable: the first worker answers while the second still opens its own."""

    def steady() -> int:
        now = descriptors(agent)
        # time: nothing is to happen
        time.sleep(0.5)
        return now if len(processes(agent)) == 1 + WORKERS and descriptors(agent) == now else 0

    return int(until(steady))


def sleeper(machine: Machine) -> tuple[Path, Path, str]:
    """A network with an IPAM that ends ADD when a file appears.  Returns the file for its command and parent process,
    that file, and the configuration."""
    calls, gate, program = machine.scratch / "calls", machine.scratch / "gate", machine.scratch / "bin" / "sleeper"
    result = '{"cniVersion": "1.1.0", "ips": [{"address": "10.57.0.2/24"}]}'
    program.write_text(
        f"#!/bin/sh\necho $CNI_COMMAND $PPID >>{calls}\n"
        f"[ $CNI_COMMAND != ADD ] || until [ -e {gate} ]; do sleep 0.05; done\necho '{result}'\n"
    )
    program.chmod(0o755)
    return calls, gate, conf(machine, ipam={"type": "sleeper"})
