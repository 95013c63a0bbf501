"""Kind host-device with interfaces made of software, which others have taken for theirs, or pass off as the host's."""

from typing import Any

import pytest
from netns.test_host_device import MAC, NAME, conf, state
from topology import Host, Pod, ip


@pytest.fixture
def eth9(host: Host) -> dict[str, Any]:
    ip("link", "add", NAME, "address", MAC, "type", "veth", "peer", "name", "far9")
    return state()


def test_its_index_is_taken_by_another_of_its_kind(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    host.ok("ADD", pod, conf(host))
    ip("link", "add", "other9", "index", str(eth9["ifindex"]), "type", "veth", "peer", "name", "far8")
    other = state("other9")
    host.ok("DEL", pod, conf(host))
    assert state("other9") == other
    assert state() | {"ifindex": 0} == eth9 | {"ifindex": 0}


def test_both_ends_of_a_pair_in_one_pod(host: Host, pod: Pod, eth9: dict[str, Any]) -> None:
    """The peer of what came home is no link over it."""
    far = state("far9")
    second = conf(host, name="second", device="far9", ipam=...)
    host.ok("ADD", pod, conf(host))
    host.ok("ADD", pod, second, CNI_IFNAME="hpn1")
    host.ok("DEL", pod, conf(host))
    assert pod.links() == {"hpn1"}
    host.ok("DEL", pod, second, CNI_IFNAME="hpn1")
    assert (state(), state("far9")) == (eth9, far)
