"""An agent in the node of the tests, and requests to it as a runtime makes them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from system.machine import Machine, ours
from topology import until

from agent.workers import WORKERS


@contextmanager
def running(machine: Machine, path: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent in the node; ended, if it still runs, as systemd would."""
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
    return path.exists() and call(machine, path, "VERSION", "", "{}", direct=False).returncode == 0


def call(
    machine: Machine, agent: Path | str, verb: str, pod: str, conf: str, *, direct: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """One request as a runtime makes it; where the agent has to do it, there is no program to fall back to."""
    command = machine.command(verb, pod) if pod else {"CNI_COMMAND": verb}
    elsewhere = {} if direct else {"HPN_PROGRAM_DIR": "/proc/nowhere"}
    environ = {**os.environ, **command, "HPN_AGENT": str(agent), **elsewhere, **env}
    argv = machine.node.command(str(machine.tools.hpn))
    return subprocess.run(argv, env=environ, input=conf, capture_output=True, text=True, check=False)


def ok(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else {}


def conf(machine: Machine, **keys: Any) -> str:
    return json.dumps({"cniVersion": "1.1.0", "name": "rail0", **machine.local(ours(**keys))})


def processes(agent: subprocess.Popen[bytes]) -> list[int]:
    """The one that was started, and its workers."""
    return [agent.pid, *map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())]


def opened(pid: int) -> list[Path]:
    """Its descriptors."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


def descriptors(agent: subprocess.Popen[bytes]) -> int:
    return sum(len(opened(pid)) for pid in processes(agent))


def descriptors_at_rest(agent: subprocess.Popen[bytes]) -> int:
    """Their number once it stays the same: the first worker answers while the second one still opens its own."""

    def steady() -> int:
        now = descriptors(agent)
        time.sleep(0.5)
        return now if len(processes(agent)) == 1 + WORKERS and descriptors(agent) == now else 0

    return int(until(steady))


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def sleeper(machine: Machine, seconds: int) -> tuple[Path, str]:
    """A network whose IPAM takes so long to ADD; and where it writes the command and whose child it is."""
    calls, program = machine.scratch / "calls", machine.scratch / "bin" / "sleeper"
    result = '{"cniVersion": "1.1.0", "ips": [{"address": "10.57.0.2/24"}]}'
    program.write_text(
        f"#!/bin/sh\necho $CNI_COMMAND $PPID >>{calls}\n[ $CNI_COMMAND != ADD ] || sleep {seconds}\necho '{result}'\n"
    )
    program.chmod(0o755)
    return calls, conf(machine, ipam={"type": "sleeper"})
