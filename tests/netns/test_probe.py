"""ADD avoids addresses that another host on the link owns.

The other host is the far end of the master, which answers with the kernel's own ARP and neighbor discovery.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.topology import Host, Pod, ip, leases, until

from base.kernel import probe, rtnl
from ipam.main import run as hpn_ipam

ETH_P_ALL = 0x0003
BOTH = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]


def conf(host: Host, **ipam: Any) -> dict[str, Any]:
    # A macvlan passes an answer to all nodes on from a worker of the kernel, which needs a processor within that time.
    return host.conf(ipam={"type": "hpn-ipam", "ranges": BOTH, "probe": 1} | ipam)


def other_has(*addresses: str) -> str:
    """Add these addresses to the far end of the master, and return its MAC."""
    for address in addresses:
        ip("addr", "add", address, "dev", "fabric", *(["nodad"] if ":" in address else []))
    (link,) = ip("link", "show", "fabric")
    return str(link["address"])


def given(result: dict[str, Any]) -> list[str]:
    return [entry["address"] for entry in result["ips"]]


def apart(host: Host) -> dict[str, str]:
    """The addresses that the leases assign to other hosts, with the MACs of those."""
    return {line["addresses"][0]: line["mac"] for line in leases(host.state / "ipam") if "mac" in line}


@contextmanager
def heard_on_the_wire() -> Iterator[list[bytes]]:
    """The frames that reach fabric during the context."""
    frames = list[bytes]()
    with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))) as sock:
        sock.bind(("fabric", ETH_P_ALL))
        yield frames
        sock.setblocking(False)
        while True:
            try:
                frame, (*_, kind, _, _) = sock.recvfrom(2048)
            except BlockingIOError:
                return
            if kind != socket.PACKET_OUTGOING:
                frames.append(frame)


def test_the_next_free_address_is_given(host: Host, pod: Pod) -> None:
    mac = other_has("10.56.0.2/24", "10.56.0.3/24", "fd00:56::2/64")
    result = host.ok("ADD", pod, conf(host))
    assert given(result) == ["10.56.0.4/24", "fd00:56::3/64"]
    assert pod.addresses() == set(given(result))
    assert apart(host) == {"10.56.0.2/24": mac, "10.56.0.3/24": mac, "fd00:56::2/64": mac}
    assert host.checked(pod, conf(host), result).exit_code == 0
    host.ok("DEL", pod, conf(host))
    assert apart(host).keys() == {"10.56.0.2/24", "10.56.0.3/24", "fd00:56::2/64"}, "kept back beyond the attachment"
    assert pod.links() == set()


def test_who_has_it_is_logged(host: Host, pod: Pod) -> None:
    mac = other_has("10.56.0.2/24")
    reply = host.call("ADD", pod, conf(host))
    assert reply.exit_code == 0
    (line,) = [line for line in reply.log if "10.56.0.2" in line]
    assert mac in line


@pytest.mark.parametrize("address", ["10.56.0.2", "fd00:56::2"])
def test_an_answer_to_a_process_that_runs_too_late(host: Host, address: str) -> None:
    """The whole time for answers is over when the process reads them."""
    mac, wanted = other_has(f"{address}/{64 if ':' in address else 24}"), ip_address(address)
    with rtnl.open_in() as own, open("/proc/thread-self/ns/net") as namespace:
        link = own.link("rail0")
        assert link
        # Several times, because the peer's kernel may answer later.
        until(lambda: probe.find_owners(namespace.fileno(), link, [wanted], 0.0) == {wanted: mac})


@pytest.mark.parametrize("address", ["10.56.0.9", "fd00:56::9"])
def test_a_requested_address_that_another_has(host: Host, pod: Pod, address: str) -> None:
    before = host.picture(pod)
    mac = other_has(f"{address}/{64 if ':' in address else 24}")
    error = host.refused("ADD", pod, conf(host), CNI_ARGS=f"IP={address}")
    assert error["code"] == 104
    assert f"requested address {address}" in error["msg"]
    assert mac in error["msg"]
    ip("addr", "flush", "dev", "fabric", "scope", "global")
    assert host.picture(pod) == before, "nothing is left, and nothing kept back from who asked for it"
    host.ok("ADD", pod, conf(host), CNI_ARGS=f"IP={address}")


def test_everything_is_taken(host: Host, pod: Pod) -> None:
    mac = other_has(*(f"10.56.0.{n}/24" for n in range(2, 12)))
    error = host.refused("ADD", pod, conf(host, ranges=BOTH[:1]))
    assert error["code"] == 104
    assert f"one host on the link of hpn0 (master rail0) (MAC {mac}) answers for 5 addresses" in error["msg"]
    assert pod.links() == set()
    assert host.state_files() == set()
    assert len(apart(host)) == 4


def test_a_range_in_which_others_have_all(host: Host, pod: Pod) -> None:
    mac = other_has("10.56.0.2/24")
    error = host.refused("ADD", pod, conf(host, ranges=[[{"subnet": "10.56.0.0/30"}]]))
    assert error["code"] == 104
    assert mac in error["msg"]
    assert pod.links() == set()


@pytest.mark.parametrize("disabled", ["0", "1"])
def test_pod_without_ipv6_so_far(host: Host, pod: Pod, disabled: str) -> None:
    """The probe works in a pod without IPv6 so far.  A macvlan then passes answers to all nodes only to members of that
    group."""
    pod.sysctl("ipv6/conf/default/disable_ipv6", disabled)
    other_has("fd00:56::2/64")
    assert "fd00:56::3/64" in given(host.ok("ADD", pod, conf(host)))


def test_another_pod_on_the_same_master(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD avoids the address of another network's pod on the same master.  That pod's detection is off: with a running
    one it would yield instead of answer (RFC 4862)."""
    one, two = make_pod(), make_pod()
    mac = host.ok("ADD", one, conf(host) | {"name": "other", "dad": "off"})["interfaces"][0]["mac"]
    assert given(host.ok("ADD", two, conf(host))) == ["10.56.0.3/24", "fd00:56::3/64"]
    assert apart(host) == {"10.56.0.2/24": mac, "fd00:56::2/64": mac}


