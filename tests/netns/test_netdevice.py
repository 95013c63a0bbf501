"""The ioctls agree with ``ip`` about a link."""

import pytest
from support.topology import Pod

from base.kernel import links, netns, rtnl

MAC = "02:00:00:00:00:07"


@pytest.fixture
def index(pod: Pod) -> int:
    pod.ip("link", "add", "fifteen-letters", "address", MAC, "type", "veth", "peer", "name", "other")
    link = pod.link("fifteen-letters")
    assert link
    return int(link["ifindex"])


def name_of(pod: Pod, index: int, mac: str = MAC) -> str:
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        return links.name_of(inside.sock, index, mac)


def test_a_link_in_the_sockets_namespace(pod: Pod, index: int) -> None:
    assert name_of(pod, index) == "fifteen-letters"
    pod.ip("link", "set", "fifteen-letters", "name", "b0")
    assert name_of(pod, index) == "b0"


def test_another_mac(pod: Pod, index: int) -> None:
    assert name_of(pod, index, "02:00:00:00:00:08") == ""
    pod.ip("link", "set", "fifteen-letters", "address", "02:00:00:00:00:08")
    assert name_of(pod, index, "02:00:00:00:00:08") == "fifteen-letters"


def test_no_link(pod: Pod, index: int) -> None:
    assert name_of(pod, index + 100) == ""
    pod.ip("link", "delete", "fifteen-letters")
    assert name_of(pod, index) == ""
