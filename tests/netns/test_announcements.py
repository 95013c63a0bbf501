"""Neighbors on the wire receive gratuitous ARP and unsolicited NA for a pod's addresses."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import IPv6Address

import pytest
from support.topology import Host, Pod, ip, until

ETH_P_ALL, ETH_P_ARP, ETH_P_IPV6 = 0x0003, 0x0806, 0x86DD
NA = 136


class Fabric:
    """The far end of the master, with all frames since its creation."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames: list[bytes] = []

    def frames(self) -> list[bytes]:
        while True:
            try:
                self._frames.append(self._sock.recv(2048))
            except BlockingIOError:
                return self._frames

    def announced_v4(self) -> list[tuple[str, str]]:
        """The (MAC, address) of each ARP packet with equal sender and target addresses."""
        found = []
        for frame in self.frames():
            if frame[12:14] == struct.pack("!H", ETH_P_ARP):
                (mac, sender, target) = frame[22:28], frame[28:32], frame[38:42]
                if sender == target:
                    assert frame[:6] == b"\xff" * 6
                    assert frame[6:12] == mac
                    found.append((mac.hex(":"), socket.inet_ntop(socket.AF_INET, sender)))
        return found

    def announced_v6(self) -> list[tuple[str, str, bool]]:
        """The (MAC, address, override) of each neighbor advertisement to all nodes."""
        found = []
        for frame in self.frames():
            if frame[12:14] != struct.pack("!H", ETH_P_IPV6) or frame[20] != socket.IPPROTO_ICMPV6 or frame[54] != NA:
                continue
            assert IPv6Address(frame[38:54]) == IPv6Address("ff02::1")
            assert frame[21] == 255
            assert frame[78:80] == b"\x02\x01"
            found.append((frame[80:86].hex(":"), str(IPv6Address(frame[62:78])), bool(frame[58] & 0x20)))
        return found


@pytest.fixture
def fabric(host: Host) -> Iterator[Fabric]:
    with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))) as sock:
        sock.bind(("fabric", ETH_P_ALL))
        sock.setblocking(False)
        yield Fabric(sock)


@pytest.mark.parametrize("dad", ["off", "quick", "wait"])
def test_announces_its_addresses(host: Host, pod: Pod, fabric: Fabric, dad: str) -> None:
    """Neighbors learn that an earlier pod's MAC is outdated.  The kernel announces a tested address a moment after the
    test; ADD announces an untested one before it returns."""
    pod.quick_dad()
    mac = host.ok("ADD", pod, host.conf(dad=dad))["interfaces"][0]["mac"]
    assert (mac, "10.56.0.2") in fabric.announced_v4()
    until(lambda: (mac, "fd00:56::2", True) in fabric.announced_v6(), 0.0 if dad == "off" else 60.0)


def test_announces_no_address_that_is_being_tested(host: Host, pod: Pod, fabric: Fabric) -> None:
    """ADD does not announce an address during its test: another host may own it, and a NIC that reflects the frame
    would fail the test."""
    mac = host.ok("ADD", pod, host.conf(dad="optimistic"))["interfaces"][0]["mac"]
    assert (mac, "10.56.0.2") in fabric.announced_v4()
    assert "fd00:56::2" not in {address for _, address, _ in fabric.announced_v6()}


def test_announces_again_when_the_link_comes_back(host: Host, pod: Pod, fabric: Fabric) -> None:
    pod.quick_dad()
    mac = host.ok("ADD", pod, host.conf(dad="wait"))["interfaces"][0]["mac"]
    until(lambda: (mac, "fd00:56::2", True) in fabric.announced_v6())
    before = len(fabric.announced_v4()), len(fabric.announced_v6())
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "up")
    assert until(lambda: (mac, "10.56.0.2") in fabric.announced_v4()[before[0] :])
    assert until(lambda: (mac, "fd00:56::2") in [a[:2] for a in fabric.announced_v6()[before[1] :]])


def test_a_neighbour_learns_the_new_mac(host: Host, make_pod: Callable[[], Pod]) -> None:
    """Neighbors that know the previous pod reach the next pod with its address at once."""
    one, two = make_pod(), make_pod()
    ip("addr", "add", "10.56.0.1/24", "dev", "fabric")
    only = {"subnet": "10.56.0.0/24", "rangeStart": "10.56.0.7", "rangeEnd": "10.56.0.7"}
    conf = host.conf(ipam={"type": "hpn-ipam"} | only)
    old = host.ok("ADD", one, conf)["interfaces"][0]["mac"]
    assert one.ping("10.56.0.1")
    assert [n["lladdr"] for n in ip("neigh", "show", "10.56.0.7")] == [old]
    host.ok("DEL", one, conf)
    new = host.ok("ADD", two, conf)["interfaces"][0]["mac"]
    assert new != old
    assert [n["lladdr"] for n in ip("neigh", "show", "10.56.0.7")] == [new]
