"""A pod keeps its place on the rail by hiding its interface from DEL or deriving others from it.

The witnesses are ``ip`` in every namespace of the test, and the fabric's ping to the old address.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
from attack.escaped.links import HOLDERS, OLD, Child, gone_or_kept, over_the_master, proved
from support.topology import Host, Pod, until

from base.kernel import nsid, rtnl
from base.kernel.rtnl import Rtnl
from base.protocol.errors import TryAgain
from base.protocol.spec import Reply, Request
from cni.main import run as hpn


def taken_off_the_wire(wire: Callable[[], bool], host: Host, pod: Pod, *children: Child) -> Reply:
    """Run DEL, and assert that it removed every link over the master from the pod and these namespaces; return its
    reply."""
    assert until(wire)
    reply = host.call("DEL", pod)
    assert over_the_master(pod, *children) == []
    assert not wire()
    return reply


@HOLDERS
def test_moved_to_a_child(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], how: str
) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child(how, stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    assert until(wire)
    reply = host.call("DEL", pod)
    assert (reply.exit_code, reply.log) == (0, ())
    assert child.links() == pod.links() == set()
    assert not wire()
    assert host.leases() == set()
    assert host.state_files() == set()


@HOLDERS
def test_two_levels_deep(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], how: str
) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    child, grandchild = Child(how, stack, pod), Child(how, stack, pod)
    child.take(pod.path, "hpn0")
    grandchild.take(child.path, "hpn0", "data0")
    grandchild.use("data0")
    reply = taken_off_the_wire(wire, host, pod, child, grandchild)
    proved(host, make_pod, reply)


@pytest.fixture
def no_tun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process may not open a TUN device, as in a container.  DEL must not find the interface by one."""
    folder = tmp_path / "nodev"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev", "tmpfs", folder], check=True)
    os.mknod(folder / "tun", 0o20600, os.makedev(10, 200))
    monkeypatch.setattr(nsid, "_TUN", str(folder / "tun"))
    yield
    subprocess.run(["umount", folder], check=True)


@pytest.mark.own_process
def test_where_no_tun_device_can_be_opened(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, no_tun: None
) -> None:
    """DEL counts no namespace that it could not enter as searched."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    reply = host.call("DEL", pod)
    assert child.links() == {"hpn0"}
    assert "in 0 other namespaces that the pod moved links to; others cannot be entered: [Errno" in str(reply.log)
    gone_or_kept(host, make_pod, reply)


@pytest.mark.own_process
def test_the_agent_leaves_the_search_to_the_launcher(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, no_tun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that may not search ends DEL as if it were killed, and the next one completes it."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    with monkeypatch.context() as patched:
        patched.setattr(nsid, "_has_launcher", True)
        with pytest.raises(nsid.LeftToLauncher):
            host.call("DEL", pod)
    assert host.record(pod).exists()
    monkeypatch.setattr(nsid, "_TUN", "/dev/net/tun")
    reply = host.call("DEL", pod)
    assert child.links() == set()
    proved(host, make_pod, reply)


@pytest.mark.parametrize("changed", ["name", "mac", "index"])
def test_changed_beyond_recognition_but_for_one(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], changed: str
) -> None:
    """DEL recognizes the link by its index or its MAC alone."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0", *(("data0",) if changed == "name" else ("", 4711) if changed == "index" else ()))
    name = "data0" if changed == "name" else "hpn0"
    if changed == "mac":
        child.ip("link", "set", name, "address", "02:00:00:00:00:07")
    child.use(name)
    reply = taken_off_the_wire(wire, host, pod, child)
    proved(host, make_pod, reply)


