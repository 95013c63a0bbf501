"""The life of an agent, squeezed: pods without end on 64 networks, whose configurations change now and then.

HPN_PAIRS=n takes n pairs of ADD and DEL.  200,000 of them are about what a busy node sees in a day and a night.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from system.agents import BY_THE_AGENT, conf, descriptors_at_rest, processes, running, taken
from system.machine import Machine, fabric

PAIRS = int(os.environ.get("HPN_PAIRS", "20000"))
NETWORKS = 64
AT_ONCE = 2
# Every network has another configuration after so many pairs of its own.
CHANGED = 10
# By then every network had every form of its configuration that is remembered, and both workers have served.
WARM = PAIRS // 4
MIB = 1024
# What the memory may grow by from WARM to the end: a leak of 300 bytes per pair is found.
GROWTH = 4 * MIB


@dataclass(frozen=True)
class Figures:
    """What the agent has, and what its state is on disk: KiB, descriptors, files, bytes."""

    memory: int
    descriptors: int
    files: int
    size: int


def test_long_life(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory, descriptors and state are the same in the end as when everything had been used for the first time."""
    path = tmp_path / "agent.sock"
    pods = [machine.pod() for _ in range(2 * AT_ONCE)]
    with running(machine, path) as agent, fabric.entered(machine.node.netns), ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list[Figures]()
        for first, last in stretches():
            numbers = range(first, last)
            list(pool.map(lambda n: pair(machine, path, pods[n % len(pods)], n), numbers))
            seen.append(figures(machine, agent))
    with capsys.disabled():
        print("", *(f"after {last} pairs: {one}" for (_, last), one in zip(stretches(), seen, strict=True)), sep="\n")
    warm, end = seen[0], seen[-1]
    # A thread that one more request at a time takes has some of its own.
    assert end.descriptors <= warm.descriptors + 8, seen
    assert end.memory - warm.memory < GROWTH, seen
    assert end.files <= warm.files, seen
    assert end.size <= 1.1 * warm.size, seen


def stretches() -> Iterator[tuple[int, int]]:
    """The numbers of the pairs between two looks."""
    return itertools.pairwise((0, WARM, PAIRS // 2, PAIRS))


def pair(machine: Machine, path: Path, pod: str, number: int) -> None:
    """A pod's ADD and DEL.  Nobody but the agent can serve them."""
    network = configuration(machine, number)
    environ = {
        **os.environ,
        **machine.command("", pod),
        "CNI_CONTAINERID": f"life-{number}",
        "CNI_IFNAME": f"hpn{number}",
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod{number}",
        "HPN_AGENT": str(path),
        **BY_THE_AGENT,
    }
    for verb in ("ADD", "DEL"):
        asked = environ | {"CNI_COMMAND": verb}
        done = taken(
            lambda asked=asked: subprocess.run(
                [machine.tools.hpn], env=asked, input=network, capture_output=True, text=True, check=False
            )
        )
        assert done.returncode == 0, (number, verb, done.stdout, done.stderr)


def configuration(machine: Machine, number: int) -> str:
    """Of one of the networks; every one has a range of its own, both families, and changes its MTU with time."""
    network, changes = number % NETWORKS, number // NETWORKS // CHANGED
    ranges = [[{"subnet": f"10.{network}.0.0/24"}], [{"subnet": f"fd00:{network:x}::/64"}]]
    body = json.loads(
        conf(machine, ipam={"type": "hpn-ipam", "ranges": ranges}, mtu=1500 - changes % 200, dad="optimistic")
    )
    return json.dumps(body | {"name": f"rail{network}"})


def figures(machine: Machine, agent: subprocess.Popen[bytes]) -> Figures:
    """Memory is what its processes have together, what they share counted once (man 5 proc_pid_smaps, Pss)."""
    rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in processes(agent)]
    files = [file for file in machine.state.rglob("*") if file.is_file()]
    return Figures(
        sum(int(text.partition("\nPss:")[2].split()[0]) for text in rolled),
        descriptors_at_rest(agent),
        len(files),
        sum(file.stat().st_blocks * 512 for file in files),
    )
