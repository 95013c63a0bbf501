"""Open MPI with UCX, as Debian has them, over soft-RoCE, with the environment that hpn hints prints."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from guest.machine import jobs, verbs
from guest.node import Node
from lab.shared.test_rxe import conf, device
from topology import Pod

ROOT = Path(__file__).parents[3]
PAYLOAD = 10 * 262144  # of collectives.py: ten times the largest message, in octets, of each of two kinds
# UCX takes soft-RoCE's datagrams for somebody else's, and drops them.
OF_SOFT_ROCE = "export UCX_UD_ETH_DGID_CHECK=n\n"


def hints(node: Node, pod: Pod) -> str:
    words = ("hints", pod.path, "--for", "mpi", "--state-dir", str(node.state))
    done = subprocess.run([sys.executable, "-m", "ctl", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def sent(end: verbs.End) -> int:
    """The packets that the RDMA device has sent, says the kernel."""
    return int(Path(f"/sys/class/infiniband/{end.device}/ports/1/hw_counters/sent_pkts").read_text())


def test_mpi(node: Node, make_pod: Callable[[], Pod], tmp_path: Path) -> None:
    """What the ranks sent each other was right, and went by RDMA, in packets of a kilobyte."""
    pods, ends = (make_pod(), make_pod()), []
    for number, pod in enumerate(pods):
        result = node.ok("ADD", pod, conf(node, kind="macvlan", master=f"rail{number}"))
        ends.append(verbs.End(pod.name, device(pod), result["ips"][0]["address"].partition("/")[0]))
    told = {pod.name: hints(node, pod) for pod in pods}
    assert all(f"UCX_NET_DEVICES={end.device}:1\n" in told[end.netns] for end in ends)
    environments = {name: lines + OF_SOFT_ROCE for name, lines in told.items()}
    jobs.describe(tmp_path, environments, {end.netns: end.address for end in ends})
    before = [sent(end) for end in ends]
    said = jobs.mpirun(tmp_path, [pod.name for pod in pods], "collectives.py")
    assert (said.count(" right"), "WRONG" in said) == (8, False), said
    assert all(sent(end) - then >= 2 * PAYLOAD // 1024 for end, then in zip(ends, before, strict=True))
    for pod in pods:
        node.ok("DEL", pod, conf(node, kind="macvlan", master="rail0"))
