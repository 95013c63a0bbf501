"""The kinds over a PF and a wire; tests/netns tests them over a veth."""

from collections.abc import Callable

import pytest
from guest.machine import Guest
from support.topology import Pod, ip, until


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_pods_of_two_pfs_reach_each_other(guest: Guest, make_pod: Callable[[], Pod], kind: str) -> None:
    one, two = make_pod(), make_pod()
    before = {link["ifname"] for link in ip("link")}
    for pod, master in ((one, "rail0"), (two, "rail1")):
        conf = guest.conf(kind=kind, master=master)
        result = guest.ok("ADD", pod, conf)
        link = pod.link()
        assert link
        assert link["linkinfo"]["info_kind"] == kind
        assert guest.checked(pod, conf, result).exit_code == 0
    assert until(lambda: one.ping("10.56.0.3", "-W", "1"))
    assert until(lambda: one.ping("fd00:56::3", "-W", "1"))
    for pod, master in ((one, "rail0"), (two, "rail1")):
        guest.ok("DEL", pod, guest.conf(kind=kind, master=master))
        assert pod.links() == set()
    assert {link["ifname"] for link in ip("link")} == before
    assert guest.state_files() == set()


def test_a_name_that_the_host_has(guest: Guest, pod: Pod) -> None:
    """On this kernel the link starts under another name; the host's link of the wanted name stays unchanged."""
    before = ip("-d", "link", "show", "rail1")
    conf = guest.conf(kind="ipvlan")
    result = guest.ok("ADD", pod, conf, CNI_IFNAME="rail1")
    assert pod.links() == {"rail1"}
    assert guest.checked(pod, conf, result, CNI_IFNAME="rail1").exit_code == 0
    guest.ok("DEL", pod, conf, CNI_IFNAME="rail1")
    assert pod.links() == set()
    assert ip("-d", "link", "show", "rail1") == before
