"""A VF, or its PF, that is in another namespace when hpn needs it, and returns late or not by itself."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from guest.node import NAME, PF, RDMA, Node, netdev, picture, rdma_devs, vf
from support.topology import Pod, ip, until

from cni.kinds import device

BUSY, NOT_THERE, OWNED = 11, 101, 109


@contextmanager
def lingering(pod: Pod) -> Iterator[Callable[[], None]]:
    """Delete the pod's namespace while a descriptor keeps it alive, empty of processes; the yielded function closes
    it."""
    with ExitStack() as stack:
        fd = os.open(pod.path, os.O_RDONLY)
        stack.callback(os.close, fd)
        pod.gone()
        yield stack.pop_all().close


def test_the_vf_comes_back_late(node: Node, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "HOME_TIMEOUT", 0.5)
    pod, other = make_pod(), make_pod()
    node.ok("ADD", pod, node.conf(vlan=7))
    with lingering(pod) as let_go:
        for _ in range(2):
            error = node.refused("DEL", pod)
            assert (error["code"], node.device in error["msg"]) == (BUSY, True)
            assert (node.record(pod).exists(), len(node.leases())) == (True, 2)
        error = node.refused("ADD", other)
        assert error["code"] == BUSY
        let_go()
    until(node.is_home)
    node.ok("DEL", pod)
    assert node.state_files() == set()
    node.serves(other)


def test_the_vf_comes_back_while_del_waits(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(vlan=7))
    with lingering(pod) as let_go:
        timer = threading.Timer(1.0, let_go)
        timer.start()
        node.ok("DEL", pod)
        timer.join()
    assert node.state_files() == set()


@pytest.fixture
def pf_elsewhere(node: Node, make_pod: Callable[[], Pod]) -> Iterator[Callable[[], Callable[[], None]]]:
    """A function that moves the PF's netdev into a namespace, and returns a function that moves it back."""
    there = make_pod()

    def back() -> None:
        if there.link(PF):
            there.run("ip", "link", "set", PF, "netns", "lab-host").check_returncode()
            ip("link", "set", PF, "up")
            # The interface was down, and lost the MAC that the VF had sent it.
            ip("link", "set", NAME, "up")
            ip("link", "set", NAME, "down")

    def away() -> Callable[[], None]:
        ip("link", "set", PF, "netns", there.name)
        return back

    ip("netns", "attach", "lab-host", str(os.getpid()))
    yield away
    back()
    ip("netns", "delete", "lab-host")


def test_the_pf_is_elsewhere(
    node: Node, make_pod: Callable[[], Pod], pf_elsewhere: Callable[[], Callable[[], None]]
) -> None:
    """Changes that only the PF can restore wait for the PF, and so does the next pod."""
    pod = make_pod()
    node.ok("ADD", pod, node.conf(vlan=7))
    back = pf_elsewhere()
    for _ in range(2):
        error = node.refused("DEL", pod)
        assert (error["code"], "move the interface back" in error["msg"]) == (NOT_THERE, True)
        assert node.record(pod).exists()
    # The VF itself is home.
    assert pod.links() == set()
    assert netdev()["ifname"] == NAME
    assert node.refused("ADD", make_pod())["code"] == OWNED
    back()
    node.ok("DEL", pod)
    assert vf()["vlan_list"] == [{}]
    assert node.state_files() == set()


def test_the_pf_is_elsewhere_and_has_nothing_of_ours(
    node: Node, pod: Pod, pf_elsewhere: Callable[[], Callable[[], None]]
) -> None:
    node.ok("ADD", pod)
    back = pf_elsewhere()
    node.ok("DEL", pod)
    assert node.state_files() == set()
    back()


def test_a_pod_that_hides_its_vf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Netdev and RDMA device are in the pod's own namespace, with a link over the netdev: both return home, and the
    link disappears."""
    before = picture()
    for over in ("pod", "child"):
        pod, child = make_pod(), make_pod()
        node.ok("ADD", pod)
        pod.ip("link", "add", "link", "hpn0", "name", "over0", "type", "macvlan", "mode", "bridge")
        if over == "child":
            pod.ip("link", "set", "over0", "netns", child.name)
        pod.ip("link", "set", "hpn0", "netns", child.name)
        child.ip("link", "set", "hpn0", "name", "data0", "address", "02:00:00:00:00:07")
        pod.run("rdma", "dev", "set", RDMA, "netns", child.name)
        assert (rdma_devs(child.name), child.link("data0") is not None) == ({RDMA}, True)
        node.ok("DEL", pod)
        assert pod.links() == child.links() == set()
        assert picture() == before
        assert node.state_files() == set()
        node.serves(pod)
