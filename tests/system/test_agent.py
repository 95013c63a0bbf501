"""Launcher and agent together: every command, both ways at once, and permission to use the agent."""

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import drawn
import pytest
from support.topology import until
from system.agents import (
    BY_THE_AGENT,
    answers,
    call,
    conf,
    descriptors,
    descriptors_at_rest,
    ok,
    once,
    processes,
    running,
    taken,
)
from system.machine import Machine, fabric, ours

from agent.workers import WORKERS

CYCLES = 500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def test_the_callers_state_directory(machine: Machine, path: Path, tmp_path: Path) -> None:
    """HPN_STATE_DIR counts as the caller has it, as in a test or a demo beside a node's agent."""
    pod, network, own = machine.pod(), conf(machine), tmp_path / "agents"
    with running(machine, path, HPN_STATE_DIR=f"{own}"):
        ok(call(machine, path, "ADD", pod, network, direct=False))
        assert ((machine.state / "attachments").exists(), (own / "attachments").exists()) == (True, False)
        ok(call(machine, path, "DEL", pod, network, direct=False))


def test_all_commands(machine: Machine, path: Path) -> None:
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:
        fds = descriptors_at_rest(agent)
        result = ok(call(machine, path, "ADD", pod, network, direct=False))
        assert machine.addresses(pod) == {ip["address"] for ip in result["ips"]}
        checked = json.dumps(json.loads(network) | {"prevResult": result})
        ok(call(machine, path, "CHECK", pod, checked, direct=False))
        ok(call(machine, path, "STATUS", pod, network, direct=False))
        again = call(machine, path, "ADD", pod, network, direct=False)
        assert json.loads(again.stdout)["code"] == 100
        ok(call(machine, path, "DEL", pod, network, direct=False))
        ok(
            call(
                machine,
                path,
                "GC",
                pod,
                json.dumps(json.loads(network) | {"cni.dev/valid-attachments": []}),
                direct=False,
            )
        )
        # A worker keeps one, for the kernel's reports of changed files.
        until(lambda: descriptors(agent) <= fds + WORKERS)
    assert not path.exists()


def test_through_cnitool(machine: Machine, path: Path) -> None:
    machine.network(ours())
    pod = machine.pod()
    with running(machine, path):
        env = {"HPN_AGENT": str(path), **BY_THE_AGENT}
        ok(taken(lambda: machine.cnitool("add", pod, **env)))
        ok(taken(lambda: machine.cnitool("del", pod, **env)))


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_closed_by_the_caller(machine: Machine, path: Path, closed: str) -> None:
    """The agent's answer goes to no descriptor of the launcher's own."""
    pod, network = machine.pod(), conf(machine)
    with running(machine, path):
        ok(call(machine, path, "ADD", pod, network))
        fabric.ip("link", "delete", "hpn0", netns=pod)
        # DEL has a line for stderr, because it does not find the interface.
        argv = machine.node.command("sh", "-c", f'exec "$0" {closed}', str(machine.tools.hpn))
        env = {**machine.command("DEL", pod), "HPN_AGENT": str(path), **BY_THE_AGENT}
        done = taken(lambda: subprocess.run(argv, env=env, input=network, capture_output=True, text=True, check=False))
        assert done.returncode == 0


