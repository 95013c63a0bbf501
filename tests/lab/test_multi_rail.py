"""multiRail with VFs, in exclusive mode: two pods with four rails each, and each rail's own RDMA device."""

from collections.abc import Callable
from typing import Any

from guest.machine import rdma
from guest.node import Node, pci, rdma_devs
from support.topology import Pod, until
from support.wire import Wire

# The pods' rails: two VFs each of two NICs on one wire.
VFS = [["rail0v0", "rail0v1", "rail1v0", "rail1v1"], ["rail0v2", "rail0v3", "rail1v2", "rail1v3"]]


def conf(node: Node, pod: int, number: int) -> dict[str, Any]:
    ipam = {"type": "hpn-ipam", "subnet": f"10.{60 + number}.0.0/24", "rangeStart": f"10.{60 + number}.0.{10 + pod}"}
    return node.conf(
        name=f"rail{number}", deviceID=pci(VFS[pod][number]), multiRail=True, ipam=ipam,
        rdma={"mode": "exclusive", "required": True},
    )  # fmt: skip


def test_each_has_its_own_device_and_way(node: Node, make_pod: Callable[[], Pod]) -> None:
    pods, rails = (make_pod(), make_pod()), range(4)
    confs = [[conf(node, pod, number) for number in rails] for pod in range(2)]
    macs = [["", ""] * 2, ["", ""] * 2]
    for one, pod in enumerate(pods):
        for number in rails:
            result = node.ok("ADD", pod, confs[one][number], CNI_IFNAME=f"hpn{number}")
            macs[one][number] = result["interfaces"][0]["mac"]
            assert [one["address"] for one in result["ips"]] == [f"10.{60 + number}.0.{10 + one}/24"]
        assert rdma_devs(pod.name) == {name.replace("rail", "hca") for name in VFS[one]}
        of_netdevs = {tuple(line.split()[1:2] + line.split()[-1:]) for line in rdma("link", netns=pod.name)}
        assert of_netdevs == {(f"{name.replace('rail', 'hca')}/1", f"hpn{n}") for n, name in enumerate(VFS[one])}

    def reached() -> list[int]:
        # time: a rail that is down never answers, and the first look is repeated
        return [n for n in rails if pods[0].ping(f"10.{60 + n}.0.11", "-I", f"10.{60 + n}.0.10", "-W", "2")]

    own = {(macs[0][number], f"10.{60 + number}.0.10") for number in rails}
    with Wire.at("hpn0", pods[1].name) as wire:
        for _ in range(3):
            for _, address in own:
                wire.ask(address, "10.60.0.11")
        until(lambda: wire.seen("ARP reply") & own == own)
        until(lambda: reached() == list(rails))
        assert {one for one in wire.seen("ARP reply") if one[1] in {address for _, address in own}} == own
        assert wire.seen("echo") == {(macs[0][0], "10.60.0.10")}
    pods[0].ip("link", "set", "hpn1", "down")
    until(lambda: reached() == [0, 2, 3])
    for one, pod in enumerate(pods):
        for number in rails:
            node.ok("DEL", pod, confs[one][number], CNI_IFNAME=f"hpn{number}")
        assert (pod.links(), rdma_devs(pod.name)) == (set(), set())
