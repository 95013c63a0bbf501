"""hpn top compared with ib_write_bw on real traffic, and with rdma on the users of a shared device."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guest.machine import rdma, verbs
from guest.node import Node
from lab.shared.test_rxe import RXE, device
from support.metrics_page import made
from support.node_process import PROGRAM
from support.topology import Pod, until

from base.state import journal
from node.metrics import page

ROOT = Path(__file__).parents[3]
CGROUPS, SHARED = Path("/sys/fs/cgroup"), "rxe-rail0"
NAMED, ALONE = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0", "1b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
WRITES, SIZE = 100, 65536


@contextmanager
def watching(*words: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run hpn top while the body runs; the function ends it and returns its samples."""
    command = ["env", "--default-signal=INT", *PROGRAM, "top", "--json", "--interval", "0.5", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ) as one:
        assert one.stdout
        steps = [json.loads(one.stdout.readline())]

        def end() -> list[dict[str, Any]]:
            assert one.stdout
            now = time.time()
            # Several more samples: reading and printing one takes time in an emulated machine.
            while steps[-1]["time"] - 4 * steps[-1]["seconds"] < now:
                steps.append(json.loads(one.stdout.readline()))
            one.send_signal(signal.SIGINT)
            return steps

        try:
            yield end
        finally:
            one.kill()


def carried(pod: Pod) -> dict[str, int]:
    """The octets that the pod's interface has received and sent, by the kernel's counters."""
    (link,) = pod.ip("-s", "link", "show", "dev", "hpn0")
    return {way: link["stats64"][way]["bytes"] for way in ("rx", "tx")}


@pytest.fixture
def large_packets() -> Iterator[None]:
    """The rails accept packets of 4 KiB."""

    def rails(mtu: int) -> None:
        for number in range(2):
            subprocess.run(["ip", "link", "set", f"rail{number}", "mtu", str(mtu)], check=True)

    rails(4300)
    yield
    rails(1500)


@pytest.mark.usefixtures("large_packets")
def test_it_shows_what_went_through(node: Node, make_pod: Callable[[], Pod]) -> None:
    """hpn top shows the octets that the interface carried and ib_write_bw wrote.  In packets of 4 KiB, headers are 1.4
    %."""
    pods, ends = (make_pod(), make_pod()), []
    for number, pod in enumerate(pods):
        conf = node.conf(kind="macvlan", master=f"rail{number}", deviceID=..., rdma=RXE, mtu=4300,
                         ipam={"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]})  # fmt: skip
        result = node.ok("ADD", pod, conf)
        ends.append(verbs.End(pod.name, device(pod), result["ips"][0]["address"].partition("/")[0]))
    before = [carried(pod) for pod in pods]
    with watching(*(end.device for end in ends)) as end_it:
        said = verbs.ib_write_bw(*ends, mtu=4096)
        steps = end_it()
    assert re.search(rf"^ *{SIZE} +{WRITES} ", said, re.MULTILINE)
    for pod, end, then in zip(pods, ends, before, strict=True):
        ports = [(step["seconds"], port) for step in steps for port in step["ports"] if port["device"] == end.device]
        for way, number in carried(pod).items():
            through = sum(port[way] * seconds for seconds, port in ports)
            # The interface also counts Ethernet headers, and some packets before and after.
            assert 0.98 * (number - then[way]) - 20_000 < through <= number - then[way]
    written = sum(
        port["tx"] * step["seconds"] for step in steps for port in step["ports"] if port["device"] == ends[1].device
    )
    print(f"hpn top: {written / (WRITES * SIZE):.3f} of what ib_write_bw wrote")
    # Repeated packets count too: a busy emulated machine repeats many, an unknown number.
    assert written / (WRITES * SIZE) > 1.0, said
    for pod in pods:
        node.ok("DEL", pod, node.conf())


@pytest.fixture
def kubepods() -> Iterator[Path]:
    """kubelet's cgroup, with the rdma controller below."""
    was_there = os.path.ismount(CGROUPS)
    if not was_there:
        CGROUPS.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(CGROUPS)], check=True)
    folder = CGROUPS / "kubepods"
    folder.mkdir()
    for one in (CGROUPS, folder):
        (one / "cgroup.subtree_control").write_text("+rdma")
    yield folder
    for one in (*folder.rglob("*/"), folder):
        until(lambda one=one: not (one / "cgroup.procs").read_text())
    for one in sorted(folder.rglob("*/"), reverse=True):
        one.rmdir()
    folder.rmdir()
    (CGROUPS / "cgroup.subtree_control").write_text("-rdma")
    if not was_there:
        subprocess.run(["umount", str(CGROUPS)], check=True)


