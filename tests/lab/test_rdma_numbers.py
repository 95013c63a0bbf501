"""Numbers of RDMA devices in /dev/infiniband: a container gets its device nodes before ADD moves its device."""

import fcntl
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from guest.gid_tables import PATIENT
from guest.machine import rdma
from guest.node import NAME, PF, RDMA, Node, pci, rdma_devs
from support.kubelet import Kubelet
from support.node_process import NodeProcess
from support.topology import Pod, until

RAIL0 = "example.com/rail0"


def uverbs(device: str) -> str:
    """The device node of its RDMA device, in any namespace."""
    (name,) = (path.name for path in Path(f"/sys/bus/pci/devices/{device}/infiniband_verbs").iterdir())
    return name


@pytest.fixture
def moving(node: Node) -> Iterator[str]:
    """A VF with an RDMA device that gets another number if it moves, because a lower one has become free."""
    pairs = (RDMA, NAME), ("hca0v2", "rail0v2")
    for name, _ in pairs:
        rdma("link", "delete", name)
    for name, netdev in pairs:  # each takes the lowest free number
        rdma("link", "add", name, "type", "testhca", "netdev", netdev)
    rdma("link", "delete", RDMA)
    yield pci("rail0v2")
    rdma("link", "add", RDMA, "type", "testhca", "netdev", NAME)


def of_pod(uid: str) -> str:
    return f"IgnoreUnknown=1;K8S_POD_UID={uid}"


def wanting(node: Node, device: str, **rdma: Any) -> dict[str, Any]:
    return node.conf(deviceID=device, rdma=PATIENT | rdma)


def test_a_number_that_is_required(node: Node, moving: str, make_pod: Callable[[], Pod]) -> None:
    """Each ADD of the pod fails, because Allocate gave it the old number; its successor gets the present number."""
    conf, given = wanting(node, moving, required=True), uverbs(moving)
    for pod in (make_pod(), make_pod()):
        error = node.refused("ADD", pod, conf, CNI_ARGS=of_pod("one"))
        said = "rdma.required", f"the container got {given}", uverbs(moving), "delete the pod"
        assert (error["code"], [words for words in said if words not in error["msg"]]) == (101, [])
        assert (pod.links(), node.state_files()) == (set(), set())
    assert uverbs(moving) != given
    successor = make_pod()
    node.ok("ADD", successor, conf, CNI_ARGS=of_pod("two"))
    node.ok("DEL", successor, conf)


def test_a_number_that_is_not_required(node: Node, moving: str, pod: Pod) -> None:
    given = uverbs(moving)
    reply = node.call("ADD", pod, wanting(node, moving))
    assert reply.exit_code == 0
    assert [line for line in reply.log if given in line and uverbs(moving) in line and "delete the pod" in line]
    node.ok("DEL", pod)


def test_a_vf_that_no_device_plugin_chose(node: Node, moving: str, pod: Pod) -> None:
    """No container got its device nodes, so ADD succeeds."""
    conf = node.conf(deviceID=..., pf=PF, vf=2, rdma={"required": True})
    given = uverbs(moving)
    node.ok("ADD", pod, conf)
    assert uverbs(moving) != given
    node.ok("DEL", pod, conf)


def test_given_by_cdi(node: Node, moving: str, pod: Pod, kubelet: Kubelet) -> None:
    """The runtime reads the nodes after ADD, and ADD waits until they are written."""
    vfs = {"name": RAIL0, "kind": "vf", "selectors": {"pfNames": [PF]}, "cdi": True}
    process = NodeProcess(kubelet.registry.parents[1], [vfs])
    process.mounts.clear()  # /sys and /run are the guest's own
    file = Path("/var/run/cdi/hpn-example.com_rail0.json")

    def nodes() -> list[str]:
        devices = json.loads(file.read_text())["devices"]
        edits = next(one["containerEdits"] for one in devices if one["name"].endswith(f"_{moving}"))
        return [node["path"] for node in edits["deviceNodes"]]

    with process:
        until(file.exists)
        given = uverbs(moving)
        assert f"/dev/infiniband/{given}" in nodes()
        node.ok("ADD", pod, wanting(node, moving, required=True))
        assert given != uverbs(moving)
        assert f"/dev/infiniband/{uverbs(moving)}" in nodes()
        node.ok("DEL", pod)


def test_two_moves_at_once(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Each move frees a number and takes the lowest free one: one waits for the other."""
    other = node.conf(
        deviceID=pci("rail0v1"),
        ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"},
    )
    attached = [(make_pod(), conf, uverbs(conf["deviceID"])) for conf in (node.conf(), other)]
    file = node.state / "locks" / "rdma-numbers"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for command in ("ADD", "DEL"):
        before = rdma_devs()
        with ThreadPoolExecutor() as threads:
            with file.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                replies = [threads.submit(node.call, command, pod, conf) for pod, conf, _ in attached]
                assert not wait(replies, 3).done
                assert rdma_devs() == before
            assert [reply.result().exit_code for reply in replies] == [0, 0]
        assert rdma_devs() != before
        assert [uverbs(conf["deviceID"]) for _, conf, _ in attached] == [number for _, _, number in attached]
