"""The launcher and the agent as a runtime runs them, and processes of a local user beside them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.topology import until

NOBODY = 65534


def run(hpn: Path, base: Path, agent: Path | str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run VERSION as a runtime does."""
    environ = {"HPN_AGENT": str(agent), "HPN_PROGRAM_DIR": str(base), "CNI_COMMAND": "VERSION", **env}
    return subprocess.run([hpn], env=environ, input="", capture_output=True, text=True, check=False, timeout=300)


def error(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    return answer["code"], answer["msg"]


def answers(hpn: Path, base: Path, agent: Path | str = "") -> bool:
    return "supportedVersions" in run(hpn, base, agent).stdout


@contextmanager
def somebody(code: str, *arguments: str | Path) -> Iterator[str]:
    """Run a process as the unprivileged user, and yield its first line of output."""
    argv = ["/usr/bin/python3", "-I", "-c", code, *map(str, arguments)]
    with subprocess.Popen(argv, user=NOBODY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def agent(hpn: Path, base: Path, path: Path) -> Iterator[list[int]]:
    """Run an agent that listens there, and yield its processes."""
    environ = {"HPN_PROGRAM_DIR": str(base)}
    with subprocess.Popen([hpn, "agent", "--socket", path], env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: answers(hpn, Path("/proc/nowhere"), path))
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield [process.pid, *map(int, children.split())]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
