"""Launcher and agent when one of them hangs, ends or is killed."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import drawn
import pytest
from fabric import container_id
from support.processes import stopped
from support.topology import open_files
from system.agents import (
    answers,
    call,
    conf,
    ok,
    once,
    processes,
    processes_at_rest,
    running,
    sleeper,
    until,
)
from system.machine import Machine
from system.machine import running as running_programs

from agent.connection import TAKEN
from base.state.locks import Lock

KILLS = 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def test_killed_at_random(machine: Machine, path: Path) -> None:
    """After a kill at a random moment, a new agent and a DEL for each pod leave nothing."""
    network, pods = conf(machine), [machine.pod() for _ in range(4)]
    chance, codes, begun = random.Random(drawn.seed()), set[int](), 0

    def load(pod: str) -> None:
        for verb in ("ADD", "DEL") * 3:
            done = once(machine, path, verb, pod, network, direct=False)
            if done.returncode:
                codes.add(json.loads(done.stdout)["code"])

    for _ in range(drawn.count(KILLS, "kills") // 10):
        for _ in range(10):
            with running(machine, path) as agent, ThreadPoolExecutor(4) as pool:
                loads = [pool.submit(load, pod) for pod in pods]
                # time: when to kill, drawn
                time.sleep(chance.random() * 0.15)
                agent.kill()
                agent.wait()
                for one in loads:
                    one.result()
        begun += sum('"complete":true' not in file.read_text() for file in machine.state.glob("attachments/*/*"))
        with running(machine, path):
            for pod in pods:
                ok(call(machine, path, "DEL", pod, network, direct=False))
        machine.nothing_held()
    # 100: an earlier ADD had succeeded; 5: no agent, and no program to fall back to.
    assert codes <= {5, 100}
    assert begun


def test_one_that_hangs_is_passed_by(machine: Machine, path: Path) -> None:
    """The launcher passes by an agent that has not accepted the request and no longer can."""
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:
        with stopped(*processes_at_rest(agent)):
            result = ok(call(machine, path, "ADD", pod, network))
        assert machine.addresses(pod) == {ip["address"] for ip in result["ips"]}
        until(lambda: answers(machine, path))
        ok(call(machine, path, "DEL", pod, network))


def test_one_that_hangs_at_work_is_not_doubled(machine: Machine, path: Path) -> None:
    calls, gate, network = sleeper(machine)
    pod = machine.pod()
    with running(machine, path), ThreadPoolExecutor(1) as pool:
        done = call(machine, path, "ADD", pod, network, HPN_AGENT_TIMEOUT="1")
        assert "the agent took the request and did not answer" in json.loads(done.stdout)["msg"]
        assert calls.read_text().split()[::2] == ["ADD"]
        # The runtime's DEL waits for the ADD, and finds its changes.
        deleted = pool.submit(call, machine, path, "DEL", pod, network)
        gate.touch()
        ok(deleted.result())
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
    """The command does not begin any more, because the runtime's next command may have run before it."""
    pod, network = machine.pod(), conf(machine)
    with running(machine, path) as agent:

        def wait() -> bool:
            return any(str(file) in open_files(pid) for pid in processes(agent))

        ok(call(machine, path, "ADD", pod, network))
        if verb == "ADD":
            ok(call(machine, path, "DEL", pod, network))
        # Another attachment's lease without a record.  GC calls its IPAM first, so GC does not know what it waits for.
        ipam, other = [str(machine.tools.plugins / "hpn-ipam")], {"HPN_AGENT": str(path), "CNI_IFNAME": "other"}
        assert machine.node.run(ipam, {**machine.command("ADD", pod), **other}, network).returncode == 0
        (file,) = machine.state.glob(lock)
        before = machine.records()
        # time: longer than what GC leaves alone
        time.sleep(0.1)
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
    """The launcher undoes what was begun and does the work itself, other requests succeed, and another worker
    starts."""
    calls, gate, network = sleeper(machine)
    pod, quick, local = machine.pod(), machine.pod(), conf(machine)
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        before = processes(agent)
        slow = pool.submit(call, machine, path, "ADD", pod, network)
        until(lambda: calls.exists() and calls.read_text())
        ok(call(machine, path, "ADD", quick, local, direct=False))
        assert not slow.done()
        killed = int(calls.read_text().split()[1])
        assert killed in before[1:]
        os.kill(killed, signal.SIGKILL)
        gate.touch()  # the worker's child, which has lost its parent
        assert ok(slow.result())["ips"][0]["address"] == "10.57.0.2/24"
        assert machine.addresses(pod) == {"10.57.0.2/24"}
        assert calls.read_text().split()[::2] == ["ADD", "DEL", "ADD"]
        until(lambda: len(processes(agent)) == len(before) and killed not in processes(agent))
        ok(call(machine, path, "DEL", pod, network, direct=False))
        ok(call(machine, path, "DEL", quick, local, direct=False))


def test_killed_between_the_end_of_its_work_and_its_reply(machine: Machine, path: Path) -> None:
    """The launcher makes the attachment anew, because it has no result."""
    pod, network = machine.pod(), conf(machine)
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(path))
        listener.listen()
        added = pool.submit(once, machine, path, "ADD", pod, network)
        with listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.send(TAKEN)
            ok(call(machine, "", "ADD", pod, network))
        result = ok(added.result())
    assert machine.addresses(pod) == {ip["address"] for ip in result["ips"]}
    ok(call(machine, "", "DEL", pod, network))


def test_killed_it_leaves_no_process(machine: Machine, path: Path) -> None:
    calls, gate, network = sleeper(machine)
    pod, before = machine.pod(), running_programs()
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        assert sorted(set(running_programs()) - set(before)) == sorted(processes(agent))
        slow = pool.submit(call, machine, path, "ADD", pod, network)
        until(calls.exists)
        agent.kill()
        agent.wait()
        gate.touch()
        ok(slow.result())
        until(lambda: running_programs() == before)
    ok(call(machine, "", "DEL", pod, network))


def test_what_comes_while_it_ends_is_done_without_it(machine: Machine, path: Path) -> None:
    calls, gate, network = sleeper(machine)
    pods = machine.pod(), machine.pod()
    with running(machine, path) as agent, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(call, machine, path, "ADD", pods[0], network, direct=False)
        until(calls.exists)
        agent.terminate()
        # time: so that it has heard of its end, or not; either is right
        time.sleep(0.2)
        ok(call(machine, path, "ADD", pods[1], conf(machine)))
        gate.touch()
        ok(slow.result())
        assert agent.wait(60) == 0
    ok(call(machine, "", "DEL", pods[1], conf(machine)))
    ok(call(machine, "", "DEL", pods[0], network))
