"""IPv6 duplicate address detection ends before ADD returns, by the kernel's own announcement, and leaves nothing
behind."""

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.namespaces import with_both
from support.topology import Host, Pod, ip, until

from base.kernel import neighbors, netns, rtnl, sysctl
from base.protocol.spec import Reply

DELAY, LISTENING = "ipv6/conf/hpn0/router_solicitation_delay", "ipv6/neigh/hpn0/retrans_time_ms"
OURS = "fd00:56::2"
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
_TRANSMITS = {"net.ipv6.conf.IFNAME.dad_transmits": "4"}

pytestmark = with_both


def flags(pod: Pod, address: str = OURS) -> set[str]:
    """The address's flags by iproute2's names."""
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    (found,) = [a for a in link["addr_info"] if a["local"] == address]
    return {k for k, v in found.items() if v is True}


def settings(pod: Pod) -> tuple[str, str]:
    return pod.sysctl(DELAY), pod.sysctl(LISTENING)


def taken(address: str) -> None:
    """Give the address to a neighbor on the link."""
    ip("addr", "add", f"{address}/64", "dev", "fabric", "nodad")
    until(lambda: ip("-6", "route", "show", "table", "local", address))  # the kernel adds it a moment later


def hide(pod: Pod, directory: str) -> None:
    """Mount an empty directory over one of the pod's, for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(what: str, where: str, kind: str, flags: int) -> None:
        if libc.mount(what.encode(), where.encode(), kind.encode(), flags, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), where)

    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    with netns.hold_open(pod.path) as fd:
        netns.run_in(fd, lambda: mount("none", directory, "tmpfs", 0))


@contextmanager
def during_detection(host: Host, pod: Pod, conf: dict[str, Any]) -> Iterator["Future[Reply]"]:
    """Run an ADD, and yield while it waits for the detection, for seconds."""
    with ThreadPoolExecutor() as threads:
        reply = threads.submit(host.call, "ADD", pod, conf)
        until(lambda: pod.link() and OURS in str(pod.ip("addr", "show", "dev", "hpn0")))
        yield reply


def test_an_unknown_neighbour_is_reached_at_once(host: Host, pod: Pod) -> None:
    """An unknown neighbor is reachable at once; an address still tentative could not solicit it."""
    ip("addr", "add", "fd00:56::1/64", "dev", "fabric", "nodad")
    host.ok("ADD", pod)
    assert flags(pod) == set()
    assert pod.ping("fd00:56::1")


def test_the_link_local_address_is_there_too(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, host.conf(dad="wait"))
    (link,) = pod.ip("addr", "show", "dev", "hpn0")
    assert [a.get("tentative") for a in link["addr_info"] if a["local"].startswith("fe80")] == [None]


def test_as_before_afterwards(host: Host, pod: Pod) -> None:
    before = pod.sysctl("ipv6/conf/default/router_solicitation_delay"), "1000"
    host.ok("ADD", pod)
    assert settings(pod) == before


def test_what_the_configuration_sets_stands(host: Host, pod: Pod) -> None:
    values = {
        "net.ipv6.conf.IFNAME.router_solicitation_delay": "3",
        "net.ipv6.neigh.IFNAME.retrans_time_ms": "700",
    }
    conf = host.conf(sysctl=values)
    result = host.ok("ADD", pod, conf)
    assert flags(pod) == set()
    assert settings(pod) == ("3", "700")
    assert host.checked(pod, conf, result).exit_code == 0


def test_listens_for_the_time_that_is_asked_for(host: Host, pod: Pod) -> None:
    with during_detection(host, pod, host.conf(dadTime=500, sysctl=_TRANSMITS)) as reply:
        assert settings(pod) == ("0", "500")
        assert not reply.done()
        assert flags(pod) == {"tentative"}
    assert reply.result().exit_code == 0
    assert flags(pod) == set()
    assert settings(pod) == (pod.sysctl("ipv6/conf/default/router_solicitation_delay"), "1000")


def test_what_somebody_sets_meanwhile_stands(host: Host, pod: Pod) -> None:
    """A value set during the detection, for example by a router's advertisement, is kept."""
    with during_detection(host, pod, host.conf(dadTime=500, sysctl=_TRANSMITS)) as reply:
        pod.sysctl(LISTENING, "600")
    assert reply.result().exit_code == 0
    assert settings(pod) == (pod.sysctl("ipv6/conf/default/router_solicitation_delay"), "600")


