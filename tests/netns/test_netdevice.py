"""The ioctls agree with ``ip`` about a link, and we with the kernel about its name."""

import string
import subprocess

import pytest
from support.topology import Pod

from base.kernel import links, netns, rtnl
from base.protocol import spec

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


NAMES = [
    *("all", "default", "lo0", "conf", "netà", "\u0420rail", "aä", "a\u2007b", "x" * 15, "ä" * 7 + "x", "-a", "..."),
    *(f"a{c}" for c in string.punctuation),
]


def test_the_kernel_accepts_every_name_that_we_accept(pod: Pod) -> None:
    """iproute2 checks fewer names than the kernel, so the kernel's answer remains."""
    refused = dict[str, str]()
    for name in filter(lambda name: not spec.bad_new_ifname(name), NAMES):
        add = ["ip", "-n", pod.name, "link", "add", "name", name, "type", "veth", "peer", "name", "other"]
        made = subprocess.run(add, capture_output=True, text=True, check=False)
        if made.returncode:
            refused[name] = made.stderr
        else:
            pod.ip("link", "delete", "other")
    assert refused == {}
