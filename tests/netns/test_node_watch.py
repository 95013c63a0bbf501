"""The watch accepts the kernel's messages, and ignores forged ones."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node_loop import turn
from support.topology import Host, Pod, ip, until

from base.kernel import events
from node.health.watch import Watch

SOME_DEVICE = next(iter(Path("/sys/bus/pci/devices").glob("*")), None)


class Heard:
    """A watch and its reports; each report states whether devices may have changed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.said = list[bool]()
        self.watch = Watch(self.loop, self.said.append)
        # Other devices of the machine may send events meanwhile.
        self.loop.remove_reader(self.watch._sockets[1].fileno())

    def next(self) -> list[bool]:
        """The reports since the last call, after a quiet moment."""
        self.said.clear()
        self._turn()
        return list(self.said)

    def hears(self) -> set[bool]:
        """The kinds of reports, after a wait for at least one.

        Their number is the kernel's: on a busy machine two of its messages may be 30 ms apart, which makes two reports.
        """
        self.said.clear()
        until(self._turn)
        self._turn()
        return set(self.said)

    def _turn(self) -> list[bool]:
        for _ in range(6):
            turn(self.loop, 0.05)
        return self.said


@pytest.fixture
def heard(host: Host) -> Iterator[Heard]:
    one = Heard()
    one.next()
    yield one
    one.watch.close()
    one.loop.close()


@pytest.fixture
def no_ipv6(host: Host) -> None:
    """No address of the kernel's own, which soon is no longer tentative."""
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")


@pytest.mark.usefixtures("no_ipv6")
def test_a_carrier(heard: Heard) -> None:
    heard.watch.software = frozenset({"rail0"})
    assert heard.watch.links["rail0"].carrier
    ip("link", "set", "fabric", "down")
    assert heard.hears() == {False}
    assert (heard.watch.links["rail0"].up, heard.watch.links["rail0"].carrier) == (True, False)
    ip("link", "set", "fabric", "up")
    assert heard.hears() == {False}
    assert heard.watch.links["rail0"].carrier


def test_an_altname(heard: Heard) -> None:
    """udev gives an interface its altnames after the event of the interface, and a selector may have one."""
    heard.watch.software = None
    for change in ("add", "del"):
        ip("link", "property", change, "dev", "rail0", "altname", "the-fabric-of-rail-0")
        assert heard.hears() == {True}


def test_addresses(heard: Heard) -> None:
    """An address that the host adds to a device or removes changes what a pod may have."""
    assert (ip("address", "add", "192.0.2.1/24", "dev", "rail0"), heard.next()) == ([], [])
    heard.watch.software = None
    for address in ("192.0.2.2/24", "fd00:7::7/64"):
        for change in ("add", "del"):
            ip("address", change, address, "dev", "rail0")
            assert heard.hears() == {True}


def test_links_without_a_device_count_where_they_are_offered(heard: Heard, pod: Pod) -> None:
    ip("link", "add", "link", "rail0", "name", "d0", "type", "macvlan")
    assert (heard.next(), "d0" in heard.watch.links) == ([], True)
    heard.watch.software = None
    ip("link", "set", "d0", "name", "d1")
    assert heard.hears() == {True}
    assert {"d0", "d1"} & heard.watch.links.keys() == {"d1"}
    ip("link", "set", "d1", "netns", pod.name)
    assert heard.hears() == {True}
    assert "d1" not in heard.watch.links
    assert heard.watch.moved == {"d1"}
    pod.ip("link", "set", "d1", "netns", str(os.getpid()))
    assert heard.hears() == {True}
    assert heard.watch.moved == set()
    ip("link", "delete", "d1")
    assert (heard.hears(), heard.watch.moved) == ({True}, set())


