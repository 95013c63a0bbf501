"""The long life of an agent in a short time: many pods on 64 networks with configurations that change now and then.

200,000 pairs of ADD and DEL are about the load of a busy node in a day and a night.
"""

import itertools
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import drawn
import pytest
from system.agents import BY_THE_AGENT, conf, descriptors_at_rest, processes, running, taken
from system.machine import Machine, fabric

PAIRS = 20_000
NETWORKS = 64
AT_ONCE = 2
# In each of this many parts, every network has another form of its configuration.  So after half of them both workers
# have as many forms as each remembers (256), and their memory must not grow any more.
FORMS = 31
MIB = 1024
# The limit of memory growth in the second half: it finds a leak of 300 bytes per pair, or of 1 KiB in a drawn run.
GROWTH, DRAWN = 3 * MIB, 1 * MIB


@dataclass(frozen=True)
class Figures:
    """The agent's memory and descriptors, and its state on disk: KiB, descriptors, files, bytes."""

    memory: int
    descriptors: int
    files: int
    size: int


def test_long_life(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory, descriptors and state do not grow once every configuration has been used."""
    path = tmp_path / "agent.sock"
    pods = [machine.pod() for _ in range(2 * AT_ONCE)]
    with running(machine, path) as agent, fabric.entered(machine.node.netns), ThreadPoolExecutor(AT_ONCE) as pool:
        seen, pairs = list[Figures](), drawn.count(PAIRS, "pairs")
        looks = (0, pairs // 2, pairs * 3 // 4, pairs)
        for first, last in itertools.pairwise(looks):
            numbers = range(first, last)
            list(pool.map(lambda n: pair(machine, path, pods[n % len(pods)], n, n * FORMS // pairs), numbers))
            seen.append(figures(machine, agent))
    with capsys.disabled():
        print("", *(f"after {last} pairs: {one}" for last, one in zip(looks[1:], seen, strict=True)), sep="\n")
    warm, end = seen[0], seen[-1]
    # A worker thread for one more concurrent request has descriptors of its own.
    assert end.descriptors <= warm.descriptors + 8, seen
    assert end.memory - warm.memory < (GROWTH if pairs == PAIRS else DRAWN), seen
    assert end.files <= warm.files, seen
    assert end.size <= 1.1 * warm.size, seen


def pair(machine: Machine, path: Path, pod: str, number: int, form: int) -> None:
    """A pod's ADD and DEL, which only the agent can serve."""
    network = configuration(machine, number % NETWORKS, form)
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


def configuration(machine: Machine, network: int, form: int) -> str:
    """Every network has its own range in both families, and another MTU in each form."""
    ranges = [[{"subnet": f"10.{network}.0.0/24"}], [{"subnet": f"fd00:{network:x}::/64"}]]
    body = json.loads(conf(machine, ipam={"type": "hpn-ipam", "ranges": ranges}, mtu=1500 - form, dad="optimistic"))
    return json.dumps(body | {"name": f"rail{network}"})


def figures(machine: Machine, agent: subprocess.Popen[bytes]) -> Figures:
    """Memory is the sum over its processes, with shared pages counted once (man 5 proc_pid_smaps, Pss)."""
    rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in processes(agent)]
    files = [file for file in machine.state.rglob("*") if file.is_file()]
    return Figures(
        sum(int(text.partition("\nPss:")[2].split()[0]) for text in rolled),
        descriptors_at_rest(agent),
        len(files),
        sum(file.stat().st_blocks * 512 for file in files),
    )
