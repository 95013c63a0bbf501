"""ADD refuses a VF that the host or another pod needs.  /sys is the test's own tree; the interfaces are real."""

from collections.abc import Callable
from pathlib import Path

import pytest
from netns.choosing import by_device, by_pf, chosen
from pyroute2 import IPRoute
from support import pci
from support.topology import Host, Pod, ip


def has_an_address(_host: Host, _other: Pod) -> None:
    ip("address", "add", "192.0.2.1/24", "dev", "vf0")


def has_an_address_and_is_up(host: Host, other: Pod) -> None:
    has_an_address(host, other)
    ip("link", "set", "vf0", "up")


def is_in_a_bridge(_host: Host, _other: Pod) -> None:
    ip("link", "add", "br9", "type", "bridge")
    ip("link", "set", "vf0", "master", "br9")


def has_the_default_route(host: Host, other: Pod) -> None:
    has_an_address_and_is_up(host, other)
    ip("route", "add", "default", "via", "192.0.2.2")


def has_a_route(_host: Host, _other: Pod) -> None:
    ip("link", "set", "vf0", "up")
    ip("route", "add", "198.51.100.7/32", "dev", "vf0")


def has_a_route_by_an_object(_host: Host, _other: Pod) -> None:
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")
    ip("link", "set", "vf0", "up")
    ip("nexthop", "add", "id", "7", "dev", "vf0")
    ip("route", "add", "198.51.100.0/24", "nhid", "7")


def has_a_route_of_ipv6(_host: Host, _other: Pod) -> None:
    """A route to one host, with the kernel's own mark."""
    ip("link", "set", "vf0", "up")
    ip("-6", "route", "add", "fd00::7/128", "dev", "vf0", "proto", "kernel")


def carries_a_vlan(host: Host, _other: Pod) -> None:
    (host.tmp_path / "sys/class/net/vf0/upper_vf0.7").mkdir(parents=True)


def is_a_master(host: Host, other: Pod) -> None:
    ip("link", "set", "vf0", "up")
    host.ok("ADD", other, host.conf(name="over", master="vf0"))
    ip("link", "set", "vf0", "down")


@pytest.mark.usefixtures("two_vfs")
@pytest.mark.parametrize(
    ("use", "code", "says"),
    [
        (has_an_address, 7, "'vf0' has 192.0.2.1/24 on the host, which a move would lose; remove them first"),
        (has_an_address_and_is_up, 7, "'vf0' has 192.0.2.1/24 on the host"),
        (has_the_default_route, 7, "the host's default route uses 'vf0'; choose another "),
        (has_a_route, 7, "the host has routes through 'vf0', which a move would lose: 198.51.100.7/32; remove them"),
        (
            has_a_route_by_an_object,
            7,
            "the host has routes through 'vf0', which a move would lose: 198.51.100.0/24; remove them",
        ),
        (
            has_a_route_of_ipv6,
            7,
            "the host has routes through 'vf0', which a move would lose: fd00::7/128; remove them",
        ),
        (is_in_a_bridge, 101, "'vf0' is a port of the host's 'br9'; choose another "),
        (carries_a_vlan, 7, "'vf0' carries vf0.7 of the host; remove them first, or choose another "),
        (is_a_master, 101, "'vf0' is the master of "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_vf_that_the_host_needs(
    host: Host, make_pod: Callable[[], Pod], use: Callable[[Host, Pod], None], code: int, says: str
) -> None:
    """ADD refuses the VF by address and by number, and its whole PF.  Without a choice of the VF, ADD takes another
    one."""
    pod, other = make_pod(), make_pod()
    use(host, other)
    before = host.picture(pod, other)
    for conf, said in (
        (by_device(host), f"deviceID '{pci.VF}': "),
        (by_pf(host, vf=0), f"vf 0 of pf 'rail0' ({pci.VF}): "),
        (by_pf(host, pfOnly=True), f"pfOnly: VF {pci.VF} of 'rail0': "),
    ):
        error = host.refused("ADD", pod, conf)
        assert (error["code"], error["msg"].startswith(said + says)) == (code, True), error
    error = host.refused("STATUS", None, by_pf(host, vf=0))
    assert (error["code"], says in error["msg"]) == (50, True), error
    assert host.picture(pod, other) == before
    assert chosen(host, pod) == pci.ANOTHER


@pytest.mark.usefixtures("two_vfs")
def test_no_free_vf_because_the_host_needs_it(host: Host, pod: Pod) -> None:
    has_an_address(host, pod)
    ip("link", "set", "vf1", "up")
    error = host.refused("ADD", pod, by_pf(host))
    said = f"or needed; the host needs {pci.VF}: 'vf0' has 192.0.2.1/24 on the host"
    assert (error["code"], said in error["msg"]) == (101, True), error


@pytest.mark.usefixtures("two_vfs")
def test_a_vf_that_is_up_and_nobody_needs(host: Host, pod: Pod) -> None:
    """ADD accepts a VF that is up and not needed, as kubelet may choose it.  Link-local addresses, routes of the kernel
    and a router's advertisements beside the host's own default route do not count."""
    for name in ("rail0", "vf0", "vf1"):
        ip("link", "set", name, "up")
    ip("address", "add", "192.0.2.1/24", "dev", "rail0")
    ip("route", "add", "default", "via", "192.0.2.2")
    ip("address", "add", "169.254.7.1/16", "dev", "vf0")
    ip("-6", "address", "add", "fe80::7/64", "dev", "vf0", "nodad")
    with IPRoute() as kernel:  # Debian 12's ip cannot set the kernel's mark
        (index,) = kernel.link_lookup(ifname="vf0")
        kernel.addr("add", index=index, address="fd00:7::7", prefixlen=64, IFA_PROTO=2)
    ip("-6", "route", "add", "fd00:8::/64", "dev", "vf0", "proto", "kernel")
    ip("-6", "route", "add", "default", "via", "fe80::1", "dev", "vf0", "proto", "ra")
    error = host.refused("ADD", pod, by_device(host))
    assert error["msg"].startswith("rail0 reports no VF "), error