# A macvlan passes an answer to all nodes on from a worker of the kernel, which needs a processor within that time.
@pytest.mark.parametrize("keys", [{"dadTime": 1000}, {"dad": "wait"}], ids=["quick", "wait"])
def test_an_address_in_use(host: Host, pod: Pod, keys: dict[str, Any]) -> None:
    """ADD undoes everything if the address is in use, and a repeated ADD gets the next address."""
    taken(OURS)
    before = host.picture(pod)
    error = host.refused("ADD", pod, host.conf(**keys))
    assert error["code"] == 104
    assert OURS in error["msg"]
    assert "exclude" in error["msg"]
    assert host.picture(pod) == before
    assert "fd00:56::3/64" in {a["address"] for a in host.ok("ADD", pod, host.conf(**keys))["ips"]}


def test_an_address_of_another_pod_here(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD names the pod of this node that has the address, and succeeds after that pod's end."""
    one, two = make_pod(), make_pod()
    host.ok("ADD", one)
    other = host.conf(name="other", dad="wait")
    error = host.refused("ADD", two, other)
    assert error["code"] == 104
    assert f"hpn0 of container {one.name[:12]}, network rail0 of this node has it: ADD succeeds once" in error["msg"]
    host.ok("DEL", one)
    host.ok("ADD", two, other)


@pytest.mark.parametrize("strict", ["1", "2"])
def test_the_mac_in_use(host: Host, pod: Pod, strict: str) -> None:
    """ADD refuses a MAC in use by its link-local address.  With accept_dad 2 the kernel disables IPv6 on the
    interface."""
    taken("fe80::ff:fe00:2a")
    conf = host.conf(mac="02:00:00:00:00:2a", sysctl={"net.ipv6.conf.IFNAME.accept_dad": strict}, dadTime=1000)
    error = host.refused("ADD", pod, conf)
    assert error["code"] == 104
    assert "fe80::ff:fe00:2a" in error["msg"]
    assert "MAC 02:00:00:00:00:2a" in error["msg"]
    assert not pod.links()


def test_without_detection_nothing_is_waited_for(host: Host, pod: Pod) -> None:
    """If the pod's namespace disables the detection, its addresses are never tentative, and ADD does not wait."""
    for where in ("all", "default"):
        pod.sysctl(f"ipv6/conf/{where}/accept_dad", "0")
    taken(OURS)
    host.ok("ADD", pod)
    assert flags(pod) == set()


def test_no_carrier(host: Host, pod: Pod) -> None:
    """ADD logs that the detection follows; the addresses work once there is a cable."""
    pod.quick_dad()
    ip("link", "set", "fabric", "down")
    reply = host.call("ADD", pod)
    assert reply.exit_code == 0
    assert "no carrier yet; duplicate detection of fd00:56::2" in "\n".join(reply.log)
    assert settings(pod) == ("0", "1000")
    ip("link", "set", "fabric", "up")
    until(lambda: flags(pod) == set())


def test_a_namespace_without_the_settings(host: Host, pod: Pod) -> None:
    """In a namespace without these settings the address is optimistic, as with a user namespace on an older kernel.  A
    child process hides the settings."""
    child = os.fork()
    if not child:
        status = 1
        try:
            hide(pod, "/proc/sys/net/ipv6/neigh")
            reply = host.call("ADD", pod)
            said = "no sysctls of neighbours, so fd00:56::2 is optimistic" in "\n".join(reply.log)
            status = 0 if reply.exit_code == 0 and said else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "optimistic" in flags(pod)


@contextmanager
def listening(pod: Pod, index: int) -> Iterator[neighbors.Detection]:
    with (
        netns.hold_open(pod.path) as fd,
        rtnl.open_in(fd) as inside,
        neighbors.listen_to_detection(inside, index, [IPv6Address(OURS)]) as heard,
    ):
        yield heard


def test_announcements_that_do_not_fit(pod: Pod) -> None:
    """If the kernel drops announcements for lack of room, hpn queries the link instead."""
    pod.ip("link", "add", "hpn0", "type", "veth", "peer", "name", "peer")
    link = pod.link()
    assert link
    with listening(pod, link["ifindex"]) as heard:
        heard.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        pod.ip("link", "set", "peer", "up")
        pod.ip("link", "set", "hpn0", "up")
        pod.ip("addr", "add", f"{OURS}/64", "dev", "hpn0")
        until(lambda: flags(pod) == set())
        assert heard.link_when_ready(10)
        assert heard.until_ended(10)


def test_another_interface_is_not_taken_for_ours(pod: Pod) -> None:
    pod.ip("link", "add", "hpn0", "type", "veth", "peer", "name", "peer")
    with listening(pod, 4711) as heard:
        for name in ("peer", "hpn0"):
            pod.ip("link", "set", name, "up")
        pod.ip("addr", "add", f"{OURS}/64", "dev", "hpn0", "nodad")
        until(lambda: "LOWER_UP" in str(pod.link()))
        assert not heard.link_when_ready(0.1)
        assert not heard.until_ended(0.1)
        assert heard.tentative == [IPv6Address(OURS)]


def test_all_or_nothing_is_exchanged(pod: Pod) -> None:
    keys = {"ipv6/conf/lo/router_solicitation_delay": "7", "ipv6/neigh/absent/retrans_time_ms": "20"}
    before = pod.sysctl("ipv6/conf/lo/router_solicitation_delay")
    with netns.hold_open(pod.path) as fd, pytest.raises(FileNotFoundError):
        sysctl.exchange(fd, keys)
    assert pod.sysctl("ipv6/conf/lo/router_solicitation_delay") == before


def at_home() -> tuple[str, ...]:
    """The settings of the interface eth9 on the host."""
    root = Path("/proc/sys/net/ipv6")
    names = ("conf/eth9/router_solicitation_delay", "neigh/eth9/retrans_time_ms", "conf/eth9/ndisc_notify")
    return tuple((root / name).read_text().strip() for name in names)


def test_nothing_of_it_comes_home(host: Host, pod: Pod) -> None:
    """The host's interface comes home with its own settings, wherever ADD is killed: the kernel resets them on a move
    to another namespace."""
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    for name in ("eth9", "far9"):
        ip("link", "set", name, "up")
    conf = host.conf(kind="host-device", device="eth9", master=...)
    before = at_home()
    for step in drawn.steps():
        if not killed_at(step, host.request("ADD", pod, conf)):
            break
        host.ok("DEL", pod, conf)
        assert at_home() == before, f"after step {step}"
    host.ok("DEL", pod, conf)
    assert at_home() == before
    assert step > 20


def test_nothing_of_it_comes_home_with_a_duplicate(host: Host, pod: Pod) -> None:
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    for name in ("eth9", "far9"):
        ip("link", "set", name, "up")
    ip("addr", "add", f"{OURS}/64", "dev", "far9", "nodad")
    before = at_home()
    error = host.refused("ADD", pod, host.conf(kind="host-device", device="eth9", master=...))
    assert error["code"] == 104
    assert at_home() == before


def test_each_of_several_attachments(host: Host, pod: Pod) -> None:
    """Several interfaces of a pod on one link are not duplicates of one another."""
    for n in range(4):
        host.ok("ADD", pod, CNI_IFNAME=f"hpn{n}")
    found = [a for link in pod.ip("-6", "addr", "show", "scope", "global") for a in link["addr_info"]]
    assert len([a for a in found if a]) == 4
    assert not [a for a in found if a.get("tentative") or a.get("dadfailed")]


@pytest.mark.parametrize("dad", ["quick", "wait"])
def test_many_pods_at_once(host: Host, make_pod: Callable[[], Pod], dad: str) -> None:
    pods = [make_pod() for _ in range(4)]
    with ThreadPoolExecutor(len(pods)) as threads:
        for reply in threads.map(lambda pod: host.call("ADD", pod, host.conf(dad=dad)), pods):
            assert reply.exit_code == 0, reply
    assert all("tentative" not in str(pod.ip("addr", "show", "dev", "hpn0")) for pod in pods)