@pytest.fixture
def shared() -> Iterator[str]:
    """A soft-RoCE device of the host, which every namespace sees."""
    rdma("link", "add", SHARED, "type", "rxe", "netdev", "rail0")
    yield SHARED
    rdma("link", "delete", SHARED)


@contextmanager
def waiting(device: str, cgroup: Path, *netns: str, number: int = 1) -> Iterator[None]:
    """Servers of ibv_rc_pingpong that wait for a client, each with a QP, an MR and a CQ."""
    cgroup.mkdir(parents=True, exist_ok=True)
    inside = ["ip", "netns", "exec", *netns] if netns else []
    enter = ["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(cgroup), *inside]
    words = [[*enter, "ibv_rc_pingpong", "-d", device, "-p", str(18515 + n)] for n in range(number)]
    servers = [subprocess.Popen(one) for one in words]
    try:
        yield
    finally:
        for one in servers:
            one.kill()
            one.wait()


def all_of(device: str) -> Counter[str]:
    """The device's resources, as the kernel counts them."""
    words = rdma("resource", "show", device)[0].replace(":", "").split()
    return Counter({name: int(words[words.index(name) + 1]) for name in ("qp", "mr", "cq")})


def test_who_uses_a_shared_device(node: Node, make_pod: Callable[[], Pod], kubepods: Path, shared: str) -> None:
    """Each user's resources, which sum to the device's: a pod with an attachment, one with the host's network, and one
    that only its namespace identifies."""
    named, other = make_pod(), make_pod()
    node.ok("ADD", named, node.conf(kind="macvlan", master="rail0", deviceID=...), CNI_ARGS=args("a", NAMED))
    node.ok("ADD", other, node.conf(kind="macvlan", master="rail0", deviceID=...), CNI_ARGS=args("b"))
    before = all_of(shared)

    def users() -> dict[str, tuple[int, ...]]:
        top = [*PROGRAM, "top", shared, "--json", "--count", "1", "--interval", "0.1"]
        answer = subprocess.run(top, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ)
        return {
            one["pod"] or one["uid"] or one["other"]: (one["qp"], one["mr"], one["cq"], one.get("objects", 0))
            for one in json.loads(answer.stdout)["users"]
        }

    wanted = {"default/a": (2, 2, 2), ALONE: (1, 1, 1), "default/b": (1, 1, 1)}
    with (
        waiting(shared, kubepods / f"pod{NAMED}/c", named.name, number=2),
        waiting(shared, kubepods / f"pod{ALONE}/c"),
        waiting(shared, CGROUPS / "podman-c", other.name),
    ):
        until(lambda: all_of(shared) == before + Counter(qp=4, mr=4, cq=4))
        # A thread counts when it is older than the list.
        found = until(lambda: "unknown" not in (now := users()) and now)
        there = all_of(shared)
        metrics = made(page.users(list(journal.records(node.state)), pytest.fail))
    assert {name: numbers[:3] for name, numbers in found.items() if name != "kernel"} == wanted
    assert tuple(map(sum, zip(*(numbers[:3] for numbers in found.values()), strict=True))) == tuple(there.values())
    # A QP, an MR, a CQ and their protection domain.
    assert (found["default/a"][3], found[ALONE][3], found["default/b"][3]) == (8, 4, 0)
    assert {name: metrics[f"hpn_pod_rdma_{name}", "default", "a", shared, NAMED] for name in ("qp", "mr", "cq")} == {
        "qp": 2, "mr": 2, "cq": 2,
    }  # fmt: skip
    assert metrics["hpn_pod_rdma_qp", "", "", shared, ALONE] == 1
    print(f"users: {found}; the device: {dict(there)}")
    until(lambda: set(users()) <= {"kernel"})
    for pod in (named, other):
        node.ok("DEL", pod, node.conf())
    (CGROUPS / "podman-c").rmdir()


def args(name: str, uid: str = "") -> str:
    named = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}"
    return f"{named};K8S_POD_UID={uid}" if uid else named