def test_called_as_the_ipam(machine: Machine, path: Path) -> None:
    machine.network(
        {"type": "macvlan", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.57.0.0/24"}]]}}
    )
    pod = machine.pod()
    with running(machine, path):
        env = {"HPN_AGENT": str(path), **BY_THE_AGENT}
        ok(taken(lambda: machine.cnitool("add", pod, **env)))
        assert machine.addresses(pod) == {"10.57.0.2/24"}
        ok(taken(lambda: machine.cnitool("del", pod, **env)))


def test_mixed_at_random(machine: Machine, path: Path) -> None:
    """Commands with and without the agent on one network have the same results, no address twice, and leave nothing."""
    network, pods = (
        conf(machine, ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/27"}),
        [machine.pod() for _ in range(8)],
    )
    chance, held = random.Random(drawn.seed()), dict[str, str]()

    def cycle(pod: str, by_agent: list[bool]) -> None:
        for first, second in zip(by_agent[::2], by_agent[1::2], strict=True):
            result = ok(call(machine, path if first else "", "ADD", pod, network))
            address = result["ips"][0]["address"]
            assert held.setdefault(address, pod) == pod
            assert machine.addresses(pod) == {address}
            del held[address]
            ok(call(machine, path if second else "", "DEL", pod, network))

    with running(machine, path), ThreadPoolExecutor(8) as pool:
        each = drawn.count(CYCLES, "pairs") // len(pods)
        # Three of four by the agent: the others take a hundred times as long.
        plans = [[chance.random() < 0.75 for _ in range(2 * each)] for _ in pods]
        list(pool.map(cycle, pods, plans))
    machine.nothing_held()


def test_one_pod_at_once(machine: Machine, path: Path) -> None:
    """Six attachments come and go in any order; shared settings exist while one is attached, then revert."""
    pod = machine.pod()
    sysctls = {"net.core.somaxconn": "1024", "net.ipv4.conf.IFNAME.rp_filter": "2"}
    network = conf(machine, policyRouting=True, sysctl=sysctls)

    def shared() -> tuple[str, str]:
        inside = ["ip", "netns", "exec", pod]
        somaxconn = subprocess.check_output([*inside, "sysctl", "-n", "net.core.somaxconn"], text=True)
        return somaxconn.strip(), subprocess.check_output([*inside, "ip", "rule"], text=True)

    def life(ifname: str, by_agent: list[bool]) -> None:
        for agent in by_agent:
            chosen = path if agent else ""
            result = ok(call(machine, chosen, "ADD", pod, network, CNI_IFNAME=ifname))
            somaxconn, rules = shared()
            assert somaxconn == "1024"
            assert all(ip["address"].partition("/")[0] in rules for ip in result["ips"] if ":" not in ip["address"])
            checked = json.dumps(json.loads(network) | {"prevResult": result})
            ok(call(machine, chosen, "CHECK", pod, checked, CNI_IFNAME=ifname))
            ok(call(machine, chosen, "DEL", pod, network, CNI_IFNAME=ifname))

    chance, before, names = random.Random(3), shared(), [f"hpn{n}" for n in range(6)]
    with running(machine, path), ThreadPoolExecutor(len(names)) as pool:
        for _ in range(10):
            list(pool.map(life, names, [[chance.random() < 0.9 for _ in range(3)] for _ in names]))
            assert shared() == before
    machine.nothing_held()


def test_another_version_is_not_used(machine: Machine, path: Path) -> None:
    code = "import sys; from agent.main import main; sys.exit(main(sys.argv[1:], 'another version.'))"
    argv = machine.node.command(sys.executable, "-c", code, "--socket", str(path))
    root = str(Path(__file__).parents[2])
    pod, network = machine.pod(), conf(machine)
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": root}) as agent:
        try:
            until(path.exists)
            # time: so that it listens, or not; either is right
            time.sleep(0.2)
            assert json.loads(once(machine, path, "ADD", pod, network, direct=False).stdout)["code"] == 5
            ok(call(machine, path, "ADD", pod, network))
            ok(call(machine, path, "DEL", pod, network))
        finally:
            agent.terminate()


def test_a_user_has_no_access(machine: Machine, path: Path) -> None:
    with running(machine, path):
        assert path.stat().st_mode & 0o777 == 0o600
        path.parent.chmod(0o777)
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        done = subprocess.run(["/usr/bin/python3", "-c", code], user=65534, capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr


def test_a_second_one_does_not_take_the_socket(machine: Machine, path: Path) -> None:
    with running(machine, path):
        argv = machine.node.command(str(machine.tools.hpn), "agent", "--socket", str(path))
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, "in use" in done.stderr) == (1, True)
        assert answers(machine, path)


def test_by_systemds_socket(machine: Machine, path: Path) -> None:
    """The agent serves the socket from systemd, and leaves it alone when it ends (man 3 sd_listen_fds)."""
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(9);"
        "os.dup2(s.fileno(), 3);"
        "os.environ['LISTEN_PID'] = str(os.getpid()); os.environ['LISTEN_FDS'] = '1';"
        "os.set_inheritable(3, True); os.execv(sys.argv[2], [sys.argv[2], 'agent'])"
    )
    argv = machine.node.command("/usr/bin/python3", "-c", code, str(path), str(machine.tools.hpn))
    with subprocess.Popen(argv) as agent:
        try:
            until(lambda: answers(machine, path))
            assert {Path(f"/proc/{pid}/comm").read_text() for pid in processes(agent)} == {"hpn-agent\n"}
        finally:
            agent.terminate()
        assert agent.wait(60) == 0
    assert path.exists()
