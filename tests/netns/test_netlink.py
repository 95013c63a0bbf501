"""Sockets receive only the kernel's messages, in bounded time, whatever other processes send to them."""

import errno
import gc
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Interface
from typing import cast

import pytest
from support.topology import Pod

from base.kernel import addresses, budget, links, netlink, netns, rdma_netlink, rtnl
from base.protocol.spec import Program, Request
from cni import main
from ipam import main as ipam

DELLINK, GETADDR, GROUP_LINK, SOL_NETLINK, ADD_MEMBERSHIP = 17, 22, 1, 270, 1
WAIT = 0.5  # seconds


@pytest.fixture(autouse=True)
def a_request(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a request with little time, and with little patience for a silent kernel.  A test that hangs
    fails."""

    def hangs(*_: object) -> None:
        raise AssertionError("it hangs")

    monkeypatch.setattr(budget, "KERNEL_TIMEOUT", WAIT)
    budget.begin()
    budget.spend(budget.REQUEST - WAIT)
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    budget.begin()


@pytest.fixture
def inside(pod: Pod) -> Iterator[rtnl.Rtnl]:
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as it:
        yield it


def stranger(pod: Pod) -> socket.socket:
    """A socket in the namespace that appears to the kernel as another process's."""
    with netns.hold_open(pod.path) as fd:
        sock = netns.run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE))
    sock.bind((0, 0))
    return sock


def message(kind: int, body: bytes, sequence: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body


def gone(index: int) -> bytes:
    """The announcement that a link is gone."""
    return message(DELLINK, struct.pack("=BxHiII", 0, 0, index, 0, 0))


@contextmanager
def repeated(act: Callable[[], object]) -> Iterator[None]:
    """Repeat the act on another thread as fast as possible."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(OSError):
                act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_others_are_refused(pod: Pod, inside: rtnl.Rtnl) -> None:
    """The socket refuses other senders, and so does the launcher's socket, unused before its transfer."""
    with netns.hold_open(pod.path) as fd, stranger(pod) as other:
        unused = netns.run_in(fd, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE))
        with unused, rtnl.adopt(unused.fileno()) as passed:
            for sock in (inside.sock, unused):
                with pytest.raises(ConnectionRefusedError):
                    other.sendto(gone(1), (sock.getsockname()[0], 0))
            assert passed.link("lo")


def test_rdma_sockets_refuse_others_too() -> None:
    try:
        sock = rdma_netlink._socket()
    except OSError as e:
        pytest.skip(f"this kernel has no RDMA ({e.strerror}); runs in the lab")
    with sock:
        assert sock.sock.getpeername() == (0, 0)


def test_another_is_in_the_same_namespace(inside: rtnl.Rtnl) -> None:
    with netlink.open_beside(inside.sock) as other:
        assert netns.cookie(other) == netns.cookie(inside.sock)
        assert other.getsockname() != inside.sock.getsockname()


def test_what_others_announce_is_not_believed(pod: Pod, inside: rtnl.Rtnl) -> None:
    pod.ip("link", "add", "v0", "type", "veth", "peer", "name", "v0p")
    link = inside.link("v0")
    assert link
    inside.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_LINK)
    with stranger(pod) as other:
        other.sendto(gone(link.index), (0, GROUP_LINK))
        with pytest.raises(netlink.AnswerLost) as e:
            rtnl._wait_until_gone(inside, {link.index})
    assert e.value.errno == errno.ETIMEDOUT


@pytest.mark.parametrize("command", ["delete b1", "set v0 nomaster"], ids=["another link's", "as a bridge's port"])
def test_another_end_is_not_taken_for_the_links(pod: Pod, inside: rtnl.Rtnl, command: str) -> None:
    pod.ip("link", "add", "b0", "type", "bridge")
    pod.ip("link", "add", "b1", "type", "bridge")
    pod.ip("link", "add", "v0", "type", "veth", "peer", "name", "v0p")
    pod.ip("link", "set", "v0", "master", "b0")
    link = inside.link("v0")
    assert link
    inside.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_LINK)
    pod.ip("link", *command.split())
    with pytest.raises(netlink.AnswerLost) as e:
        rtnl._wait_until_gone(inside, {link.index})
    assert e.value.errno == errno.ETIMEDOUT


def test_a_flood_does_not_make_it_wait_longer(pod: Pod, inside: rtnl.Rtnl) -> None:
    inside.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_LINK)
    with (
        stranger(pod) as other,
        repeated(lambda: other.sendto(gone(1), (0, GROUP_LINK))),
        pytest.raises(netlink.AnswerLost),
    ):
        next(netlink.receive(inside.sock))


class Flooded:
    """Takes the place of a socket, and always has another foreign message."""

    def recvfrom(self, *_: int) -> tuple[bytes, tuple[int, int]]:
        return gone(1), (4711, 0)


def test_a_flood_without_a_pause_ends() -> None:
    """A flood without a pause ends with an error, although no wait occurs that could time out."""
    with pytest.raises(netlink.AnswerLost):
        next(netlink.receive(cast("socket.socket", Flooded())))


def test_waits_for_the_kernel_come_out_of_one_budget(inside: rtnl.Rtnl) -> None:
    """A thousand waits share one budget; each with its own would take ten minutes."""
    for _ in range(1000):
        with pytest.raises(netlink.AnswerLost):
            next(netlink.receive(inside.sock))


