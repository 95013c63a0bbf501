"""multiRail with soft-RoCE: two pods with four rails each, all on one wire; each rail's RDMA leaves by that rail."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drawn
import pytest
from guest.machine import verbs
from guest.node import Node
from lab.shared.test_rxe import RXE, device
from support.topology import Pod, ip, until
from support.wire import Wire

RAILS = range(4)
WRITTEN = 100 * 65536  # by verbs.ib_write_bw
NODES = {"node-a": 0, "node-b": 4}  # the index of its first NIC


@dataclass(frozen=True)
class Rails:
    """A pod, and the ends and MACs of its rails."""

    pod: Pod
    ends: list[verbs.End]
    macs: list[str]

    def sent(self) -> list[int]:
        """Octets that each interface has sent, by its own counter."""
        links = {link["ifname"]: link for link in self.pod.ip("-s", "link")}
        return [links[f"hpn{number}"]["stats64"]["tx"]["bytes"] for number in RAILS]

    def packets(self) -> list[int]:
        """Packets that each RDMA device has sent."""
        counter = "/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts"
        return [int(Path(counter.format(end.device)).read_text()) for end in self.ends]

    def reached(self, other: "Rails") -> list[int]:
        """The rails that lead from this pod to the other pod's rail."""

        def pinged(number: int) -> bool:
            way = ("-I", self.ends[number].address, other.ends[number].address)
            return self.pod.run("ping", "-nc1", "-W1", *way).returncode == 0

        return [number for number in RAILS if pinged(number)]


def conf(node: Node, kind: str, name: str, number: int) -> dict[str, Any]:
    """The configuration of one rail of a node with four of the machine's NICs; each rail is a network of both nodes."""
    key, first = {"macvlan": "master", "sriov": "pf"}[kind], NODES[name]
    rails = [
        {key: f"rail{first + one}", "subnet": f"10.{60 + one}.0.0/24", "rangeStart": f"10.{60 + one}.0.{10 + first}"}
        for one in RAILS
    ]
    return node.conf(
        kind=kind, deviceID=..., name=name, rdma=RXE, multiRail=True,
        ipam={"type": "hpn-ipam", "rails": rails, "align": True}, **{key: f"rail{first + number}"},
    )  # fmt: skip


def attached(node: Node, kind: str, name: str, pod: Pod) -> Rails:
    results = [node.ok("ADD", pod, conf(node, kind, name, one), CNI_IFNAME=f"hpn{one}") for one in RAILS]
    ends = [
        verbs.End(pod.name, device(pod, f"hpn{one}"), result["ips"][0]["address"].partition("/")[0])
        for one, result in enumerate(results)
    ]
    return Rails(pod, ends, [result["interfaces"][0]["mac"] for result in results])


def at_once(work: Callable[[int], str]) -> list[str]:
    with ThreadPoolExecutor() as threads:
        return list(threads.map(work, RAILS))


@pytest.mark.parametrize("kind", drawn.share(["macvlan", "sriov"], "kinds of rails"))
def test_each_rail_carries_its_own(node: Node, make_pod: Callable[[], Pod], kind: str) -> None:
    pods = make_pod(), make_pod()
    for number, pod in enumerate(pods):
        ip("link", "add", f"cali{number}", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
        pod.ip("link", "set", "eth0", "up")
        pod.ip("addr", "add", f"10.244.{number}.2/24", "dev", "eth0")
        pod.ip("route", "add", "default", "via", f"10.244.{number}.1")
    default = [pod.ip("route", "show", "default") for pod in pods]
    a, b = (attached(node, kind, name, pod) for name, pod in zip(NODES, pods, strict=True))
    assert [pod.ip("route", "show", "default") for pod in pods] == default

    with ExitStack() as stack:
        wires = [stack.enter_context(Wire.at(f"hpn{number}", b.pod.name)) for number in RAILS]
        # All NICs are on one wire, so each NIC hears every neighbor request.
        for wire, asking in zip(wires, b.ends, strict=True):
            for end in a.ends:
                wire.ask(end.address, asking.address)
        until(lambda: a.reached(b) == list(RAILS))
        sent, packets = a.sent(), a.packets()
        # One rail at a time: a busy guest loses packets under load, and soft-RoCE may answer a repeated packet with an
        # error.
        reports = [verbs.ib_write_bw(b.ends[number], a.ends[number], port=18600 + number) for number in RAILS]
        assert all(verbs.bandwidth(report) > 0 for report in reports), reports
        for number, wire in enumerate(wires):
            own = (a.macs[number], a.ends[number].address)
            answers = wire.seen("ARP reply") & {(mac, end.address) for mac in a.macs for end in a.ends}
            assert answers == {(mac, end.address) for mac, end in zip(a.macs, a.ends, strict=True)}
            assert wire.seen("RoCE") == wire.seen("echo") == {own}
        assert all(now - then >= WRITTEN for then, now in zip(sent, a.sent(), strict=True))
        assert all(now - then >= WRITTEN // 1024 for then, now in zip(packets, a.packets(), strict=True))
    for text in at_once(lambda number: verbs.rping(b.ends[number], a.ends[number])):
        assert text.count("ping data: rdma-ping-") == 3

    ip("link", "set", "rail2", "down")
    try:
        until(lambda: a.reached(b) == [0, 1, 3])
    finally:
        ip("link", "set", "rail2", "up")
    until(lambda: a.reached(b) == list(RAILS))
    for name, pod in zip(NODES, pods, strict=True):
        for number in RAILS:
            node.ok("DEL", pod, conf(node, kind, name, number), CNI_IFNAME=f"hpn{number}")
        assert pod.links() == {"eth0"}
    assert node.state_files() == set()