@pytest.mark.usefixtures("no_ipv6")
@pytest.mark.parametrize("number", [1, 12])
def test_links_that_no_resource_can_have(heard: Heard, pod: Pod, number: int) -> None:
    """The ends of pods' interfaces on the host, in a bridge or not, and links that are made there before they move to
    a pod: no report, so no reading of devices, however many there are."""
    heard.watch.software = frozenset({"rail0"})
    ip("link", "add", "br0", "up", "type", "bridge")
    for n in range(number):
        ip("link", "add", f"cali{n}", "type", "veth", "peer", "name", f"eth{n}", "netns", pod.name)
        ip("link", "set", f"cali{n}", "up", *(("master", "br0") if n % 2 else ()))
        pod.ip("link", "set", f"eth{n}", "up")
        ip("address", "add", "169.254.1.1/32", "dev", f"cali{n}")
        ip("link", "add", "link", "rail0", "name", f"tmp{n}", "type", "macvlan")
        ip("link", "set", f"tmp{n}", "netns", pod.name)
    assert (heard.next(), {"cali0", "br0"} <= heard.watch.links.keys()) == ([], True)
    for n in range(number):
        ip("link", "delete", f"cali{n}")
    assert (heard.next(), heard.watch.moved, "cali0" in heard.watch.links) == ([], set(), False)


@pytest.mark.usefixtures("no_ipv6")
def test_a_link_that_a_resource_may_have(heard: Heard, pod: Pod) -> None:
    """One that a selector names comes, by a new name too, changes, goes to a pod and comes home."""
    heard.watch.software = frozenset({"rail9", "the-uplink"})
    ip("link", "add", "br0", "up", "type", "bridge")
    ip("link", "add", "tmp9", "type", "veth", "peer", "name", "far9")
    assert heard.next() == []
    ip("link", "set", "tmp9", "name", "rail9")
    assert heard.hears() == {True}
    ip("link", "set", "rail9", "up")
    ip("link", "set", "far9", "up")
    assert heard.hears() == {False}
    for change in (("address", "add", "192.0.2.2/24", "dev", "rail9"), ("link", "set", "rail9", "master", "br0")):
        ip(*change)
        assert True in heard.hears()
    ip("link", "set", "rail9", "netns", pod.name)
    assert (True in heard.hears(), heard.watch.moved) == (True, {"rail9"})
    pod.ip("link", "set", "rail9", "netns", str(os.getpid()))
    assert (True in heard.hears(), heard.watch.moved) == (True, set())
    ip("link", "set", "rail9", "name", "tmp9")
    assert heard.hears() == {True}
    ip("link", "property", "add", "dev", "far9", "altname", "the-uplink")
    assert heard.hears() == {True}
    ip("link", "delete", "far9")
    assert heard.hears() == {True}


@pytest.mark.usefixtures("no_ipv6")
def test_a_port_of_a_bridge(heard: Heard) -> None:
    """It is no device, and an interface that becomes one is a device no more."""
    heard.watch.software = None
    ip("link", "add", "br0", "up", "type", "bridge")
    ip("link", "set", "rail0", "master", "br0")
    assert heard.hears() == {True}
    ip("link", "set", "rail0", "down")
    heard.next()
    ip("link", "set", "rail0", "name", "rail9")
    assert heard.next() == []


def test_more_than_the_socket_holds(heard: Heard) -> None:
    """The watch reads the state again after an overflow."""
    for sock in heard.watch._sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for number in range(30):
        ip("link", "set", "rail0", "up" if number % 2 else "down")
    ip("link", "set", "fabric", "down")
    ip("link", "set", "rail0", "name", "rail9")
    assert heard.hears() == {True}
    assert "rail0" not in heard.watch.links
    assert not heard.watch.links["rail9"].carrier


def test_an_interface_that_came_home_unheard(heard: Heard, pod: Pod) -> None:
    """An interface that came home during an overflow is no longer a pod's, so its removal counts."""
    heard.watch.software = None
    ip("link", "add", "link", "rail0", "name", "d0", "type", "macvlan")
    ip("link", "set", "d0", "netns", pod.name)
    heard.next()
    assert heard.watch.moved == {"d0"}
    heard.watch._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for number in range(30):
        ip("link", "set", "rail0", "up" if number % 2 else "down")
    pod.ip("link", "set", "d0", "netns", str(os.getpid()))
    heard.next()
    ip("link", "delete", "d0")
    assert (heard.hears(), heard.watch.moved) == ({True}, set())