def test_patience_ends(inside: rtnl.Rtnl) -> None:
    """When the patience ends, the error does not blame the pod."""
    with pytest.raises(netlink.AnswerLost, match="it works on links elsewhere"):
        next(netlink.receive(inside.sock))
    assert budget.kernel_left() == budget.left() == 0


def test_a_failure_that_is_kept_does_not_wait(inside: rtnl.Rtnl) -> None:
    """The traceback of a failure holds the wait for its answer, which ended with the answer."""
    budget.begin()
    address = IPv4Interface("192.0.2.1/32")
    with pytest.raises(FileExistsError) as kept:
        inside.change_all([addresses.adding_address(1, address)] * 2)
    time.sleep(WAIT)  # time: the clock is what must not count
    left = budget.left()
    del kept
    gc.collect()
    assert left - budget.left() < WAIT  # time: only the answer's own wait is spent


def test_attempts_come_out_of_one_budget() -> None:
    for _ in range(1000):
        for _ in budget.attempts(1, 0.01):
            pass


def test_all_waits_of_a_request_are_one(inside: rtnl.Rtnl) -> None:
    """All waits of a request share one time.  Answers at hand are still read afterwards."""
    began = time.monotonic()
    for _ in range(1000):
        with pytest.raises(netlink.AnswerLost):
            next(netlink.receive(inside.sock))
        for _ in budget.attempts(1, 0.01):
            pass
    assert time.monotonic() - began > WAIT * 0.9
    assert budget.left() == 0
    assert inside.link("lo")
    budget.extend_for_undo()
    assert budget.left() == budget.UNDOING


@pytest.mark.parametrize("run", [partial(main.run, programs={}), ipam.run], ids=["main", "ipam"])
def test_each_request_has_its_own_budget(run: Program) -> None:
    budget.spend(budget.REQUEST)
    assert run(Request({"CNI_COMMAND": "VERSION"})).exit_code == 0
    assert budget.left() == budget.REQUEST


def overflowed(inside: rtnl.Rtnl, pod: Pod) -> None:
    inside.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_LINK)
    with stranger(pod) as other:
        for _ in range(1000):
            other.sendto(gone(1) + bytes(20000), (0, GROUP_LINK))


def test_a_socket_that_overflowed_is_given_up(pod: Pod, inside: rtnl.Rtnl) -> None:
    """After an overflow a query is repeated on another socket.  For a change, hpn reports that the answer was lost."""
    pod.ip("link", "add", "b0", "type", "bridge")
    link = inside.link("b0")
    assert link
    overflowed(inside, pod)
    assert inside.link("b0") == link
    overflowed(inside, pod)
    with pytest.raises(netlink.AnswerLost, match="the kernel's answer was lost"):
        inside.rename(link.index, "b1")
    assert inside.link("b1")
    overflowed(inside, pod)
    with pytest.raises(netlink.AnswerLost):
        list(inside.dump(links.RTM_GETLINK, links.get_link()))
    assert len(list(inside.dump(links.RTM_GETLINK, links.get_link()))) == 2


def test_a_strict_socket_stays_strict(pod: Pod) -> None:
    """After an overflow its dumps still answer with only what the request names."""
    pod.ip("link", "add", "b0", "type", "bridge")
    pod.ip("address", "add", "10.0.0.1/8", "dev", "b0")
    only = struct.pack("=BBBBI", 0, 0, 0, 0, 1)  # struct ifaddrmsg: the addresses of lo
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd, strictly=True) as inside:
        of_lo = list(inside.dump(GETADDR, only))
        overflowed(inside, pod)
        with pytest.raises(netlink.AnswerLost):
            list(inside.dump(GETADDR, only))
        assert list(inside.dump(GETADDR, only)) == of_lo


def test_a_link_that_stays_is_not_called_gone(pod: Pod, inside: rtnl.Rtnl) -> None:
    """The error states that the link is still there: the answer was lost, and this link cannot be removed."""
    lo = inside.link("lo")
    assert lo
    overflowed(inside, pod)
    with pytest.raises(OSError, match="still exists") as e:
        rtnl.delete_link(inside, lo.index)
    assert e.value.errno == errno.ETIMEDOUT


def test_a_dump_is_repeated_where_links_changed_and_no_more_than_twice(pod: Pod, inside: rtnl.Rtnl) -> None:
    for n in range(60):
        pod.ip("link", "add", f"b{n}", "type", "bridge")
    budget.begin()
    dumps = 0
    for body in inside.dump(links.RTM_GETLINK, links.get_link()):
        if links.parse_link(body).name == "lo":  # the first link of a dump with more parts to come
            dumps += 1
            assert dumps <= 3
            pod.ip("link", "add", f"c{dumps}", "type", "bridge")
    assert dumps == 3


def test_a_dump_of_what_changes_all_the_time_ends(pod: Pod, inside: rtnl.Rtnl) -> None:
    for n in range(60):
        pod.ip("link", "add", f"b{n}", "type", "bridge")
    budget.begin()
    numbers = iter(range(1 << 30))
    with netns.hold_open(pod.path) as fd, rtnl.open_in(fd) as other:
        index = other.link("b59")
        assert index
        with repeated(lambda: other.rename(index.index, f"x{next(numbers)}")):
            for _ in range(20):
                names = [links.parse_link(body).name for body in inside.dump(links.RTM_GETLINK, links.get_link())]
                assert set(names) >= {"lo", *(f"b{n}" for n in range(59))}
                assert len(names) <= 3 * 61
