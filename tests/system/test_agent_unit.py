"""The agent under the shipped unit: what systemd takes from it, it does not need."""

import json
from typing import Any

import pytest
from support.topology import until
from system.bare import Pod
from system.machine import RANGES, Tools, ours
from system.test_deb import CONF, Node, answers, newer, on, package, running

__all__ = ["newer", "package", "running"]
# Whoever has no agent fails.
BY_THE_AGENT = {"HPN_PROGRAM_DIR": "/proc/nowhere"}
# Rare things that ask the kernel for something else.
PLUGIN: dict[str, Any] = {
    "policyRouting": True,
    "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2", "net.core.somaxconn": "77"},
    "logFile": "/var/log/hpn/hpn.log",
}
IPAMS: dict[str, dict[str, Any]] = {
    "ours, which probes": {"type": "hpn-ipam", "ranges": RANGES, "probe": 0.1},
    "a program's": {"type": "host-local", "ranges": RANGES},
}


def cnitool(node: Node, verb: str, pod: Pod) -> str:
    env = {"CNI_PATH": "/opt/cni/bin", "NETCONFPATH": "/etc/cni/net.d", "CNI_IFNAME": "hpn0"}
    return node.machine.ok("/opt/cni/bin/cnitool", verb, "rail0", pod.netns, **env, **BY_THE_AGENT)


@on("bookworm", "trixie")
@pytest.mark.parametrize("ipam", IPAMS)
def test_all_commands(running: Node, tools: Tools, ipam: str) -> None:
    """In both families; a pod that died is taken away, also by the agent itself."""
    machine = running.machine
    for name in ("cnitool", "host-local"):
        machine.write(f"opt/cni/bin/{name}", (tools.peers / name).read_bytes(), 0o755)
    machine.ok("mount", "-o", "remount,bind,rw", "/proc/sys")  # where a namespace's settings are
    running.install()
    until(lambda: answers(running), 120)
    network = {"cniVersion": "1.1.0", "name": "rail0", "plugins": [ours(**PLUGIN, ipam=IPAMS[ipam])]}
    machine.write(CONF, json.dumps(network))
    first, second = machine.pod(), machine.pod()
    for pod in (first, second):
        cnitool(running, "status", pod)
        cnitool(running, "add", pod)
        assert {a.partition(".")[0] for a in machine.addresses(pod)["hpn0"] if "." in a} == {"10"}
        cnitool(running, "check", pod)
    cnitool(running, "del", first)
    assert machine.addresses(first) == {}
    machine.end(second)
    machine.ok("systemctl", "restart", "hpn-agent.service")  # it looks for the dead once a minute, and at first

    until(lambda: answers(running), 120)  # that it is asked once; then it has time
    until(lambda: machine.ok("hpn", "list").startswith("nothing is attached"), 120)
