"""A lost VF: hpn inspect finds it, hpn check reports it, hpn repair restores it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import drawn
import pytest
from guest.node import NAME, RDMA, Node, netdev, picture, rdma_devs
from netns.operating import said, told
from support.killing import killed_at
from support.topology import Pod, until

from cni.kinds import device

CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "mtu": 1400}


@contextmanager
def held(pod: Pod) -> Iterator[int]:
    """A process of another namespace holds the pod's namespace by a descriptor."""
    fd = os.open(pod.path, os.O_RDONLY)
    with subprocess.Popen(["sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE, pass_fds=[fd]) as process:
        os.close(fd)
        try:
            assert process.stdout
            assert process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_what_is_known_of_a_vf(node: Node, pod: Pod) -> None:
    before = picture()
    node.ok("ADD", pod, node.conf(**CHANGES))
    (listed,) = told(node, "list")
    assert (listed["device"], listed["rdma"], listed["state"]) == (node.device, [RDMA], "attached")
    for what in (node.device, RDMA, NAME, "10.56.0.2"):
        (known,) = told(node, "inspect", what)
        assert (known["now"]["where"], known["now"]["name"]) == ("pod", "hpn0")
    assert known["rdma"]["devices"] == [RDMA]
    said(node, "check", node.device)
    node.ok("DEL", pod, node.conf(**CHANGES))
    assert picture() == before


def test_at_home_under_the_pods_name(node: Node, pod: Pod) -> None:
    """The kernel brings the VF home when the pod's namespace ends."""
    before = picture()
    node.ok("ADD", pod, node.conf(**CHANGES))
    pod.gone()
    until(node.is_home)
    (known,) = told(node, "inspect", node.device)
    assert (known["state"], known["now"]["where"], known["now"]["name"]) == ("dead", "host", "hpn0")
    assert netdev("hpn0")["mtu"] == 1400
    said(node, "check", status=1)
    (step,) = told(node, "repair", node.device)
    assert step["done"]
    assert picture() == before
    assert node.leases() == set()


def test_in_a_dead_pods_namespace(node: Node, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "HOME_TIMEOUT", 0.5)
    before = picture()
    node.ok("ADD", pod, node.conf(**CHANGES))
    with held(pod) as process:
        pod.gone()
        (known,) = told(node, "inspect", node.device)
        assert (known["state"], known["now"]["where"], known["now"]["name"]) == ("dead", "elsewhere", "hpn0")
        assert f"process {process} " in known["now"]["words"]
        assert not node.is_home()
        (step,) = told(node, "repair", "--dry-run")
        assert not node.is_home()
        (step,) = told(node, "repair")
        assert step["done"]
        assert node.is_home()
        assert RDMA in rdma_devs()
        assert picture() == before
    assert node.state_files() == set()


def test_an_add_killed_at_every_step(node: Node, pod: Pod) -> None:
    before = picture()
    for step in drawn.steps():
        if not killed_at(step, node.request("ADD", pod, node.conf(**CHANGES))):
            break
        if [a["state"] for a in told(node, "list")] == ["attached"]:
            node.ok("DEL", pod, node.conf(**CHANGES))
        told(node, "repair")
        assert picture() == before, f"step {step}"
        assert node.state_files() == set(), f"step {step}"
    node.ok("DEL", pod, node.conf(**CHANGES))
    assert step > 10