def test_index_and_mac_are_others_now(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """DEL removes the link, since it is over the master.  The pod's own link might still hide elsewhere, so DEL keeps
    the address."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0", "data0", 4711)
    child.ip("link", "set", "data0", "address", "02:00:00:00:00:07")
    child.use("data0")
    reply = taken_off_the_wire(wire, host, pod, child)
    gone_or_kept(host, make_pod, reply)


def test_decoys_with_its_names(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """Decoys in the pod and in the child carry the link's name, altname and index.  They stay, since they lead
    nowhere."""
    pod = make_pod()
    host.ok("ADD", pod)
    (ours,) = pod.ip("link", "show", "hpn0")
    child = Child("descriptor", stack, pod)
    pod.ip("link", "add", "decoy", "type", "bridge")
    child.take(pod.path, "hpn0", "data0")
    child.use("data0")
    pod.ip("link", "property", "add", "dev", "decoy", "altname", "hpn0")
    pod.ip("link", "add", "decoy2", "index", str(ours["ifindex"]), "type", "bridge")
    child.ip("link", "add", "hpn0", "type", "bridge")
    reply = taken_off_the_wire(wire, host, pod, child)
    assert pod.links() == {"decoy", "decoy2"}
    assert child.links() == {"hpn0"}
    proved(host, make_pod, reply)


@pytest.mark.parametrize("kind", ["macvlan", "macvtap"])
@pytest.mark.parametrize("where", ["pod", "child", "both"])
def test_stacked_on_it(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], kind: str, where: str
) -> None:
    """DEL removes stacked links, too: the kernel attaches them to the master, so they outlive the link below."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    for name in {"pod": ["inner"], "child": ["outer"], "both": ["inner", "outer"]}[where]:
        pod.ip("link", "add", "link", "hpn0", "name", name, "type", kind, "mode", "bridge")
        if name == "outer":
            child.take(pod.path, name)
    pod.ip("link", "set", "hpn0", "down")
    if where == "pod":
        pod.ip("addr", "add", f"{OLD}/24", "dev", "inner")
        pod.ip("link", "set", "inner", "up")
    else:
        child.use("outer")
    reply = taken_off_the_wire(wire, host, pod, child)
    proved(host, make_pod, reply)


def test_a_double_of_it_is_left_in_its_place(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """DEL removes both the link and its double with the same index, MAC, kind and master."""
    pod = make_pod()
    host.ok("ADD", pod)
    (ours,) = pod.ip("link", "show", "hpn0")
    child = Child("descriptor", stack, pod)
    pod.ip("link", "add", "link", "hpn0", "name", "step", "type", "macvlan", "mode", "bridge")
    child.take(pod.path, "hpn0")
    child.ip("link", "set", "hpn0", "address", "02:00:00:00:00:07")
    child.use("hpn0")
    like = ["index", str(ours["ifindex"]), "address", ours["address"]]
    pod.ip("link", "add", "link", "step", "name", "hpn0", *like, "type", "macvlan", "mode", "bridge")
    pod.ip("link", "delete", "step")
    reply = taken_off_the_wire(wire, host, pod, child)
    proved(host, make_pod, reply)


def test_hidden_behind_a_namespace_that_is_gone(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """The chain of namespaces breaks in the middle: nothing leads to the last one any more, and DEL warns."""
    pod = make_pod()
    host.ok("ADD", pod)
    last = Child("descriptor", stack, pod)
    with ExitStack() as between:
        child = Child("descriptor", between, pod)
        child.take(pod.path, "hpn0")
        last.take(child.path, "hpn0")
    until(lambda: len(pod.ip("netns", "list-id")) < 2)
    reply = host.call("DEL", pod)
    assert last.links() == {"hpn0"}, "then it can be found, and this test has to say how"
    gone_or_kept(host, make_pod, reply)


def test_hidden_before_a_del_that_fails(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEL found it, the pod hid it at that moment, and the addresses could not be kept back.  The next DEL does it."""

    def hides(inside: Rtnl, index: int) -> None:
        with ExitStack() as between:
            child = Child("descriptor", between, pod)
            child.take(pod.path, "hpn0")
            last.take(child.path, "hpn0")
        until(lambda: len(pod.ip("netns", "list-id")) < 2)
        delete(inside, index)

    def busy(_request: Request, _log: list[str]) -> NoReturn:
        raise TryAgain("the store is busy")

    pod, delete = make_pod(), rtnl.delete_link
    host.ok("ADD", pod)
    last = Child("descriptor", stack, pod)
    with monkeypatch.context() as patched:
        patched.setattr(rtnl, "delete_link", hides)
        assert hpn(host.request("DEL", pod, host.conf()), {"hpn-ipam": busy}).code == 11
    gone_or_kept(host, make_pod, host.call("DEL", pod))


def test_the_pod_has_deleted_it(host: Host, make_pod: Callable[[], Pod]) -> None:
    """DEL cannot distinguish a deleted link from a hidden one."""
    pod = make_pod()
    host.ok("ADD", pod)
    pod.ip("link", "delete", "hpn0")
    gone_or_kept(host, make_pod, host.call("DEL", pod))


def test_what_may_be_in_use_is_given_after_a_probe(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """ADD allocates a possibly used address only once the pod's hidden interface no longer answers the probe."""
    conf = host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/24", "rangeEnd": OLD, "probe": 0.1})
    pod, hidden = make_pod(), Child("descriptor", stack, make_pod())
    host.ok("ADD", pod, conf)
    with ExitStack() as between:
        child = Child("descriptor", between, pod)
        child.take(pod.path, "hpn0")
        hidden.take(child.path, "hpn0")
    until(lambda: len(pod.ip("netns", "list-id")) < 2)
    hidden.use("hpn0")
    host.ok("DEL", pod, conf)
    assert until(wire)
    for _ in range(2):
        assert host.refused("ADD", make_pod(), conf)["code"] == 104
    hidden.ip("link", "delete", "hpn0")
    host.ok("ADD", make_pod(), conf)


def test_the_pod_is_gone_and_its_child_is_not(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """The master still receives for the link's MAC, so DEL searches every namespace with a process."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("process", stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    pod.gone()
    assert until(wire)
    reply = host.call("DEL", pod)
    assert child.links() == set()
    assert not wire()
    proved(host, make_pod, reply)


def test_the_pod_is_gone_and_its_child_is_nowhere_to_be_seen(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, make_pod())
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    pod.gone()
    reply = host.call("DEL", pod)
    assert wire(), "then it can be found, and this test has to say how"
    gone_or_kept(host, make_pod, reply)
