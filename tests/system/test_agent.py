"""Launcher and agent together, and either without the other."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fabric import container_id
from system.agents import answers, call, conf, ok, running, until
from system.machine import Machine, ours
from system.machine import running as running_programs

from cni.state.locks import Lock

CYCLES = 500
KILLS = 100


def processes(agent: subprocess.Popen[bytes]) -> list[int]:
    """The one that was started, and its workers."""
    return [agent.pid, *map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())]


def opened(pid: int) -> list[Path]:
    """Its descriptors."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


def descriptors(agent: subprocess.Popen[bytes]) -> int:
    return sum(len(opened(pid)) for pid in processes(agent))


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def test_all_commands(machine: Machine, path: Path) -> None:
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:
        fds = descriptors(agent)
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
        until(lambda: descriptors(agent) <= fds)
    assert not path.exists()


def test_through_cnitool(machine: Machine, path: Path) -> None:
    machine.network(ours())
    pod = machine.pod()
    with running(machine, path):
        env = {"HPN_AGENT": str(path), "HPN_PROGRAM_DIR": "/proc/nowhere"}
        machine.ok("add", pod, **env)
        machine.ok("del", pod, **env)


def test_called_as_the_ipam(machine: Machine, path: Path) -> None:
    machine.network(
        {"type": "macvlan", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.57.0.0/24"}]]}}
    )
    pod = machine.pod()
    with running(machine, path):
        env = {"HPN_AGENT": str(path), "HPN_PROGRAM_DIR": "/proc/nowhere"}
        machine.ok("add", pod, **env)
        assert machine.addresses(pod) == {"10.57.0.2/24"}
        machine.ok("del", pod, **env)


def test_mixed_at_random(machine: Machine, path: Path) -> None:
    """Some by the agent, some not, over one network: the same results, no address twice, nothing left."""
    network, pods = (
        conf(machine, ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/27"}),
        [machine.pod() for _ in range(8)],
    )
    chance, held = random.Random(1), dict[str, str]()

    def cycle(pod: str, by_agent: list[bool]) -> None:
        for first, second in zip(by_agent[::2], by_agent[1::2], strict=True):
            result = ok(call(machine, path if first else "", "ADD", pod, network))
            address = result["ips"][0]["address"]
            assert held.setdefault(address, pod) == pod
            assert machine.addresses(pod) == {address}
            del held[address]
            ok(call(machine, path if second else "", "DEL", pod, network))

    with running(machine, path), ThreadPoolExecutor(8) as pool:
        each = CYCLES // len(pods)
        # Three of four by the agent: the others take a hundred times as long.
        plans = [[chance.random() < 0.75 for _ in range(2 * each)] for _ in pods]
        list(pool.map(cycle, pods, plans))
    machine.nothing_held()


def test_one_pod_at_once(machine: Machine, path: Path) -> None:
    """Six attachments that come and go as they like: what they share is there while one has it, and then as it was."""
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


def test_killed_at_random(machine: Machine, path: Path) -> None:
    """Whatever it was doing: with a new agent and a DEL for each pod nothing is left."""
    network, pods = conf(machine), [machine.pod() for _ in range(4)]
    chance, codes = random.Random(2), set[int]()

    def load(pod: str) -> None:
        for verb in ("ADD", "DEL") * 3:
            done = call(machine, path, verb, pod, network, direct=False)
            if done.returncode:
                codes.add(json.loads(done.stdout)["code"])

    for _ in range(KILLS // 10):
        for _ in range(10):
            with running(machine, path) as agent, ThreadPoolExecutor(4) as pool:
                loads = [pool.submit(load, pod) for pod in pods]
                time.sleep(chance.random() * 0.15)
                agent.kill()
                agent.wait()
                for one in loads:
                    one.result()
        with running(machine, path):
            for pod in pods:
                ok(call(machine, path, "DEL", pod, network, direct=False))
        machine.nothing_held()
    # 11: it was at work; 100: an ADD before it had been done; 5: nobody there, and nothing to fall back to.
    assert codes <= {5, 11, 100}
    assert 11 in codes


def test_one_that_hangs_is_passed_by(machine: Machine, path: Path) -> None:
    """It has not taken the request, and cannot any more."""
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:
        with stopped(processes(agent)):
            result = ok(call(machine, path, "ADD", pod, network))
        assert machine.addresses(pod) == {ip["address"] for ip in result["ips"]}
        until(lambda: answers(machine, path))
        ok(call(machine, path, "DEL", pod, network))


def test_one_that_hangs_at_work_is_not_doubled(machine: Machine, path: Path) -> None:
    calls, network = sleeper(machine, 4)
    pod = machine.pod()
    with running(machine, path):
        done = call(machine, path, "ADD", pod, network, HPN_AGENT_TIMEOUT="1")
        assert json.loads(done.stdout)["code"] == 11
        assert calls.read_text().split()[::2] == ["ADD"]
        # The runtime's DEL waits for it, and finds what it left.
        ok(call(machine, path, "DEL", pod, network))
        assert machine.links(pod) == set()


@pytest.mark.parametrize(
    ("program", "verb", "lock"),
    [
        ("hpn", "ADD", "locks/attachment-*"),
        ("hpn", "DEL", "locks/attachment-*"),
        ("hpn", "GC", "locks/attachment-*"),
        ("hpn", "GC", "ipam/rail0/lock"),
        ("hpn-ipam", "ADD", "ipam/rail0/lock"),
    ],
)
def test_a_caller_that_is_killed_while_it_waits(
    machine: Machine, path: Path, program: str, verb: str, lock: str
) -> None:
    """It does not begin any more: the runtime's next command may have been before it."""
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:

        def wait() -> bool:
            return any(os.path.realpath(fd) == str(file) for pid in processes(agent) for fd in opened(pid))

        ok(call(machine, path, "ADD", pod, network))
        if verb == "ADD":
            ok(call(machine, path, "DEL", pod, network))
        # Another's lease, of which there is no record.  GC's IPAM comes first: what it waits for, it does not know.
        ipam, other = [str(machine.tools.plugins / "hpn-ipam")], {"HPN_AGENT": str(path), "CNI_IFNAME": "other"}
        assert machine.node.run(ipam, {**machine.command("ADD", pod), **other}, network).returncode == 0
        (file,) = machine.state.glob(lock)
        before = machine.records()
        with Lock(str(file), 1):
            environ = {**os.environ, **machine.command(verb, pod), "HPN_AGENT": str(path)}
            argv = machine.node.command(str(machine.tools.plugins / program))
            with subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, text=True) as asking:
                known = [] if "ipam" in lock else [{"containerID": container_id(pod), "ifname": "other"}]
                asking.stdin.write(json.dumps(json.loads(network) | {"cni.dev/valid-attachments": known}))
                asking.stdin.close()
                until(wait)
                asking.kill()
        until(lambda: not wait())
        assert machine.records() == before
        assert machine.links(pod) == (set() if verb == "ADD" else {"hpn0"})
        assert machine.node.run(ipam, {**machine.command("DEL", pod), **other}, network).returncode == 0
        ok(call(machine, path, "DEL", pod, network))


def test_a_worker_is_killed_at_work(machine: Machine, path: Path) -> None:
    """Its launcher is told to try again, others notice nothing, and another worker is there."""
    calls, network = sleeper(machine, 2)
    pod, quick, local = machine.pod(), machine.pod(), conf(machine)
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        before = processes(agent)
        slow = pool.submit(call, machine, path, "ADD", pod, network, direct=False)
        until(lambda: calls.exists() and calls.read_text())
        ok(call(machine, path, "ADD", quick, local, direct=False))
        assert not slow.done()
        killed = int(calls.read_text().split()[1])
        assert killed in before[1:]
        os.kill(killed, signal.SIGKILL)
        assert json.loads(slow.result().stdout)["code"] == 11
        until(lambda: len(processes(agent)) == len(before) and killed not in processes(agent))
        ok(call(machine, path, "DEL", pod, network, direct=False))
        ok(call(machine, path, "DEL", quick, local, direct=False))


def test_killed_it_leaves_no_process(machine: Machine, path: Path) -> None:
    calls, network = sleeper(machine, 1)
    pod, before = machine.pod(), running_programs()
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        assert sorted(set(running_programs()) - set(before)) == sorted(processes(agent))
        slow = pool.submit(call, machine, path, "ADD", pod, network, direct=False)
        until(calls.exists)
        agent.kill()
        agent.wait()
        assert json.loads(slow.result().stdout)["code"] == 11
        until(lambda: running_programs() == before)
    ok(call(machine, "", "DEL", pod, network))


def test_what_comes_while_it_ends_is_done_without_it(machine: Machine, path: Path) -> None:
    calls, network = sleeper(machine, 1)
    pods = machine.pod(), machine.pod()
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(call, machine, path, "ADD", pods[0], network, direct=False)
        until(calls.exists)
        agent.terminate()
        time.sleep(0.2)
        ok(call(machine, path, "ADD", pods[1], conf(machine)))
        ok(slow.result())
        assert agent.wait(20) == 0
    ok(call(machine, "", "DEL", pods[1], conf(machine)))
    ok(call(machine, "", "DEL", pods[0], network))


def test_another_version_is_not_used(machine: Machine, path: Path) -> None:
    code = "import sys; from agent.main import main; sys.exit(main(sys.argv[1:], 'another version.'))"
    argv = machine.node.command(sys.executable, "-c", code, "--socket", str(path))
    root = str(Path(__file__).parents[2])
    pod, network = machine.pod(), conf(machine)
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": root}) as agent:
        try:
            until(path.exists)
            time.sleep(0.2)
            assert json.loads(call(machine, path, "ADD", pod, network, direct=False).stdout)["code"] == 5
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
    """It serves the socket it was given, and leaves it alone when it ends (man 3 sd_listen_fds)."""
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
        assert agent.wait(20) == 0
    assert path.exists()
