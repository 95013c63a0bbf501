"""A node with many attachments: a warm worker's ADD and DEL do the same work there as on a node with few."""

import itertools
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import system_calls
from support.topology import Host, Pod, ip

from base.kernel.netlink import attr
from base.protocol.spec import Key
from base.state import claims, journal, libcni_cache
from base.state.claims import Claim, ClaimedDevice
from base.state.pod import Identity
from base.state.record import Record
from cni.kinds.child import IFLA_IPVLAN_MODE

FEW, MANY = 4, 200
ROUNDS = 6  # one ADD in eight also looks for a dead pod
L2 = attr(IFLA_IPVLAN_MODE, struct.pack("=H", 0)).hex()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's results and the claims of this test."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(tmp_path / "results"),))
    monkeypatch.setattr(claims, "FOLDER", str(tmp_path / "claims"))


def crowd(host: Host, number: int, parent: int) -> None:
    """A pod that the runtime and hpn have attached, with an ipvlan over that parent, and that has a claim: its
    files."""
    netns = f"/run/netns/crowd-{number}"
    interfaces = [{"name": "eth0", "sandbox": netns}, {"name": f"cali{number}"}]
    cached = {"kind": "cniCacheV1", "networkName": "k8s", "result": {"interfaces": interfaces}}
    (host.tmp_path / "results" / f"k8s-{number}-eth0").write_text(json.dumps(cached))
    link = {"device": "", "parent": parent, "in_container": False, "data": L2, "index": number, "mac": ""}
    record = Record("crowd", Key(f"c{number}", "hpn0"), netns, Identity(number, number), "ipvlan", link, {})
    with journal.lock(host.state, record.network, record.key) as entry:
        entry.save(replace(record, complete=True))
    device = ClaimedDevice("rails", "node1/a", "a", "", f"0000:5e:00.{number}", "vf", "example.com/a", "multus")
    uid = f"0d4b2f6e-7c1a-4f38-9e55-{number:012x}"
    claims.save(Claim(uid, "default", f"c{number}", (f"pod-{number}",), (device,), pod_claim="rails"))


def over_a_bridge(host: Host) -> dict[str, Any]:
    ip("link", "add", "br0", "up", "type", "bridge")
    return host.conf(master="br0", ipam=...)


def over_a_veth(host: Host) -> dict[str, Any]:
    return host.conf(master="wire", ipam=...)


def a_veth(host: Host) -> dict[str, Any]:
    return host.conf(kind="host-device", master=..., device="wire", ipam=...)


@pytest.fixture
def wire(host: Host, make_pod: Callable[[], Pod]) -> None:
    """An interface of the host with its other end where no pod is."""
    ip("link", "add", "wire", "up", "type", "veth", "peer", "name", "far", "netns", make_pod().name)


def test_an_ipvlan_beside_many(host: Host, pod: Pod, ipvlan: str) -> None:
    """Over the master of all others."""
    check(host, pod, host.conf(kind=ipvlan, ipam=...))


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("conf", [over_a_bridge, over_a_veth, a_veth])
def test_beside_many(host: Host, pod: Pod, conf: Callable[[Host], dict[str, Any]]) -> None:
    check(host, pod, conf(host))


def check(host: Host, pod: Pod, wanted: dict[str, Any]) -> None:
    """ADD and DEL make the same system calls and send the same requests beside 4 attachments as beside 200, and in a
    burst: each ADD reads what is new since the one before, and nothing else."""

    numbers, (rail,) = itertools.count(), ip("link", "show", "dev", "rail0")

    def attach() -> None:
        host.ok("ADD", pod, wanted)
        host.ok("DEL", pod, wanted)

    def follow() -> None:
        crowd(host, next(numbers), rail["ifindex"])
        attach()

    made = []
    for number in (FEW, MANY):
        for _ in range(number):
            crowd(host, next(numbers), rail["ifindex"])
        attach()
        made.append([system_calls.fewest(ROUNDS, work) for work in (attach, follow)])
    assert made[0] == made[1]
