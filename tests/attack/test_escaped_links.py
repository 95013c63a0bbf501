"""A pod that takes its interface where DEL does not look, or makes others of it, to keep its place on the rail.

The witnesses are ``ip`` in every namespace that the test made, and the fabric's ping to the old address.
"""

import ctypes
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from topology import Host, Pod, ip, leases, until

from cni.state import journal, libcni_cache

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

OLD = "10.56.0.2"
LONGEST = 10.0  # seconds of a DEL, says docs/security.md


@contextmanager
def entered(path: str) -> Iterator[None]:
    """This thread in that namespace meanwhile."""
    with open("/proc/thread-self/ns/net") as own, open(path) as there:
        assert _libc.setns(there.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert _libc.setns(own.fileno(), CLONE_NEWNET) == 0


def fresh() -> int:
    """A namespace that a descriptor holds and nothing else."""
    with open("/proc/thread-self/ns/net") as own:
        assert _libc.unshare(CLONE_NEWNET) == 0
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            assert _libc.setns(own.fileno(), CLONE_NEWNET) == 0


class Child:
    """A namespace of the pod's own, held by a process, a mount, or nothing but a descriptor."""

    def __init__(self, how: str, stack: ExitStack, pod: Pod) -> None:
        fd = fresh()
        stack.callback(os.close, fd)
        self.path = f"/proc/self/fd/{fd}"
        if how == "process":
            holder = subprocess.Popen(["nsenter", f"--net=/proc/{os.getpid()}/fd/{fd}", "sleep", "1000"])
            stack.callback(holder.wait)
            stack.callback(holder.kill)
        if how == "mount":
            mount = Path(f"{pod.path}-child-{fd}")
            mount.touch()
            stack.callback(mount.unlink)
            subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/fd/{fd}", str(mount)], check=True)
            stack.callback(subprocess.run, ["umount", str(mount)], check=True)

    def ip(self, *words: str) -> Any:
        with entered(self.path):
            return ip(*words)

    def links(self) -> set[str]:
        return {i["ifname"] for i in self.ip("link")} - {"lo"}

    def take(self, where: str, name: str, new: str = "", index: int = 0) -> None:
        """Move a link here out of the namespace at that path."""
        words = ["name", new] if new else []
        with open(self.path) as there, entered(where):
            path = f"/proc/{os.getpid()}/fd/{there.fileno()}"
            command = ["ip", "link", "set", name, "netns", path, *words, *(["index", str(index)] if index else [])]
            subprocess.run(command, check=True, capture_output=True)

    def use(self, name: str, address: str = OLD) -> None:
        """As the pod would: the address is on the wire again."""
        self.ip("addr", "add", f"{address}/24", "dev", name)
        self.ip("link", "set", name, "up")


@pytest.fixture(autouse=True)
def results(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runtime keeps what ADD answered, until DEL succeeds, as libcni does."""
    folder, call = host.tmp_path / "results", Host.call
    folder.mkdir()

    def called(self: Host, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> Any:
        reply = call(self, command, pod, conf, **environ)
        if pod and reply.exit_code == 0 and command in ("ADD", "DEL"):
            name = json.loads(conf)["name"] if isinstance(conf, bytes) else (conf or self.conf())["name"]
            path = folder / f"{name}-{pod.name}-{environ.get('CNI_IFNAME', 'hpn0')}"
            path.touch() if command == "ADD" else path.unlink(missing_ok=True)
        return reply

    monkeypatch.setattr(Host, "call", called)
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(folder),))
    return folder


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def wire(host: Host) -> Callable[[], bool]:
    """Whether the pod's old address answers on the fabric, which is in a namespace of its own."""
    ip("addr", "add", "10.56.0.99/24", "dev", "fabric")

    def answers() -> bool:
        ip("neigh", "flush", "dev", "fabric")
        return host.ping(OLD, "-W", "1")

    return answers


def over_the_master(*others: "Child | Pod") -> list[str]:
    """Every link over rail0 there is, wherever."""
    return [
        i["ifname"]
        for one in others
        for i in one.ip("-d", "link")
        if i.get("linkinfo", {}).get("info_kind") in ("macvlan", "macvtap")
    ]


HOLDERS = pytest.mark.parametrize("how", ["process", "descriptor", "mount"])


@HOLDERS
def test_moved_to_a_child(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], how: str
) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child(how, stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    assert wire()
    reply = host.call("DEL", pod)
    assert (reply.exit_code, reply.log) == (0, ())
    assert child.links() == pod.links() == set()
    assert not wire()
    assert host.leases() == set()
    assert host.state_files() == set()


def gone_or_kept(host: Host, make_pod: Callable[[], Pod], reply: Any) -> None:
    """DEL succeeded and said what it could not see, and nobody is given the address."""
    assert reply.exit_code == 0, reply
    assert any("addresses may be in use" in line for line in reply.log), reply.log
    (kept,) = [line for line in leases(host.state / "ipam") if "10.56.0.2/24" in line["addresses"]]
    assert kept["boot"], kept
    result = host.ok("ADD", make_pod())
    assert OLD not in str(result["ips"])


def proved(host: Host, make_pod: Callable[[], Pod], reply: Any) -> None:
    """DEL succeeded without a word, and the address is free."""
    assert (reply.exit_code, reply.log) == (0, ())
    assert host.leases() == set()
    host.ok("ADD", make_pod(), CNI_ARGS=f"IP={OLD}")


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
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child, grandchild) == []
    assert not wire()
    proved(host, make_pod, reply)


@pytest.mark.parametrize("changed", ["name", "mac", "index"])
def test_changed_beyond_recognition_but_for_one(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], changed: str
) -> None:
    """Index or MAC is enough to know it by."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0", *(("data0",) if changed == "name" else ("", 4711) if changed == "index" else ()))
    name = "data0" if changed == "name" else "hpn0"
    if changed == "mac":
        child.ip("link", "set", name, "address", "02:00:00:00:00:07")
    child.use(name)
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child) == []
    assert not wire()
    proved(host, make_pod, reply)


def test_index_and_mac_are_others_now(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """It is removed, since it is over our master; but ours might be another that is hidden."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0", "data0", 4711)
    child.ip("link", "set", "data0", "address", "02:00:00:00:00:07")
    child.use("data0")
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child) == []
    assert not wire()
    gone_or_kept(host, make_pod, reply)


