"""The shipped examples work unchanged: every file of conf/, and the demo."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.shipped import alone, texts
from system.machine import ROOT, Machine, Tools

CONFLISTS = sorted((ROOT / "conf").glob("*.conflist"))
DEFINITIONS = sorted((ROOT / "conf").glob("nad-*.yaml"))
# Other tiers test these.  VFs and InfiniBand VFs are in the lab only: tests/lab/test_examples.py.  Kind host-device is
# in tests/netns/test_host_device.py.  A pool for a cluster needs the cluster: tests/cluster/test_cluster_addresses.py.
# Claims are in test_claimed.py.
ELSEWHERE = ("sriov", "ipoib", "host-device", "host-network", "cluster")
HERE = [path for path in (*CONFLISTS, *DEFINITIONS) if not any(kind in path.name for kind in ELSEWHERE)]


def embedded(definition: Path) -> dict[str, Any]:
    """spec.config of a NetworkAttachmentDefinition, for one node: in our files the literal block at the end."""
    _, _, block = definition.read_text().partition("\n  config: |\n")
    return alone(json.loads(textwrap.dedent(block)))


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.name)
def test_example_attaches_and_detaches(machine: Machine, path: Path) -> None:
    conflist = json.loads(path.read_text()) if path.suffix == ".conflist" else embedded(path)
    name = conflist["name"]
    (rails,) = (plugin.get("rails") or [plugin["master"]] for plugin in conflist["plugins"])
    assert rails in (["rail0"], ["rail0", "rail1"])
    if "rail1" in rails:
        for words in ("add rail1 up type veth peer name far1", "set far1 up"):
            assert not machine.node.run(["ip", "link", *words.split()], {}).returncode
    machine.network(*conflist["plugins"], version=conflist["cniVersion"], name=name)
    pod = machine.pod()
    if "ipvlan" in path.name and not kernel_has_ipvlan(machine):
        done = machine.cnitool("add", pod, name)
        assert done.returncode != 0
        assert "ipvlan" in done.stderr
        return
    result = machine.ok("add", pod, name)
    names = [f"hpn{number}" for number in range(len(rails))]
    assert machine.links(pod) == {*names}
    assert {ip["address"] for ip in result["ips"]} == {a for ifname in names for a in machine.addresses(pod, ifname)}
    machine.ok("del", pod, name)
    if "rail1" in rails:
        machine.node.run(["ip", "link", "delete", "rail1"], {})


def test_a_nic_with_its_hosts_network(machine: Machine) -> None:
    conflist = json.loads((ROOT / "conf" / "host-network.conflist").read_text())
    machine.network(*conflist["plugins"], version=conflist["cniVersion"], name=conflist["name"])
    address, pod = "10.99.0.4/31", machine.pod()
    assert not machine.node.run(["ip", "address", "add", address, "dev", "rail0"], {}).returncode
    result = machine.ok("add", pod, conflist["name"])
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod) == {address}
    machine.ok("del", pod, conflist["name"])
    assert address in machine.node.run(["ip", "-brief", "address", "show", "rail0"], {}).stdout


@pytest.mark.parametrize("where", texts())
def test_what_a_person_is_shown_works(machine: Machine, where: str) -> None:
    """The configuration works as shown, with only the name of the host's interface replaced."""
    network = texts()[where]
    machine.network(
        *({**plugin, "master": "rail0"} for plugin in network["plugins"]),
        version=network["cniVersion"],
        name=network["name"],
    )
    pod = machine.pod()
    result = machine.ok("add", pod, network["name"])
    assert {ip["address"] for ip in result["ips"]} == machine.addresses(pod) != set()
    machine.ok("del", pod, network["name"])


@pytest.mark.parametrize(("more", "asked"), [({}, False), ({"cniVersions": ["1.0.0", "1.1.0"]}, True)])
def test_status_is_asked_of_whom_says_so(machine: Machine, more: dict[str, Any], asked: bool) -> None:
    """docs/user/install.md: libcni from 1.2 on takes the newest of cniVersions, and calls STATUS from 1.1.0 on."""
    machine.network({"type": "hpn", "master": "nosuch"}, version="1.0.0", **more)
    done = machine.cnitool("status", machine.pod())
    assert ("nosuch" in done.stderr, done.returncode != 0) == (asked, asked), done.stderr


@pytest.mark.parametrize(
    "path", [ROOT / "conf" / "macvlan.conflist", ROOT / "conf" / "nad-macvlan.yaml"], ids=lambda path: path.name
)
def test_declared_capabilities_are_served(machine: Machine, path: Path) -> None:
    """A runtime passes only the arguments that capabilities lists, so all served ones must be listed."""
    conflist = json.loads(path.read_text()) if path.suffix == ".conflist" else embedded(path)
    machine.network(*conflist["plugins"], version=conflist["cniVersion"], name=conflist["name"])
    pod = machine.pod()
    wanted = {"ips": ["10.56.0.77"], "mac": "02:00:00:00:00:77"}
    result = machine.ok("add", pod, conflist["name"], CAP_ARGS=json.dumps(wanted))
    assert {"10.56.0.77/24", "10.56.0.77/16"} & machine.addresses(pod)
    assert result["interfaces"][0]["mac"] == wanted["mac"]
    machine.ok("del", pod, conflist["name"])


def kernel_has_ipvlan(machine: Machine) -> bool:
    done = machine.node.run(["ip", "link", "add", "probe", "link", "rail0", "type", "ipvlan"], {})
    if done.returncode == 0:
        machine.node.run(["ip", "link", "delete", "probe"], {})
    return done.returncode == 0


def test_the_demo_does_what_it_says(tools: Tools) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "netns-fixtures" / "demo.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 120
    assert done.stdout.count(" bytes from ") == 2
