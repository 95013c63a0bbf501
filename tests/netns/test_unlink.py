"""The removal of a link: hpn waits for it, and no longer than necessary."""

import errno
import os
import socket
import time

import pytest
from support.topology import Pod, until

from base.kernel import budget, links, netns, rtnl


def make(pod: Pod, name: str = "v0") -> int:
    pod.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    pod.ip("link", "set", name, "up")
    link = pod.link(name)
    assert link
    return int(link["ifindex"])


def delete(inside: rtnl.Rtnl, index: int) -> None:
    """Delete with a fresh budget, as in a new request: on a slow machine one budget does not cover many deletions."""
    budget.begin()
    rtnl.delete_link(inside, index)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_gone_when_it_returns_and_the_socket_goes_on(pod: Pod) -> None:
    before = open_descriptors()
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        for n in range(20):
            index = make(pod)
            delete(inside, index)
            assert inside.link("v0") is None, n
            assert inside.link(index=index) is None
            # The next request ignores other answers, announcements and the late answer of the deletion.
            inside.change_all([links.setting_up(lo) for lo in [inside.link("lo")] if lo])
    assert until(lambda: open_descriptors() == before)  # the requesting thread's descriptor is closed with it


def test_several_by_one_message(pod: Pod) -> None:
    """All that are there go, and others stay; the result has no link that was not in this namespace."""
    before = open_descriptors()
    other = make(pod, "other")
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        budget.begin()
        made = [make(pod, f"v{n}") for n in range(8)]
        assert rtnl.delete_links(inside, made) == set(made)
        assert pod.links() == {"other", "otherp"}
        with pytest.raises(OSError, match="No such device"):
            rtnl.delete_links(inside, [made[0], other])
        assert inside.link(index=other)
        inside.change_all([links.setting_up(lo) for lo in [inside.link("lo")] if lo])
    assert until(lambda: open_descriptors() == before)


def test_what_is_not_there(pod: Pod) -> None:
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        with pytest.raises(OSError, match="No such device") as e:
            delete(inside, 4711)
        assert e.value.errno == errno.ENODEV
        assert inside.link("lo")


def test_with_room_for_no_announcement(pod: Pod) -> None:
    """If the kernel drops announcements for lack of room, hpn queries the link itself."""
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as inside:
        for _ in range(5):
            index = make(pod)
            inside.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            delete(inside, index)
            inside.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            assert inside.link(index=index) is None


def test_the_late_answer_is_nobody_elses(pod: Pod) -> None:
    """Users of one socket number their requests, so none takes another's late answer."""
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as first:
        for _ in range(10):
            index = make(pod)
            with rtnl.adopt(first.sock.fileno()) as one, rtnl.adopt(first.sock.fileno()) as other:
                delete(one, index)
                # time: so that the answer is late; any moment is right
                time.sleep(0.1)
                assert other.link("lo")
                assert other.link("v0") is None
