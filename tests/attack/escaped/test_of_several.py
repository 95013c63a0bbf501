"""What the pod stacked on any of the interfaces that one ADD made goes too: the runtime's cache names their request."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from attack.escaped.links import Child
from support import chained, listed_rails
from support.topology import Host, Pod, ip, until

from base.kernel import rtnl
from base.kernel.rtnl import Rtnl
from base.state import claims


@pytest.fixture(autouse=True)
def second_rail(host: Host) -> Iterator[None]:
    chained.add_rails()
    yield
    ip("link", "delete", "rail1")  # where the agent answers, the next test has the same host


def stack_on_both(pod: Pod) -> None:
    for over in ("hpn0", "hpn1"):
        pod.ip("link", "add", "link", over, "name", f"on-{over}", "type", "macvlan")


def test_rails(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, listed_rails.conf(host))
    stack_on_both(pod)
    reply = host.call("DEL", pod, listed_rails.conf(host))
    assert (reply.exit_code, reply.log, pod.links()) == (0, (), set())
    assert (host.leases(), host.state_files()) == (set(), set())


def test_claims(host: Host, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    chained.prepared(host, pod)
    conf, variables = chained.conf(host), chained.variables(pod)
    host.ok("ADD", pod, conf, **variables)
    stack_on_both(pod)
    reply = host.call("DEL", pod, conf, **variables)
    assert (reply.exit_code, reply.log, pod.links()) == (0, (), set())
    assert (host.leases(), host.state_files()) == (set(), set())


def test_hidden_while_they_are_removed(host: Host, pod: Pod, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEL removes them together, and one is gone from the pod after it was found there."""

    def hides(inside: Rtnl, indexes: Sequence[int]) -> set[int]:
        with ExitStack() as between:
            child = Child("descriptor", between, pod)
            child.take(pod.path, "hpn1")
            last.take(child.path, "hpn1")
        until(lambda: len(pod.ip("netns", "list-id")) < 2)
        return delete(inside, indexes)

    host.ok("ADD", pod, listed_rails.conf(host))
    last, delete = Child("descriptor", stack, pod), rtnl.delete_links
    monkeypatch.setattr(rtnl, "delete_links", hides)
    reply = host.call("DEL", pod, listed_rails.conf(host))
    assert (reply.exit_code, pod.links(), last.links()) == (0, set(), {"hpn1"})
    assert [line.partition(" ")[0] for line in reply.log if "may be in use" in line] == ["hpn1"]


@pytest.mark.parametrize("name", ["hpn0", "hpn1"])
@pytest.mark.parametrize("over", ["hpn0", "hpn1"])
@pytest.mark.parametrize("by_one", [True, False])
def test_under_the_name_of_one_of_them(host: Host, pod: Pod, name: str, over: str, by_one: bool) -> None:
    """The cache has names that this plugin gave, also to the interfaces of other requests."""
    confs = {"hpn0": listed_rails.conf(host)} if by_one else {"hpn0": host.conf(), "hpn1": host.conf(master="rail1")}
    for ifname, conf in confs.items():
        host.ok("ADD", pod, conf, CNI_IFNAME=ifname)
    pod.ip("link", "set", name, "down")
    pod.ip("link", "set", name, "name", "data0")
    pod.ip("link", "add", "link", "data0" if name == over else over, "name", name, "type", "macvlan")
    for ifname, conf in confs.items():
        reply = host.call("DEL", pod, conf, CNI_IFNAME=ifname)
        assert (reply.exit_code, reply.log) == (0, ())
    assert (pod.links(), host.leases()) == (set(), set())
