"""Chain mode with the frozen binary, real cnitool and a Go plugin before it: all of a pod's rails by its claim."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import fabric
import pytest
from system.machine import ROOT, Machine, ours

from base.state import claims
from base.state.claims import Claim, ClaimedDevice

POD = f"{uuid.uuid4()}"
ARGS = {"CNI_IFNAME": "eth0", "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_UID={POD}"}
RAILS = {f"hpn{n}": f"10.56.{n}.2/24" for n in range(8)}


def device(machine: Machine, n: int) -> ClaimedDevice:
    config = machine.local(ours(ipam={"type": "hpn-ipam", "subnet": f"10.56.{n}.0/24"}))
    members = {key: value for key, value in config.items() if key != "master"}
    return ClaimedDevice(
        request=f"rail{n}", pool="node", device=f"rail{n}", share="", id="rail0", kind="master", attach="chain",
        resource="example.com/rail", interface=f"hpn{n}", config=members | {"name": f"net{n}"},
    )  # fmt: skip


@pytest.fixture
def claim(machine: Machine) -> Iterator[Claim]:
    """A prepared claim of eight rails, and the shipped conflist with another Go plugin for the cluster's network."""
    devices = tuple(device(machine, n) for n in range(8))
    prepared = Claim(f"{uuid.uuid4()}", "default", "p-rails-x7f2k", (POD,), devices, pod_claim="rails")
    claims.save(prepared)
    shipped = json.loads((ROOT / "conf" / "cluster-claims.conflist").read_text())
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}
    first: dict[str, Any] = {"type": "macvlan", "master": "rail0", "ipam": ipam}
    machine.network(first, shipped["plugins"][-1], name="cluster", cniVersions=shipped["cniVersions"])
    yield prepared
    claims.forget(prepared.uid)


def test_a_pods_rails(machine: Machine, claim: Claim) -> None:
    pod, other = machine.pod(), machine.pod()
    result = machine.ok("add", pod, "cluster", **ARGS)
    assert [one["address"] for one in result["ips"]] == ["10.244.0.2/24"]
    assert [one["name"] for one in result["interfaces"]] == ["eth0"]
    assert {name: machine.addresses(pod, name) for name in RAILS} == {name: {ip} for name, ip in RAILS.items()}
    machine.ok("check", pod, "cluster", **ARGS)
    machine.ok("status", pod, "cluster", **ARGS)
    fabric.run("ip", "-n", pod, "link", "set", "hpn7", "down")
    done = machine.cnitool("check", pod, "cluster", **ARGS)
    assert (done.returncode, "hpn7 is down" in done.stderr) == (1, True), done.stderr
    machine.ok("add", other, "cluster", CNI_IFNAME="eth0")  # without a claim
    assert machine.links(other) == {"eth0"}
    machine.ok("del", other, "cluster", CNI_IFNAME="eth0")
    machine.ok("del", pod, "cluster", **ARGS)
    assert (machine.links(pod), machine.links(other)) == (set(), set())
    machine.ok("add", pod, "cluster", **ARGS)
    # cnitool lists no attachment, so libcni detaches all that its cache has, and then sends GC.
    machine.ok("gc", pod, "cluster", **ARGS)
    assert not list((machine.state / "chains").rglob("*.json"))
    machine.nothing_held()
