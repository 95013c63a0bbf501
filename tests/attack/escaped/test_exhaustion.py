"""DEL ends in time although a pod creates many links or namespaces, or moves its link all the time."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from attack.escaped.links import LONGEST, Child, entered, gone_or_kept, over_the_master, proved
from support.elapsed import Elapsed
from support.topology import Host, Pod, until

from base.kernel import netns, nsid


def send_on(where: str, to: str) -> None:
    """Move hpn0 from one namespace to the other, if it is there."""
    with entered(where), open(to) as target:
        path = f"/proc/{os.getpid()}/fd/{target.fileno()}"
        subprocess.run(["ip", "link", "set", "hpn0", "netns", path], capture_output=True, check=False)


def test_moved_to_and_fro_meanwhile(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """DEL removes a link that moves all the time, or keeps its address reserved; no DEL takes long."""
    for _ in range(5):
        pod = make_pod()
        (entry, *_) = host.ok("ADD", pod)["ips"]
        address = entry["address"].partition("/")[0]
        child, over = Child("descriptor", stack, pod), threading.Event()

        def move(pod: Pod = pod, child: Child = child, over: threading.Event = over) -> None:
            while not over.is_set():
                send_on(pod.path, child.path)
                send_on(child.path, pod.path)

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


@pytest.mark.own_process
def test_never_where_it_is_looked_for(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """DEL sees the link once, then always looks in the wrong namespace: it warns and keeps the address reserved."""
    pod = make_pod()
    (entry, *_) = host.ok("ADD", pod)["ips"]
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    with open(pod.path) as there:
        in_pod, seen = netns.cookie_of(there.fileno()), False

    def dodge(frame: Any, event: str, _: object) -> None:
        """Move the link before DEL checks a namespace; the interpreter calls this before each function."""
        nonlocal seen
        if event != "call" or frame.f_code not in (nsid.links_over.__code__, nsid.remove_links.__code__):
            return
        seen = seen or bool(frame.f_locals.get("indexes"))
        if seen:
            # A call with ``more`` asks the pod's namespace about the child.
            is_pod = netns.cookie(frame.f_locals["inside"].sock) == in_pod and not frame.f_locals.get("more")
            send_on(*(pod.path, child.path) if is_pod else (child.path, pod.path))

    sys.setprofile(dodge)
    try:
        reply = host.call("DEL", pod)
    finally:
        sys.setprofile(None)
    assert seen
    assert reply.exit_code == 0
    assert over_the_master(pod, child)
    assert reply.log, "it said that it is gone"
    assert entry["address"].partition("/")[0] in host.leases(), "another pod could be given it"


def test_a_thousand_stacked_links(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    pod = make_pod()
    host.ok("ADD", pod)
    lines = "".join(f"link add link hpn0 name s{i} type macvlan mode bridge\n" for i in range(1000))
    subprocess.run(["ip", "-n", pod.name, "-batch", "-"], input=lines.encode(), check=True)
    elapsed = Elapsed()
    reply = host.call("DEL", pod)
    assert elapsed.seconds() < LONGEST
    assert pod.links() == set()
    proved(host, make_pod, reply)


def test_a_crowd_of_namespaces(
    host: Host, make_pod: Callable[[], Pod], stack: ExitStack, wire: Callable[[], bool]
) -> None:
    """DEL quickly passes many namespaces without a path to the master."""
    pod = make_pod()
    host.ok("ADD", pod)
    for i in range(200):
        pod.ip("link", "add", f"v{i}", "type", "veth", "peer", "name", f"w{i}")
        Child("descriptor", stack, pod).take(pod.path, f"v{i}")
    child = Child("descriptor", stack, pod)
    child.take(pod.path, "hpn0")
    child.use("hpn0")
    assert until(wire)
    elapsed = Elapsed()
    reply = host.call("DEL", pod)
    assert elapsed.seconds() < LONGEST
    assert child.links() == set()
    assert not wire()
    proved(host, make_pod, reply)


def test_more_namespaces_than_there_is_time_for(host: Host, make_pod: Callable[[], Pod], stack: ExitStack) -> None:
    """Each namespace has an interface on the master.  DEL gives up in time and warns."""
    pod = make_pod()
    host.ok("ADD", pod)
    for i in range(150):
        pod.ip("link", "add", "link", "hpn0", "name", f"s{i}", "type", "macvlan", "mode", "bridge")
        Child("descriptor", stack, pod).take(pod.path, f"s{i}")
    elapsed = Elapsed()
    reply = host.call("DEL", pod)
    assert elapsed.seconds() < LONGEST
    assert over_the_master(pod) == []
    gone_or_kept(host, make_pod, reply)
