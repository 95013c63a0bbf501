"""Links of others over the same master stay while DEL searches for an escaped link."""

import errno
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attack.escaped.links import Child, gone_or_kept, proved
from netns.test_claimed_otherwise import lost
from support.topology import Host, Pod, ip

from base.state import libcni_cache


def test_another_attachment_over_the_same_master_stays(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack
) -> None:
    """Another attachment's link stays until its own DEL, even in a namespace that the pod created."""
    pod = make_pod()
    for name in ("hpn0", "hpn1", "hpn2"):
        host.ok("ADD", pod, CNI_IFNAME=name)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn1")
    host.ok("DEL", pod)
    assert (pod.links(), child.links()) == ({"hpn2"}, {"hpn1"})
    host.ok("DEL", pod, CNI_IFNAME="hpn1")
    assert (pod.links(), child.links()) == ({"hpn2"}, set())
    host.ok("DEL", pod, CNI_IFNAME="hpn2")
    assert pod.links() == set()
    assert host.leases() == set()


def test_anothers_macvlan_that_was_there_before_stays(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack
) -> None:
    pod = make_pod()
    ip("link", "add", "link", "rail0", "name", "theirs", "netns", pod.name, "type", "macvlan", "mode", "bridge")
    host.ok("ADD", pod)
    pod.ip("link", "add", "link", "hpn0", "name", "over", "type", "macvlan")  # so that DEL searches
    host.ok("DEL", pod)
    assert pod.links() == {"theirs"}


def others_macvlan(pod: Pod) -> None:
    """Create a macvlan as another plugin does."""
    ip("link", "add", "link", "rail0", "name", "net1", "netns", pod.name, "type", "macvlan", "mode", "bridge")


def test_anothers_macvlan_that_came_later_stays(host: Host, make_pod: Callable[[], Pod], results: Path) -> None:
    """The other plugin's macvlan stays, because the runtime's cache names it."""
    pod = make_pod()
    host.ok("ADD", pod)
    others_macvlan(pod)
    (results / f"other-{pod.name}-net1").touch()
    reply = host.call("DEL", pod)
    assert pod.links() == {"net1"}
    proved(host, make_pod, reply)


def test_a_macvlan_of_which_nobody_knows_whose_it_is(host: Host, make_pod: Callable[[], Pod], results: Path) -> None:
    """Without the runtime's cache the macvlan stays, because another plugin may own it.  It may also be stacked on the
    pod's link and use its address, so DEL keeps the address."""
    pod = make_pod()
    host.ok("ADD", pod)
    others_macvlan(pod)
    for path in results.iterdir():
        path.unlink()
    reply = host.call("DEL", pod)
    assert pod.links() == {"net1"}
    gone_or_kept(host, make_pod, reply)


def test_another_attachment_that_comes_meanwhile_stays(
    host: Host, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    """Another ADD creates its link after DEL reads the runtime's cache, and before DEL checks the pod.  The journal has
    it by then."""
    pod, read, came = make_pod(), libcni_cache.interfaces, list[Any]()

    def comes_after(*words: Any) -> frozenset[str] | None:
        found = read(*words)
        if not came:
            came.append(None)
            came.append(host.call("ADD", pod, CNI_IFNAME="hpn1"))
            (results / f"rail0-{pod.name}-hpn1").unlink()
        return found

    for ifname in ("hpn0", "hpn2"):  # so that DEL finds other attachments to check
        host.ok("ADD", pod, CNI_IFNAME=ifname)
    monkeypatch.setattr(libcni_cache, "interfaces", comes_after)
    host.ok("DEL", pod)
    assert came[1].exit_code == 0
    assert pod.links() == {"hpn1", "hpn2"}


def test_another_pod_that_is_reached_from_this_one_stays(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack
) -> None:
    """The link of a pod stays if a veth pair connects it with the deleted pod."""
    pod, other = make_pod(), make_pod()
    host.ok("ADD", pod)
    host.ok("ADD", other)
    pod.ip("link", "add", "between", "type", "veth", "peer", "name", "between", "netns", other.name)
    host.ok("DEL", pod)
    assert other.links() == {"between", "hpn0"}
    assert pod.links() == {"between"}
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


def test_a_link_over_another_master_stays(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """A link of the same kind stays if its master has the same index but is in a namespace that the pod created."""
    pod = make_pod()
    host.ok("ADD", pod)
    (rail,) = ip("link", "show", "rail0")
    index = str(rail["ifindex"])
    child = Child("descriptor", stack, pod)
    pod.ip("link", "add", "step", "index", "77", "type", "veth", "peer", "name", "peer")
    child.take(pod.path, "step")
    child.ip("link", "add", "lower", "index", index, "type", "bridge")
    child.ip("link", "add", "link", "lower", "name", "upper", "type", "macvlan", "mode", "bridge")
    host.ok("DEL", pod)
    assert pod.links() == {"peer"}
    assert child.links() == {"step", "lower", "upper"}


@pytest.mark.own_process
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_another_pod_whose_record_cannot_be_read(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, number: int
) -> None:
    """DEL succeeds.  It spares a namespace that may be that pod's, and so keeps the address of its own link."""
    pod, other = make_pod(), make_pod()
    host.ok("ADD", pod)
    host.ok("ADD", other)
    pod.ip("link", "add", "between", "type", "veth", "peer", "name", "between", "netns", other.name)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    with lost(host.record(other), errno.EMFILE):
        assert host.refused("DEL", pod)["code"] == 11
    with lost(host.record(other), number):
        reply = host.call("DEL", pod)
    assert other.links() == {"between", "hpn0"}
    assert f"{host.record(other)} cannot be read" in reply.log[0]
    gone_or_kept(host, make_pod, reply)