def test_pods_interfaces_are_not_kept_in_mind(heard: Heard, pod: Pod) -> None:
    """The watch does not remember pods' interfaces: each pod of another plugin adds one with a new name."""
    ip("link", "add", "link", "rail0", "name", "d0", "type", "macvlan")
    ip("link", "set", "d0", "netns", pod.name)
    assert (heard.next(), heard.watch.moved) == ([], set())


def test_messages_in_the_kernels_name(heard: Heard) -> None:
    """The watch ignores messages of a process, which may send to the group with CAP_NET_ADMIN in this namespace."""
    index = heard.watch.links["rail0"].index
    body = struct.pack("=BxHiII", 0, 1, index, 0, 0) + struct.pack("=HH6sxx", 10, 3, b"rail0\0")
    body += struct.pack("=HHI", 8, 4, 1500)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as other:
        for kind in (16, 17):
            other.sendto(struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body, (0, 1))
    assert (heard.next(), heard.watch.links["rail0"].carrier) == ([], True)


def test_a_device_node_that_any_container_may_get(heard: Heard) -> None:
    """A module such as rdma_ucm makes such a node, and the CDI files must name it then."""
    heard.loop.add_reader(heard.watch._sockets[1].fileno(), heard.watch._read_uevents)
    next(iter(Path("/sys/devices/virtual/misc").glob("*/uevent"))).write_text("change")
    assert True in heard.hears()


@pytest.fixture
def device() -> str:
    if not SOME_DEVICE:
        pytest.skip("this machine has no PCI device; runs in the lab")
    return str(SOME_DEVICE.resolve()).removeprefix("/sys")


def test_an_event_of_the_kernels(device: str) -> None:
    """The watch receives an event triggered by hand; the machine's own namespace may have others at the same time."""
    with events.open_devices() as sock:
        Path(f"/sys{device}/uevent").write_text("change")
        assert {"ACTION": "change", "DEVPATH": device, "SUBSYSTEM": "pci"}.items() <= _first(sock, device).items()


FORGED = "remove@/devices/hpn-test\0ACTION=remove\0DEVPATH=/devices/hpn-test\0SUBSYSTEM=pci\0"


def test_an_event_that_a_process_sent_to_the_group(device: str) -> None:
    with events.open_devices() as sock:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, events.NETLINK_KOBJECT_UEVENT) as other:
            other.sendto(FORGED.encode(), (0, 1))
        Path(f"/sys{device}/uevent").write_text("change")
        assert _first(sock, device)["DEVPATH"] == device


def test_an_event_that_a_process_had_the_kernel_send(device: str) -> None:
    """The watch ignores an event that another process made the kernel send, from port 0 (uevent_net_rcv)."""
    code = (
        "import socket, struct, sys; data = sys.stdin.buffer.read();"
        "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15);"
        "s.sendto(struct.pack('=IHHII', 16 + len(data), 16, 1, 0, 0) + data, (0, 0))"
    )
    with events.open_devices() as sock, events.open_devices() as plain:
        subprocess.run([sys.executable, "-c", code], input=FORGED.encode(), check=True)
        Path(f"/sys{device}/uevent").write_text("change")
        seen = []
        while not seen or b"hpn-test" not in seen[-1]:
            data, _, _, (port, _) = plain.recvmsg(65536, 100, socket.MSG_DONTWAIT)
            seen.append(data)
        assert port == 0  # so only the sender's process distinguishes it from the kernel's own
        assert _first(sock, device)["DEVPATH"] == device


def _first(sock: socket.socket, device: str) -> dict[str, str]:
    """The first event about the device, or a forged one."""
    while True:
        said = dict(events.receive_device(sock))
        if said.get("DEVPATH") in (device, "/devices/hpn-test"):
            return said
