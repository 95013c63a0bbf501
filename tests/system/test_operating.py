"""hpn list, inspect, check and repair by the frozen program, beside real cnitool and Go plugins."""

import json
import os
import shlex
import subprocess
import time
from contextlib import ExitStack
from typing import Any

from system.agents import conf
from system.machine import RANGES, Machine, fabric, ours

MOMENTS = 60
ROUNDS = 10


def folders(machine: Machine, command: str) -> list[str]:
    """Options for the machine's state directory, also before the first ADD makes it, and for a directory without
    leases."""
    machine.state.mkdir(mode=0o700, exist_ok=True)
    (none := machine.scratch / "none").mkdir(exist_ok=True)
    return ["--state-dir", f"{machine.state}", *(["--data-dir", f"{none}"] if command == "repair" else [])]


def hpn(machine: Machine, command: str, *words: str, status: int = 0) -> str:
    argv = [str(machine.tools.hpn), command, *folders(machine, command), *words]
    done = machine.node.run(argv, {"CNI_PATH": machine.env["CNI_PATH"]})
    assert (done.returncode, done.stderr) == (status, ""), done
    return done.stdout


def told(machine: Machine, command: str, *words: str, status: int = 0) -> list[dict[str, Any]]:
    document = json.loads(hpn(machine, command, "--json", *words, status=status))
    found: list[dict[str, Any]] = document["steps" if command == "repair" else "attachments"]
    return found


def test_check_of_a_chain(machine: Machine) -> None:
    """cnitool's cache has the changes of tuning, which runs after us; its CHECK and hpn check agree."""
    machine.network(ours(ipam={"type": "host-local", "ranges": RANGES}), {"type": "tuning", "mac": "02:00:00:00:00:2a"})
    pod = machine.pod()
    machine.ok("add", pod)
    machine.ok("check", pod)
    assert [a["state"] for a in told(machine, "check")] == ["ok"]
    fabric.run("ip", "-netns", pod, "link", "set", "hpn0", "down")
    done = machine.cnitool("check", pod)
    (found,) = told(machine, "check", status=1)
    assert done.returncode != 0
    assert found["why"] in done.stdout + done.stderr
    (known,) = told(machine, "inspect", "10.56.0.2")
    assert (known["containerID"], known["now"]["where"]) == (fabric.container_id(pod), "pod")
    assert told(machine, "repair") == []
    machine.ok("del", pod)
    assert hpn(machine, "list") == f"nothing is attached (searched {machine.state})\n"


def test_a_killed_add(machine: Machine) -> None:
    """hpn repair undoes an ADD that was killed at any moment."""
    network, pod, living = conf(machine), machine.pod(), machine.pod()
    argv = [str(machine.tools.hpn)]
    assert machine.node.run(argv, machine.command("ADD", living), network).returncode == 0
    began = time.monotonic()
    assert machine.node.run(argv, machine.command("ADD", pod), network).returncode == 0
    whole = time.monotonic() - began
    assert machine.node.run(argv, machine.command("DEL", pod), network).returncode == 0
    for moment in range(MOMENTS):
        process = subprocess.Popen(
            machine.node.command(*argv),
            env={**os.environ, **machine.command("ADD", pod)},
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin
        process.stdin.write(network.encode())
        process.stdin.close()
        # time: when to kill
        time.sleep(whole * moment / MOMENTS)
        process.kill()
        process.wait()
        states = {a["containerID"]: a["state"] for a in told(machine, "list")}
        assert states[fabric.container_id(living)] == "attached"
        state = states.get(fabric.container_id(pod))
        if state == "half-attached":
            assert {a["state"] for a in told(machine, "check", status=1)} == {"ok", "half-attached"}
            assert fabric.container_id(pod) in {a["containerID"] for a in told(machine, "inspect", "hpn0")}
        told(machine, "repair")
        if state == "attached":
            assert machine.node.run(argv, machine.command("DEL", pod), network).returncode == 0
        assert machine.links(pod) == set(), moment
        assert len(machine.records()) == 2, moment
    assert [a["state"] for a in told(machine, "check")] == ["ok"]
    assert machine.node.run(argv, machine.command("DEL", living), network).returncode == 0


def test_adds_beside_repairs(machine: Machine) -> None:
    """Two loops of hpn repair never touch an attachment that ADD or DEL works on, or that is complete."""
    machine.network(ours())
    pods = [machine.pod(), machine.pod()]
    repair = [str(machine.tools.hpn), "repair", *folders(machine, "repair")]
    loop = f"while test -e {machine.scratch}/go; do {shlex.join(repair)} || exit 1; done"
    (machine.scratch / "go").touch()
    with ExitStack() as stack:
        loops = [
            stack.enter_context(
                subprocess.Popen(machine.node.command("sh", "-c", loop), stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        try:
            for _ in range(ROUNDS):
                for pod in pods:
                    machine.ok("add", pod)
                for pod in pods:
                    machine.ok("check", pod)
                    machine.ok("del", pod)
        finally:
            (machine.scratch / "go").unlink()
        said = [process.communicate(timeout=60)[0] for process in loops]
    assert [process.returncode for process in loops] == [0, 0], said
    assert {line for text in said for line in text.splitlines()} == {
        "no attachment is incomplete, and dead pods left nothing"
    }
