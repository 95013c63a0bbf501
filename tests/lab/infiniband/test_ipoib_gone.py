"""An ipoib when its pod, master or plugin ends at a bad moment, or when its pod hides it."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from guest import hca
from guest.hca import NAME, PF, Node, ipoib
from guest.recovery import recovered
from support.topology import Pod, ip, until

from cni import collect

pytestmark = pytest.mark.usefixtures("masters_up")
GONE = 107


@pytest.mark.parametrize("ends", ["DEL", "GC", "ADD"])
def test_the_namespace_died(
    node: Node, make_pod: Callable[[], Pod], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel moves the child to the host, under a name of its own if the child's name is taken."""
    pods, conf = [make_pod(), make_pod()], ipoib(node, pkey="0x8001")
    for pod in pods:
        node.ok("ADD", pod, conf)
    for pod in pods:
        pod.gone()
    if ends == "ADD":  # ADD removes attachments of dead pods
        monkeypatch.setattr(collect, "EVERY", 1)  # otherwise only a random part of the requests collect
        new = make_pod()
        until(lambda: node.ok("ADD", new, conf) and not node.ok("DEL", new, conf) and not node.state_files())
    elif ends == "GC":
        node.ok("GC", None, conf | {"cni.dev/valid-attachments": []})
    else:
        for pod in pods:
            node.ok("DEL", pod, conf)
    assert node.state_files() == set()


def test_a_link_of_the_hosts_in_its_place(node: Node, pod: Pod) -> None:
    """A host's link of the same name or kind stays untouched."""
    conf = ipoib(node)
    node.ok("ADD", pod, conf)
    ip("link", "add", "link", PF, "name", "hpn0", "type", "ipoib", "pkey", "0x8001")
    try:
        pod.gone()
        node.ok("DEL", pod, conf)
        assert {"hpn0"} == {link["ifname"] for link in ip("link")} & {"hpn0", *(f"dev{n}" for n in range(99))}
    finally:
        ip("link", "delete", "hpn0")


def test_the_pod_deleted_it(node: Node, pod: Pod) -> None:
    conf = ipoib(node)
    result = node.ok("ADD", pod, conf)
    pod.ip("link", "delete", "hpn0")
    assert json.loads(node.checked(pod, conf, result).stdout)["code"] == GONE
    node.ok("DEL", pod, conf)
    assert pod.links() == set()


def test_the_pod_renamed_it(node: Node, pod: Pod) -> None:
    conf = ipoib(node)
    node.ok("ADD", pod, conf)
    pod.ip("link", "set", "hpn0", "name", "mine")
    node.ok("DEL", pod, conf)
    assert (pod.links(), node.state_files()) == (set(), set())


@pytest.mark.parametrize("dies", [False, True])
def test_the_pod_hides_it(node: Node, make_pod: Callable[[], Pod], dies: bool) -> None:
    """DEL finds the child in a namespace that the pod made."""
    pod, nested = make_pod(), make_pod()
    conf = ipoib(node)
    node.ok("ADD", pod, conf)
    pod.ip("link", "set", "hpn0", "netns", nested.name)
    nested.ip("link", "set", "hpn0", "name", "mine")
    if dies:
        nested.gone()
        until(hca.children)
    node.ok("DEL", pod, conf)
    assert (dies or nested.links() == set(), node.state_files()) == (True, set())


def test_its_namespace_lives_on(node: Node, pod: Pod) -> None:
    """A descriptor holds the namespace: the child arrives after DEL, and its address stays reserved until a reboot."""
    conf = ipoib(node)
    node.ok("ADD", pod, conf)
    with open(pod.path):
        pod.gone()
        reply = node.call("DEL", pod, conf)
        assert (reply.exit_code, ["has not come to the host" in line for line in reply.log]) == (0, [True])
        assert ("addresses may be in use" in str(reply.log), node.state_files()) == (True, set())
        assert node.leases()
    (name,) = until(hca.children)
    ip("link", "delete", name)


def test_the_pod_gave_it_to_another_and_died(node: Node, make_pod: Callable[[], Pod]) -> None:
    conf, (pod, friend) = ipoib(node), (make_pod(), make_pod())
    node.ok("ADD", pod, conf)
    pod.ip("link", "set", "hpn0", "netns", friend.name)
    pod.gone()
    reply = node.call("DEL", pod, conf)
    assert (reply.exit_code, "addresses may be in use" in str(reply.log)) == (0, True)
    assert (friend.links(), bool(node.leases())) == ({"hpn0"}, True)
    friend.ip("link", "delete", "hpn0")


def test_it_leaves_the_host_before_it_is_removed(node: Node, make_pod: Callable[[], Pod]) -> None:
    """The child still exists in another namespace, so its address stays reserved."""
    conf, (pod, friend) = ipoib(node), (make_pod(), make_pod())
    node.ok("ADD", pod, conf)
    pod.gone()
    (name,) = until(hca.children)

    def move(event: str, _: object) -> None:
        if event == "os.chmod" and hca.children():  # DEL records that it found the child
            ip("link", "set", name, "netns", friend.name)

    if not (plugin := os.fork()):
        sys.addaudithook(move)
        os._exit(node.call("DEL", pod, conf).exit_code)
    assert os.waitpid(plugin, 0)[1] == 0
    assert (friend.links(), node.state_files(), bool(node.leases())) == ({name}, set(), True)
    friend.ip("link", "delete", name)


def test_its_master_is_no_more(node: Node, pod: Pod) -> None:
    conf = ipoib(node, master=NAME)
    result = node.ok("ADD", pod, conf)
    (Path("/sys/bus/pci/devices") / node.device / "driver/unbind").write_text(node.device)
    try:
        assert pod.links() == set()
        assert json.loads(node.checked(pod, conf, result).stdout)["code"] == GONE
        pod.gone()
        node.ok("DEL", pod, conf)
        assert node.state_files() == set()
    finally:
        hca.drive(node.device, "testib")
        until(lambda: NAME in {link["ifname"] for link in ip("link")})
        ip("link", "set", NAME, "up")


def test_its_master_is_called_otherwise(node: Node, pod: Pod) -> None:
    conf = ipoib(node)
    result = node.ok("ADD", pod, conf)
    ip("link", "set", PF, "down")
    ip("link", "set", PF, "name", "other0")
    try:
        assert "master 'ib0'" in node.checked(pod, conf, result).stdout
        node.ok("DEL", pod, conf)
        assert pod.links() == set()
    finally:
        ip("link", "set", "other0", "name", PF)
        ip("link", "set", PF, "up")


def test_a_record_that_cannot_be_read(node: Node, pod: Pod) -> None:
    conf = ipoib(node)
    node.ok("ADD", pod, conf)
    node.record(pod).write_bytes(b"")
    assert node.refused("DEL", pod, conf)["code"] == 108
    assert (pod.links(), node.leases()) == (set(), set())
    node.ok("DEL", pod, conf)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, command: str) -> None:
    conf = ipoib(node, pkey="0x8001", mtu=2000)
    for where in recovered(node, pod, command, conf):
        assert hca.children() == [], f"on the host {where}"