def test_decoys_with_its_names(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """In the pod and in the child, by name, altname and index; they stay, for they lead nowhere."""
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
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child) == []
    assert pod.links() == {"decoy", "decoy2"}
    assert child.links() == {"hpn0"}
    assert not wire()
    proved(host, make_pod, reply)


@pytest.mark.parametrize("kind", ["macvlan", "macvtap"])
@pytest.mark.parametrize("where", ["pod", "child", "both"])
def test_stacked_on_it(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool], kind: str, where: str
) -> None:
    """The kernel hangs it on the master, so it outlives what it was made over."""
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
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child) == []
    assert not wire()
    proved(host, make_pod, reply)


def test_a_double_of_it_is_left_in_its_place(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """Index, MAC, kind and master are ours; both go."""
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
    assert wire()
    reply = host.call("DEL", pod)
    assert over_the_master(pod, child) == []
    assert not wire()
    proved(host, make_pod, reply)


def test_hidden_behind_a_namespace_that_is_gone(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """The pod knows the first, the first knew the second; nothing leads there any more, and DEL says so."""
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


def test_the_pod_has_deleted_it(host: Host, make_pod: Callable[[], Pod]) -> None:
    """As far as we can see that is the same."""
    pod = make_pod()
    host.ok("ADD", pod)
    pod.ip("link", "delete", "hpn0")
    gone_or_kept(host, make_pod, host.call("DEL", pod))


def test_what_may_be_in_use_is_given_after_a_probe(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """The pod's hidden interface answers, and then no more."""
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
    assert wire()
    for _ in range(2):
        assert host.refused("ADD", make_pod(), conf)["code"] == 104
    hidden.ip("link", "delete", "hpn0")
    host.ok("ADD", make_pod(), conf)


def test_the_pod_is_gone_and_its_child_is_not(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """The master still receives for its MAC: it is looked for wherever somebody is."""
    pod = make_pod()
    host.ok("ADD", pod)
    child = Child("process", stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    pod.gone()
    assert wire()
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


def test_moved_to_and_fro_meanwhile(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """Caught, or kept back; and no DEL takes long."""
    for _ in range(5):
        pod = make_pod()
        (entry, *_) = host.ok("ADD", pod)["ips"]
        address = entry["address"].partition("/")[0]
        child, over = Child("descriptor", stack, pod), threading.Event()

        def move(pod: Pod = pod, child: Child = child, over: threading.Event = over) -> None:
            while not over.is_set():
                for where, there in ((pod.path, child.path), (child.path, pod.path)):
                    with entered(where), open(there) as target:
                        path = f"/proc/{os.getpid()}/fd/{target.fileno()}"
                        subprocess.run(["ip", "link", "set", "hpn0", "netns", path], capture_output=True, check=False)

        moving = threading.Thread(target=move)
        moving.start()
        try:
            reply = host.call("DEL", pod)
        finally:
            over.set()
            moving.join()
        assert reply.exit_code == 0
        if over_the_master(pod, child):
            assert reply.log, "it said that it is gone"
            assert address in host.leases(), "another pod could be given it"


def test_a_thousand_stacked_links(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    lines = "".join(f"link add link hpn0 name s{i} type macvlan mode bridge\n" for i in range(1000))
    subprocess.run(["ip", "-n", pod.name, "-batch", "-"], input=lines.encode(), check=True)
    began = time.monotonic()
    reply = host.call("DEL", pod)
    assert time.monotonic() - began < LONGEST
    assert pod.links() == set()
    proved(host, make_pod, reply)


def test_a_crowd_of_namespaces(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """Those that lead nowhere cost little."""
    pod = make_pod()
    host.ok("ADD", pod)
    for i in range(200):
        pod.ip("link", "add", f"v{i}", "type", "veth", "peer", "name", f"w{i}")
        Child("descriptor", stack, pod).take(pod.path, f"v{i}")
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    assert wire()
    began = time.monotonic()
    reply = host.call("DEL", pod)
    assert time.monotonic() - began < LONGEST
    assert child.links() == set()
    assert not wire()
    proved(host, make_pod, reply)


def test_more_namespaces_than_there_is_time_for(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """Each with an interface on our master.  DEL gives up in time and says so."""
    pod = make_pod()
    host.ok("ADD", pod)
    for i in range(150):
        pod.ip("link", "add", "link", "hpn0", "name", f"s{i}", "type", "macvlan", "mode", "bridge")
        Child("descriptor", stack, pod).take(pod.path, f"s{i}")
    began = time.monotonic()
    reply = host.call("DEL", pod)
    assert time.monotonic() - began < LONGEST
    assert over_the_master(pod) == []
    gone_or_kept(host, make_pod, reply)


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
