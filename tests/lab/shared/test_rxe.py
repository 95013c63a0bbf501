"""Soft-RoCE on the pod's interface, on a kernel whose soft-RoCE supports namespaces: real traffic between pods."""

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import drawn
import pytest
from guest.gid_tables import PATIENT
from guest.machine import rdma, verbs
from guest.node import Node, pci, rdma_devs
from support.killing import killed_at
from support.topology import Pod, until

from base.kernel import netns
from base.state import durable

RXE = PATIENT | {"mode": "rxe"}
IPAM = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]}
# The differences between two pods on two NICs.
KINDS = {
    "macvlan": ({"kind": "macvlan", "master": "rail0"}, {"kind": "macvlan", "master": "rail1"}),
    "ipvlan": ({"kind": "ipvlan", "master": "rail0"}, {"kind": "ipvlan", "master": "rail1"}),
    "sriov": ({"pf": "rail0"}, {"pf": "rail1"}),
}


@pytest.fixture(autouse=True)
def nothing_but_what_was(node: Node) -> Iterator[None]:
    before = rdma_devs()
    yield
    assert rdma_devs() == before


def conf(node: Node, **keys: Any) -> dict[str, Any]:
    return node.conf(**{"deviceID": ..., "rdma": RXE, "ipam": IPAM} | keys)


def device(pod: Pod, ifname: str = "hpn0") -> str:
    """Our device on the pod's interface, once the kernel reports both; in shared mode a VF's own device is present
    too."""

    def found() -> str:
        lines = [line.split() for line in rdma("link", netns=pod.name)]
        on_it = [
            words[1].partition("/")[0] for words in lines if words[-2:] == ["netdev", ifname] and "ACTIVE" in words
        ]
        return next((name for name in on_it if name.startswith("hpn-")), "")

    return str(until(found))


def gid_index(name: str, address: str) -> int:
    """The index of that address in the GID table of the guest's /sys."""
    wanted = IPv6Address(f"::ffff:{address.partition('/')[0]}").exploded
    return next(
        int(p.name)
        for p in Path(f"/sys/class/infiniband/{name}/ports/1/gids").iterdir()
        if p.read_text().strip() == wanted
    )


@pytest.mark.parametrize("kind", KINDS)
def test_pods_reach_each_other(node: Node, make_pod: Callable[[], Pod], kind: str) -> None:
    pods, before = (make_pod(), make_pod()), rdma_devs()
    confs = [conf(node, **keys) for keys in KINDS[kind]]
    ends = []
    for pod, one in zip(pods, confs, strict=True):
        result = node.ok("ADD", pod, one)
        body = durable.read(node.record(pod))
        assert body
        assert [(g["device"], g["type"]) for g in body["gids"]] == [(device(pod), "RoCE v2")]
        assert body["gids"][0]["index"] == gid_index(device(pod), result["ips"][0]["address"])
        ends.append(verbs.End(pod.name, device(pod), result["ips"][0]["address"].partition("/")[0]))
        assert node.checked(pod, one, result).exit_code == 0
    assert {end.device for end in ends} == rdma_devs() - before
    assert "200 iters in" in verbs.ibv_rc_pingpong(*ends)
    assert verbs.bandwidth(verbs.ib_write_bw(*ends)) > 0
    assert verbs.rping(*ends).count("ping data: rdma-ping-") == 3
    for pod, one in zip(pods, confs, strict=True):
        node.ok("DEL", pod, one)
        assert pod.links() == set()
        node.ok("DEL", pod, one)
    assert rdma_devs() == before
    assert node.state_files() == set()


def test_another_ones_interface_has_none(node: Node, pod: Pod) -> None:
    """Each of a pod's two interfaces has its own device, and the other's device does not go with it."""
    node.ok("ADD", pod, conf(node, master="rail0"))
    node.ok("ADD", pod, conf(node, master="rail1"), CNI_IFNAME="hpn1")
    first = device(pod)
    assert first != device(pod, "hpn1")
    node.ok("DEL", pod, conf(node), CNI_IFNAME="hpn1")
    assert device(pod) == first
    node.ok("DEL", pod, conf(node))


def test_two_of_one_pod_at_once(node: Node, pod: Pod) -> None:
    """The kernel counts the users of a namespace's socket without a lock, and frees the socket twice or never."""
    one, names = conf(node, master="rail0"), ("hpn0", "hpn1")
    with ThreadPoolExecutor() as threads:
        for _ in range(15):
            for command in ("ADD", "DEL"):
                list(threads.map(lambda name, command=command: node.ok(command, pod, one, CNI_IFNAME=name), names))
            assert pod.run("cat", "/proc/net/udp").stdout.count("12B7") == 0


def test_it_is_missed(node: Node, pod: Pod) -> None:
    one = conf(node, master="rail0")
    result = node.ok("ADD", pod, one)
    rdma("link", "delete", device(pod))
    reply = node.checked(pod, one, result)
    assert reply.exit_code == 1
    assert "is gone" in reply.stdout
    node.ok("DEL", pod, one)


@pytest.mark.parametrize("kind", KINDS)
def test_the_namespace_died(node: Node, pod: Pod, kind: str) -> None:
    one, before = conf(node, **KINDS[kind][0]), rdma_devs()
    node.ok("ADD", pod, one)
    assert len(rdma_devs() - before) == 1
    pod.gone()
    node.ok("DEL", pod, one)
    until(lambda: rdma_devs() == before)


def test_the_kernel_removes_it_with_the_namespace(node: Node, pod: Pod) -> None:
    """Only the kernel removes it: the kernel does not survive two removals at once."""
    one, before = conf(node, master="rail0"), rdma_devs()
    node.ok("ADD", pod, one)
    with netns.hold_open(pod.path):  # so the kernel cannot start the removal yet
        pod.gone()
        node.ok("DEL", pod, one)
        assert len(rdma_devs() - before) == 1
    until(lambda: rdma_devs() == before)


def test_a_process_has_it_open(node: Node, pod: Pod) -> None:
    """DEL names the process instead of waiting, because the kernel would block on it; the next DEL removes the
    device."""
    one = conf(node, master="rail0")
    node.ok("ADD", pod, one)
    command = ["ip", "netns", "exec", pod.name, "ibv_rc_pingpong", "-d", device(pod), "-g", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as user:
        until(lambda: f"pid {user.pid} " in "\n".join(rdma("resource", "show", "ctx")) + " ")
        error = node.refused("DEL", pod, one)
        assert (error["code"], str(user.pid) in error["msg"]) == (11, True)
        assert pod.link()
        user.kill()
    node.ok("DEL", pod, one)
    assert node.state_files() == set()


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("keys", [{"kind": "macvlan", "master": "rail0"}, {"deviceID": pci("rail0v0")}], ids=str)
def test_killed_between_steps(node: Node, pod: Pod, command: str, keys: dict[str, Any]) -> None:
    one, before = conf(node, **keys), rdma_devs()
    for step in drawn.steps():
        if command == "DEL":
            node.ok("ADD", pod, one)
        killed = killed_at(step, node.request(command, pod, one))
        node.ok("DEL", pod, one)
        assert (pod.links(), rdma_devs(), node.state_files()) == (set(), before, set()), f"after step {step}"
        if not killed:
            break
    assert step > 10
