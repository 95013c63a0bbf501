"""A wait for the kernel's lock of links, held in another namespace, does not use up a request's time."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from netns.test_netlink import ADD_MEMBERSHIP, GROUP_LINK, SOL_NETLINK, WAIT, gone, inside, repeated, stranger
from support.links_lock import held_for
from support.topology import Pod

from base.kernel import budget, links, netlink, rtnl
from base.state import durable
from base.state.locks import Lock

__all__ = ["inside"]


@pytest.fixture(autouse=True)
def a_request() -> Iterator[None]:
    """Each test is a request with little time, except for the kernel."""
    budget.begin()
    budget.spend(budget.REQUEST - WAIT)
    yield
    budget.begin()


def test_a_list_outlasts_the_kernels_lock(pod: Pod, inside: rtnl.Rtnl) -> None:
    """A list succeeds although the kernel waits for its lock between two parts of the list."""
    for n in range(60):
        pod.ip("link", "add", f"b{n}", "type", "bridge")
    names = inside.dump(links.RTM_GETLINK, links.get_link())
    next(names)
    with held_for(3 * WAIT):
        assert len(list(names)) == 60
    assert budget.left() > 0


def test_a_removal_outlasts_the_kernels_lock(pod: Pod, inside: rtnl.Rtnl) -> None:
    pod.ip("link", "add", "b0", "type", "bridge")
    link = inside.link("b0")
    assert link
    with held_for(3 * WAIT):
        rtnl.delete_link(inside, link.index)
    assert budget.left() > 0
    assert not pod.links()


def test_a_lock_of_ours_outlasts_the_kernels_lock(tmp_path: Path) -> None:
    """The wait for a lock of hpn succeeds although its holder waits for the kernel."""
    path, holds = f"{durable.directory(tmp_path / 'locks')}/lock", threading.Event()

    def hold() -> None:
        with Lock(path, WAIT), rtnl.open_in() as host:
            holds.set()
            assert host.link("lo")

    with held_for(3 * WAIT), ThreadPoolExecutor() as threads:
        holder = threads.submit(hold)
        holds.wait()
        with Lock(path, WAIT):
            pass
        holder.result()


def test_attempts_outlast_the_kernels_lock(inside: rtnl.Rtnl) -> None:
    tries = 0
    with held_for(3 * WAIT):
        for _ in budget.attempts(WAIT, 0.01):
            inside.link("lo")
            tries += 1
    assert tries > 1


def test_what_others_say_is_no_reason_for_patience(pod: Pod, inside: rtnl.Rtnl) -> None:
    inside.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_LINK)

    def drip() -> None:
        # time: the pace of what others say
        time.sleep(WAIT / 2)
        other.sendto(gone(1), (0, GROUP_LINK))

    with (
        stranger(pod) as other,
        repeated(drip),
        pytest.raises(netlink.AnswerLost, match="in the network namespace concerned"),
    ):
        next(netlink.receive(inside.sock))
    assert budget.kernel_left() == budget.KERNEL_TIMEOUT
