"""A change while a driver answers EBUSY, as i40e and ice do while they reset a VF.

The kernel answers so to a move of a link that would get the index of another one, until the other one has gone.
"""

import errno
import time
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from support.topology import Host, Pod, ip

from base.kernel import addresses, budget, links, netns, rtnl
from base.kernel.netlink import Change, attr, u32
from base.kernel.rtnl import Rtnl
from base.protocol.errors import TryAgain, as_cni_error
from base.protocol.result import Route
from cni.kinds import child

INDEX = 7700


@pytest.fixture
def sock(host: Host) -> Iterator[Rtnl]:
    budget.begin()
    with rtnl.open_in() as sock:
        yield sock


@pytest.fixture
def busy(sock: Rtnl, pod: Pod) -> Iterator[Change]:
    """The move of m1 to the pod, with the index of the pod's m0."""
    pod.ip("link", "add", "m0", "index", f"{INDEX}", "type", "bridge")
    ip("link", "add", "m1", "link", "rail0", "type", "macvlan")
    m1 = sock.link("m1")
    assert m1
    with netns.hold_open(pod.path) as fd:
        to_pod = attr(links.IFLA_NET_NS_FD, u32(fd)) + attr(links.IFLA_NEW_IFINDEX, u32(INDEX))
        yield "moving m1", links.RTM_NEWLINK, 0, links.LINK.pack(0, 0, m1.index, 0, 0) + to_pod


@pytest.fixture
def pauses(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """End the "reset" at the third pause; return the number of pauses."""
    found, sleep = list[float](), time.sleep

    def pause(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 3:
            pod.ip("link", "delete", "m0")
        # time: the pause that the program takes
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    return lambda: len(found)


def test_a_move(host: Host, pod: Pod, pauses: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD repeats it too: another link of the pod has the index that ADD chose, until the third pause."""
    pod.ip("link", "add", "m0", "index", f"{INDEX}", "type", "bridge")
    monkeypatch.setattr(child, "unlikely_index", lambda: INDEX)
    conf = host.conf(kind="host-device", master=..., device="rail0", mtu=1400)
    host.ok("ADD", pod, conf)
    link = pod.link()
    assert (link and (link["ifindex"], link["mtu"]), pauses() >= 3) == ((INDEX, 1400), True)
    host.ok("DEL", pod, conf)


def test_one_change(sock: Rtnl, busy: Change, pod: Pod, pauses: Callable[[], int]) -> None:
    rtnl.while_resetting(partial(sock.change, *busy[1:]))
    assert pauses() == 3
    assert pod.link("m1")


def test_changes_in_one_datagram(sock: Rtnl, busy: Change, pod: Pod, pauses: Callable[[], int]) -> None:
    """The kernel would refuse those that it has made already."""
    link = sock.link("rail0")
    assert link
    wanted = [ip_interface("10.9.0.2/24"), ip_interface("fd00:9::2/64")]
    sock.change_all([
        addresses.adding_address(link.index, wanted[0]),
        busy,
        addresses.adding_address(link.index, wanted[1]),
        addresses.adding_route(link.index, Route(ip_network("10.10.0.0/16"), ip_address("10.9.0.1"))),
    ])  # fmt: skip
    assert pauses() == 3
    assert pod.link("m1")
    shown = ip("addr", "show", "dev", "rail0")[0]["addr_info"]
    assert {"10.9.0.2", "fd00:9::2"} <= {address["local"] for address in shown}
    assert [route["dst"] for route in ip("route", "show", "proto", "static")] == ["10.10.0.0/16"]


def test_no_end(sock: Rtnl, busy: Change) -> None:
    with pytest.raises(OSError, match=r"busy") as e:
        sock.change_all([busy])
    assert e.value.errno == errno.EBUSY
    assert isinstance(as_cni_error(e.value), TryAgain)
    assert budget.left() < budget.REQUEST


def test_another_refusal_is_not_repeated(sock: Rtnl, pauses: Callable[[], int]) -> None:
    with pytest.raises(OSError, match=r"No such device"):
        rtnl.while_resetting(lambda: sock.set_up(999_999))
    assert pauses() == 0