def test_an_address_of_another_pod_here(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD names the pod of this node that has the requested address."""
    one, two = make_pod(), make_pod()
    mac = host.ok("ADD", one, conf(host) | {"name": "other", "dad": "off"})["interfaces"][0]["mac"]
    error = host.refused("ADD", two, conf(host), CNI_ARGS="IP=10.56.0.2")
    assert error["code"] == 104
    assert (
        f"10.56.0.2 is in use by hpn0 of container {one.name[:12]}, network other of this node on the link (MAC {mac})"
        in error["msg"]
    )


def test_an_address_that_a_pod_here_was_not_given(host: Host, make_pod: Callable[[], Pod]) -> None:
    """A pod's interface without IPAM has none, whatever its configuration names."""
    one, two = make_pod(), make_pod()
    other_has("10.56.0.2")
    without = {key: value for key, value in conf(host).items() if key != "ipam"}
    host.ok("ADD", one, without | {"name": "other", "args": {"cni": {"ips": ["10.56.0.2/24"]}}})
    error = host.refused("ADD", two, conf(host), CNI_ARGS="IP=10.56.0.2")
    assert error["code"] == 104
    assert "10.56.0.2 is in use by another host on the link" in error["msg"]


def test_what_is_sent(host: Host, pod: Pod) -> None:
    """ADD sends three probes of each kind by RFC 5227 and RFC 4862, spread over the time, without a sender address."""
    with heard_on_the_wire() as frames:
        began = time.monotonic()
        mac = host.ok("ADD", pod, conf(host, probe=0.3))["interfaces"][0]["mac"]
        assert time.monotonic() - began >= 0.3
    ours = bytes.fromhex(mac.replace(":", ""))
    arps = [f for f in frames if f[12:14] == b"\x08\x06" and f[28:32] == bytes(4)]
    assert [(f[:6], f[6:12], f[20:22], f[22:28], f[38:42]) for f in arps] == [
        (b"\xff" * 6, ours, b"\0\1", ours, socket.inet_aton("10.56.0.2"))
    ] * 3
    target = IPv6Address("fd00:56::2").packed
    solicitations = [f for f in frames if f[12:14] == b"\x86\xdd" and f[54:55] == b"\x87" and f[62:78] == target]
    # The kernel's own detection follows, with a nonce at the end (RFC 7527).
    bare = [f for f in solicitations if len(f) == 78]
    assert [(f[:6], f[21], f[22:38], f[38:54]) for f in bare] == [
        (bytes.fromhex("3333ff000002"), 255, bytes(16), IPv6Address("ff02::1:ff00:2").packed)
    ] * 3


def test_another_host_probes_for_it_at_the_same_time(host: Host, pod: Pod) -> None:
    """ADD yields to a host that probes for the address at the same time (RFC 5227 section 2.1.1, RFC 4862 section
    5.4.3)."""
    (link,) = ip("link", "show", "fabric")
    stranger = bytes.fromhex(link["address"].replace(":", ""))
    arp = b"\xff" * 6 + stranger + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
    arp += stranger + bytes(10) + socket.inet_aton("10.56.0.2")
    solicited = bytes.fromhex("3333ff000002") + stranger + bytes.fromhex("86dd60000000 00183aff") + bytes(16)
    solicited += IPv6Address("ff02::1:ff00:2").packed + bytes([135, *bytes(7)]) + IPv6Address("fd00:56::2").packed
    stop = threading.Event()

    with closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as sock:
        sock.bind(("fabric", 0))

        def probing() -> None:
            # time: the pace of probes
            while not stop.wait(0.02):
                sock.send(arp)
                sock.send(solicited)

        thread = threading.Thread(target=probing)
        thread.start()
        try:
            result = host.ok("ADD", pod, conf(host, probe=4))
        finally:
            stop.set()
            thread.join()
    assert given(result) == ["10.56.0.3/24", "fd00:56::3/64"]
    assert apart(host) == dict.fromkeys(("10.56.0.2/24", "fd00:56::2/64"), link["address"])


def test_without_carrier_nobody_can_be_asked(host: Host, pod: Pod) -> None:
    before = host.picture(pod)
    ip("link", "set", "fabric", "down")
    error = host.refused("ADD", pod, conf(host))
    assert error["code"] == 101
    assert "no carrier" in error["msg"]
    ip("link", "set", "fabric", "up")
    assert host.picture(pod) == before


def test_the_addresses_are_announced_all_the_same(host: Host, pod: Pod) -> None:
    """The addresses are announced once, although the link was up before: the kernel announces existing ones on up."""
    with heard_on_the_wire() as frames:
        mac = host.ok("ADD", pod, conf(host))["interfaces"][0]["mac"]
    address, ours = socket.inet_aton("10.56.0.2"), bytes.fromhex(mac.replace(":", ""))
    assert [f[22:28] for f in frames if f[12:14] == b"\x08\x06" and f[28:32] == f[38:42] == address] == [ours]


def test_ipvlan_is_refused(host: Host, pod: Pod, ipvlan: str) -> None:
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host) | {"kind": ipvlan})
    assert error["code"] == 7
    assert "ipam.probe: hpn0 is an ipvlan" in error["msg"]
    assert host.picture(pod) == before


