"""The frozen binary short of descriptors or memory: a CNI error, nothing left, and the next ADD succeeds."""

import json
import os
import subprocess

import pytest
from system import agents
from system.agents import conf
from system.machine import Machine


def limited(machine: Machine, verb: str, pod: str, network: str, limit: str) -> subprocess.CompletedProcess[str]:
    """One call of the program with this argument of ulimit."""
    argv = machine.node.command("sh", "-c", f'ulimit {limit} && exec "$0"', str(machine.tools.hpn))
    environ = {**os.environ, **machine.command(verb, pod), "HPN_AGENT": ""}
    return subprocess.run(argv, env=environ, input=network, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "limits",
    [
        [f"-n {number}" for number in range(3, 32)],
        # KiB.  Below that the kernel itself cannot map the file.
        [f"-v {number << 10}" for number in range(60, 140, 2)],
    ],
    ids=["descriptors", "memory"],
)
def test_short_of(machine: Machine, limits: list[str]) -> None:
    network, pod = conf(machine), machine.pod()
    agents.ok(limited(machine, "VERSION", pod, network, "-n 99"))
    program, codes = unpacked(), list[int]()
    for limit in limits:
        for verb in ("ADD", "DEL"):
            done = limited(machine, verb, pod, network, limit)
            assert unpacked() == program, "one that is short of something does not replace the program of all others"
            if done.returncode:
                codes.append(json.loads(done.stdout)["code"])
                assert machine.links(pod) == set()
                assert machine.records() == []
    assert set(codes) == {11}
    agents.ok(limited(machine, "ADD", pod, network, limits[-1]))
    agents.ok(limited(machine, "DEL", pod, network, limits[-1]))
    machine.nothing_held()


def unpacked() -> list[tuple[str, int]]:
    """The versions of the program, each with its directory's inode."""
    return [(one.name, one.inode()) for one in os.scandir(os.environ["HPN_PROGRAM_DIR"]) if one.is_dir()]
