"""A hostile pod with a VF; tests/attack/hostile.py has its actions.

Whatever the pod does, ADD and DEL end, and after DEL the host has the VF and its RDMA device as before.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest.node import RDMA, Node, rdma_devs
from support.elapsed import Elapsed
from support.topology import Pod

HOSTILE = Path(__file__).parents[1] / "attack" / "hostile.py"
# docs/user/security.md promises 8 s of waits.  In an emulated machine the work itself takes many times longer, and the
# pod uses all emulated CPUs: here it is enough that every command ends.
BOUND = 60.0
HOLDING = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
time.sleep(1000)
"""


@contextmanager
def running(pod: Pod, *words: str) -> Iterator[None]:
    """Run the command in the pod during the block; it reports when it is ready."""
    argv = ["ip", "netns", "exec", pod.name, sys.executable, *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def timed(node: Node, command: str, pod: Pod) -> int:
    elapsed = Elapsed()
    reply = node.call(command, pod, node.conf(vlan=7))
    took = elapsed.seconds()
    assert took < BOUND, f"{command} took {took:.1f} s: {reply}"
    return reply.exit_code


@pytest.mark.parametrize(
    "attack", ["unicast {pid}", "multicast", "announcements", "renames", "decoys", "updown", "macs", "altnames"]
)
def test_the_vf_comes_home(node: Node, make_pod: Callable[[], Pod], attack: str) -> None:
    pod = make_pod()
    with running(pod, str(HOSTILE), *attack.format(pid=os.getpid()).split()):
        for _ in range(2):
            timed(node, "ADD", pod)
            assert timed(node, "DEL", pod) == 0
    assert (timed(node, "DEL", pod), node.leases()) == (0, set())
    assert RDMA in rdma_devs()


def test_its_rdma_device_is_held_open(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The kernel takes the device from a process that holds it open (disassociate_ucontext), so DEL need not wait."""
    pod, other = make_pod(), make_pod()
    assert timed(node, "ADD", pod) == 0
    verbs = [
        p.name for p in Path("/sys/class/infiniband_verbs").glob("uverbs*") if (p / "ibdev").read_text().strip() == RDMA
    ]
    assert verbs
    with running(pod, "-c", HOLDING, f"/dev/infiniband/{verbs[0]}"):
        assert timed(node, "DEL", pod) == 0
        assert RDMA in rdma_devs()
        assert timed(node, "ADD", other) == 0
        assert rdma_devs(other.name) == {RDMA}
        assert timed(node, "DEL", other) == 0