@pytest.mark.parametrize("recover", ["DEL", "ADD", "GC"])
def test_killed_at_every_step(host: Host, pod: Pod, recover: str) -> None:
    """A kill at any step, also during the probe, does not lose the only free address."""
    other_has("10.56.0.2/24")
    narrow = conf(host, ranges=[[{"subnet": "10.56.0.0/29", "rangeEnd": "10.56.0.3"}]], probe=0.03)
    for step in drawn.steps():
        if not killed_at(step, host.request("ADD", pod, narrow)):
            break
        if recover == "ADD":
            reply = host.call("ADD", pod, narrow)
            assert not reply.exit_code or '"code":100' in reply.stdout  # the first ADD was complete
            assert pod.addresses() == {"10.56.0.3/29"}
        if recover == "GC":
            host.ok("GC", None, narrow | {"cni.dev/valid-attachments": []})
        else:
            host.ok("DEL", pod, narrow)
        assert pod.links() == set(), f"link left after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        assert host.leases() <= {"10.56.0.2"}, f"address left after step {step}"
    assert pod.addresses() == {"10.56.0.3/29"}
    host.ok("DEL", pod, narrow)
    assert step > 20


# Under another main plugin, which creates the interface before it calls the IPAM.


def alone(host: Host, command: str, pod: Pod, config: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(hpn_ipam(host.request(command, pod, config)).stdout or "{}"))


@pytest.mark.parametrize("state", ["down", "up"])
def test_the_interface_is_left_as_it_was(host: Host, pod: Pod, state: str) -> None:
    mac = other_has("10.56.0.2/24")
    ip("link", "add", "link", "rail0", "name", "hpn0", "netns", pod.name, "type", "macvlan", "mode", "bridge")
    pod.ip("link", "set", "hpn0", state)
    assert given(alone(host, "ADD", pod, conf(host))) == ["10.56.0.3/24", "fd00:56::2/64"]
    link = pod.link()
    assert link
    assert ("UP" in link["flags"]) == (state == "up")
    assert pod.addresses() == set()
    assert alone(host, "DEL", pod, conf(host)) == {}
    assert apart(host) == {"10.56.0.2/24": mac}


def test_without_an_interface(host: Host, pod: Pod) -> None:
    error = alone(host, "ADD", pod, conf(host))
    assert error["code"] == 101
    assert "CNI_IFNAME=hpn0" in error["msg"]
    assert host.leases() == set()


def test_an_aligned_number_that_is_free_on_the_rail(host: Host, pod: Pod) -> None:
    mac = other_has("10.56.0.2/24")
    ranges = [{"master": name, "subnet": f"10.5{n}.0.0/24"} for n, name in ((6, "rail0"), (7, "rail1"))]
    config = conf(host, rails=ranges, align=True)
    del config["ipam"]["ranges"]
    assert given(host.ok("ADD", pod, config)) == ["10.56.0.3/24"]
    assert apart(host) == {"10.56.0.2/24": mac}
