"""hpn hints, the log and the last error, by the frozen program and cnitool."""

import json
import shlex
import subprocess

from system.agents import running
from system.machine import Machine, fabric, ours

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def hpn(machine: Machine, *words: str) -> str:
    argv = machine.node.command(str(machine.tools.hpn), *words, "--state-dir", str(machine.state))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_a_pod_on_two_rails(machine: Machine) -> None:
    """Without RDMA devices the hints name sockets, by the pod's interfaces."""
    machine.network(ours())
    machine.network(ours(ipam={"type": "hpn-ipam", "subnet": "10.77.0.0/24"}), name="rail1")
    pod = machine.pod()
    machine.ok("add", pod, "rail1", CNI_IFNAME="hpn1")
    machine.ok("add", pod)
    said = json.loads(hpn(machine, "hints", f"/run/netns/{pod}", "--for", "mpi", "--json"))
    assert [a["ifname"] for a in said["attachments"]] == ["hpn0", "hpn1"]
    assert said["set"]["OMPI_MCA_btl_tcp_if_include"] == "hpn0,hpn1"
    lines = hpn(machine, "hints", said["containerID"])
    shown = subprocess.run(["sh", "-euc", f"{lines}\nenv"], env={}, capture_output=True, text=True, check=True).stdout
    assert {"NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=hpn0", "NCCL_IB_HCA="} <= set(shown.splitlines())
    machine.ok("del", pod)
    machine.ok("del", pod, "rail1", CNI_IFNAME="hpn1")
    machine.nothing_held()


def test_the_log_on_stderr(machine: Machine) -> None:
    """The program and its agent write one line of words for each command."""
    machine.network(ours(logFile="stderr", logFormat="text"))
    pod, path = machine.pod(), machine.scratch / "agent.sock"
    with running(machine, path):
        for agent in ("", str(path)):
            for verb in ("add", "del"):
                done = machine.cnitool(verb, pod, HPN_AGENT=agent, TRACEPARENT=TRACE)
                assert done.returncode == 0, done.stderr
                (line,) = (line for line in done.stderr.splitlines() if line.startswith("time="))
                said = dict(word.split("=", 1) for word in shlex.split(line))
                about = {"level": "info", "command": verb.upper(), "network": "rail0", "ifname": "hpn0"}
                assert said.items() >= {**about, "traceparent": TRACE, "message": "done"}.items()
    machine.nothing_held()


def test_the_last_error(machine: Machine) -> None:
    machine.network(ours())
    pod = machine.pod()
    machine.ok("add", pod)
    fabric.run("ip", "-netns", pod, "link", "set", "hpn0", "down")
    assert machine.cnitool("check", pod).returncode != 0
    (attachment,) = json.loads(hpn(machine, "inspect", "--json"))["attachments"]
    assert (attachment["lastError"]["command"], attachment["lastError"]["code"]) == ("CHECK", 107)
    assert ": CHECK failed, " in hpn(machine, "inspect")
    machine.ok("del", pod)
    assert list((machine.state / "attachments").rglob("*.error")) == []
    machine.nothing_held()
