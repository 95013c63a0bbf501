"""What others have over the same master stays, whatever DEL looks through for a link that escaped."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attack.escaped.links import Child, gone_or_kept, proved
from support.topology import Host, Pod, ip

from base.state import journal

# What stays


def test_another_attachment_over_the_same_master_stays(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack
) -> None:
    """Also where the pod has moved it to a namespace of its own; until its own DEL."""
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
    host.ok("DEL", pod)
    assert pod.links() == {"theirs"}


def others_macvlan(pod: Pod) -> None:
    """As another plugin makes it."""
    ip("link", "add", "link", "rail0", "name", "net1", "netns", pod.name, "type", "macvlan", "mode", "bridge")


def test_anothers_macvlan_that_came_later_stays(host: Host, make_pod: Callable[[], Pod], results: Path) -> None:
    """The runtime remembers what that plugin made."""
    pod = make_pod()
    host.ok("ADD", pod)
    others_macvlan(pod)
    (results / f"other-{pod.name}-net1").touch()
    reply = host.call("DEL", pod)
    assert pod.links() == {"net1"}
    proved(host, make_pod, reply)


def test_a_macvlan_of_which_nobody_knows_whose_it_is(host: Host, make_pod: Callable[[], Pod], results: Path) -> None:
    """Of a runtime that remembers nothing: it may be another plugin's and stays, or stacked on ours and have its
    address."""
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
    """DEL has looked into the journal, and the link is there when it looks into the pod.  The runtime has yet to note
    what that ADD answered."""
    pod, read, came = make_pod(), journal.records, list[Any]()

    def comes_after(*words: Any) -> list[Any]:
        found = list(read(*words))
        if not came:
            came.append(None)
            came.append(host.call("ADD", pod, CNI_IFNAME="hpn1"))
            (results / f"rail0-{pod.name}-hpn1").unlink()
        return found

    for ifname in ("hpn0", "hpn2"):  # so that there is something to look at
        host.ok("ADD", pod, CNI_IFNAME=ifname)
    monkeypatch.setattr(journal, "records", comes_after)
    host.ok("DEL", pod)
    assert came[1].exit_code == 0
    assert pod.links() == {"hpn1", "hpn2"}


def test_another_pod_that_is_reached_from_this_one_stays(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack
) -> None:
    """By a veth pair between them, say."""
    pod, other = make_pod(), make_pod()
    host.ok("ADD", pod)
    host.ok("ADD", other)
    pod.ip("link", "add", "between", "type", "veth", "peer", "name", "between", "netns", other.name)
    host.ok("DEL", pod)
    assert other.links() == {"between", "hpn0"}
    assert pod.links() == {"between"}
    assert host.leases() == {"10.56.0.3", "fd00:56::3"}


def test_a_link_over_another_master_stays(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """Of our kind, over a device of the same index, in a namespace of the pod's own."""
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
