"""The agent under the shipped unit: it needs none of the rights that systemd removes."""

import json
from typing import Any

import pytest
from support.topology import until
from system.bare import Pod
from system.machine import RANGES, Tools, ours
from system.test_deb import CONF, Node, answers, newer, on, package, running

__all__ = ["newer", "package", "running"]
# A command without the agent fails.
BY_THE_AGENT = {"HPN_PROGRAM_DIR": "/proc/nowhere"}
# Rare features that use further kernel interfaces.
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
    """All commands work in both families; a dead pod's state goes, also by the agent itself."""
    machine = running.machine
    for name in ("cnitool", "host-local"):
        machine.write(f"opt/cni/bin/{name}", (tools.peers / name).read_bytes(), 0o755)
    machine.ok("mount", "-o", "remount,bind,rw", "/proc/sys")  # the settings of a namespace
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
    machine.ok("systemctl", "restart", "hpn-agent.service")  # it searches for dead pods once a minute, and at its start

    until(lambda: answers(running), 120)  # one request first; then the agent is idle
    until(lambda: machine.ok("hpn", "list").startswith("nothing is attached"), 120)
