"""Addresses of provably dead pods are allocated again, those of living pods never."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ipam_calls import Net
from support.namespaces import needs_cookies
from support.processes import await_inside
from support.topology import Host, Pod, ip, until

from base.kernel import netns
from ipam import main

TWO = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.2", "rangeEnd": "10.0.0.3"}
ROOT = Path(__file__).parents[2]
MakePod = Callable[[], Pod]


@pytest.fixture
def net(host: Host) -> Net:
    """A network with two addresses; the IPAM runs alone, as under another main plugin."""
    return Net(host.state, TWO)


def call(net: Net, command: str, pod: Pod, path: str = "", **environ: str) -> dict[str, Any]:
    request = net.request(command, pod.name).but(CNI_NETNS=path or pod.path, **environ)
    return json.loads(main.run(request).stdout or "{}")


def add(net: Net, pod: Pod, path: str = "", **environ: str) -> str:
    answer = call(net, "ADD", pod, path, **environ)
    assert "ips" in answer, answer
    return str(answer["ips"][0]["address"].partition("/")[0])


@needs_cookies
def test_the_dead_give_way_when_nothing_is_free(net: Net, make_pod: MakePod) -> None:
    live, dead, new, late = (make_pod() for _ in range(4))
    kept, freed = add(net, live), add(net, dead)
    dead.gone()
    assert add(net, new) == freed
    assert net.leases() == {f"{live.name}:net1": (kept,), f"{new.name}:net1": (freed,)}
    for _ in range(2):
        answer = call(net, "ADD", late)
        assert answer["code"] == 103
    assert net.agrees()


def test_not_before(net: Net, make_pod: MakePod) -> None:
    dead, new = make_pod(), make_pod()
    freed = add(net, dead)
    dead.gone()
    assert add(net, new) != freed
    assert len(net.leases()) == 2


def test_an_older_boots_give_way(net: Net, make_pod: MakePod) -> None:
    pods = [make_pod() for _ in range(4)]
    for pod in pods[:2]:
        add(net, pod)
        net.rewrite(pod.name, boot="another")
    assert {add(net, pod) for pod in pods[2:]} == {"10.0.0.2", "10.0.0.3"}


@needs_cookies
def test_a_requested_address_of_the_dead(net: Net, make_pod: MakePod) -> None:
    live, dead, new = make_pod(), make_pod(), make_pod()
    kept, freed = add(net, live), add(net, dead)
    dead.gone()
    assert call(net, "ADD", new, CNI_ARGS=f"IP={kept}")["code"] == 102
    assert add(net, new, CNI_ARGS=f"IP={freed}") == freed


@needs_cookies
def test_status_counts_with_them(net: Net, make_pod: MakePod) -> None:
    live, dead = make_pod(), make_pod()
    add(net, live)
    add(net, dead)
    assert net.call("STATUS")["code"] == 50
    dead.gone()
    assert net.call("STATUS") == {}


@needs_cookies
def test_the_same_key_and_path_come_back(net: Net, make_pod: MakePod) -> None:
    """As with cnitool, the same key and path return with another, living namespace: the pod gets the same address."""
    back, other, late = make_pod(), make_pod(), make_pod()
    first = add(net, back)
    back.remade()
    assert add(net, back) == first
    add(net, other)
    assert call(net, "ADD", late)["code"] == 103
    back.gone()
    assert add(net, late) == first


@needs_cookies
def test_the_same_path_and_inode_of_another_key(net: Net, make_pod: MakePod) -> None:
    """The cookie alone distinguishes a new namespace with the inode number of the old one."""
    dead, other, new = make_pod(), make_pod(), make_pod()
    freed = add(net, dead)
    add(net, other)
    dead.remade()
    body = net.body(dead.name)
    net.rewrite(dead.name, sandbox=body["sandbox"] | {"inode": dead.inode()})
    assert add(net, new) == freed


@needs_cookies
def test_a_process_in_it_is_enough(net: Net, make_pod: MakePod) -> None:
    """A pod without its path counts as alive if a process is in the namespace."""
    lives, other, new = make_pod(), make_pod(), make_pod()
    freed = add(net, lives)
    add(net, other)
    process = subprocess.Popen(["ip", "netns", "exec", lives.name, "cat"], stdin=subprocess.PIPE)
    try:
        await_inside(process, lives.inode())
        lives.gone()
        assert call(net, "ADD", new)["code"] == 103
    finally:
        process.communicate()
    assert add(net, new) == freed


@needs_cookies
def test_a_process_whose_first_thread_has_ended(net: Net, make_pod: MakePod) -> None:
    """A process counts although its first thread has ended and its own link is broken: another thread is in the
    namespace."""
    lives, other, new = make_pod(), make_pod(), make_pod()
    freed = add(net, lives)
    add(net, other)
    program = (
        "import ctypes, sys, threading as t; t.Thread(target=sys.stdin.read).start(); ctypes.CDLL(None).pthread_exit(0)"
    )
    command = ["ip", "netns", "exec", lives.name, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        until(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text())
        number = lives.inode()
        lives.gone()
        assert call(net, "ADD", new)["code"] == 103
        assert list(netns.holders(number))
    assert add(net, new) == freed


@needs_cookies
def test_by_the_path_of_a_process(net: Net, make_pod: MakePod) -> None:
    """The same holds for the path of a process, which container runtimes without named namespaces use."""
    pod, other, new = make_pod(), make_pod(), make_pod()
    add(net, other)
    process = subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE)
    try:
        own = Path("/proc/self/ns/net").stat().st_ino
        until(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino != own)
        freed = add(net, pod, f"/proc/{process.pid}/ns/net")
        assert call(net, "ADD", new)["code"] == 103
    finally:
        process.communicate()
    assert add(net, new) == freed


@needs_cookies
@pytest.mark.parametrize("what", ["mounts", "processes"])
def test_who_sees_another_part_of_the_machine_does_not_judge(net: Net, make_pod: MakePod, what: str) -> None:
    dead, other, new = make_pod(), make_pod(), make_pod()
    add(net, dead)
    add(net, other)
    dead.gone()
    net.rewrite(dead.name, sandbox=net.body(dead.name)["sandbox"] | {what: 1})
    assert call(net, "ADD", new)["code"] == 103


def test_who_may_not_see_processes_does_not_judge(host: Host) -> None:
    assert netns.inhabited()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os._exit(0 if netns.inhabited() is None else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_who_is_shown_no_others_processes_does_not_judge() -> None:
    """The search reports no result if /proc hides other processes, as with systemd's ProtectProc=ptraceable and without
    CAP_SYS_PTRACE."""
    look = "from base.kernel import netns; print(netns.inhabited())"
    hide = 'mount -t proc -o hidepid=ptraceable proc /proc && exec "$@"'
    bounded = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", sys.executable, "-c", look]
    words = ["unshare", "--mount", "--propagation=private", "sh", "-c", hide, "sh", *bounded]
    assert subprocess.check_output(words, text=True, cwd=ROOT) == "None\n"


# Starts a process that another user may not read until it is AGE + HIDDEN seconds old.  That user searches at AGE, and
# prints its finding and its number of pauses.
BEYOND = """
import ctypes, json, os, sys, time
from base.kernel import netns
age, hidden = map(float, sys.argv[1:])
def become_nobody():
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which a change of user takes away
if not (process := os.fork()):
    time.sleep(age + hidden)
    become_nobody()
    time.sleep(60)
time.sleep(age)
become_nobody()
pauses, pause = [], time.sleep
time.sleep = lambda seconds: (pauses.append(seconds), pause(seconds))
found = netns.inhabited()
print(json.dumps([found is not None, len(pauses)]))
"""


@pytest.mark.parametrize(
    ("age", "hidden", "seen", "is_young"), [(0, 0.3, True, True), (0, 60, False, True), (1.5, 60, False, False)]
)
def test_who_may_not_see_a_process_yet_looks_again(age: float, hidden: float, seen: bool, is_young: bool) -> None:
    """The search repeats for a young invisible process: a program with more privileges starts so, and stays so until it
    executes its own program."""
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", BEYOND]

    def found() -> bool:
        done = subprocess.run([*alone, str(age), str(hidden)], capture_output=True, text=True, check=True, cwd=ROOT)
        found, pauses = json.loads(done.stdout)
        assert found <= seen
        # Without a free processor, the process was older than intended, or became visible at once.
        return bool(found == seen and (pauses > 0) == is_young)

    until(found)


@needs_cookies
def test_inside_the_plugin_the_same_is_recorded(host: Host, net: Net, make_pod: MakePod) -> None:
    """Under hpn the IPAM records the same namespace, from the main plugin's open descriptor."""
    pod, elsewhere = make_pod(), make_pod()
    add(net, pod)
    alone = net.body(pod.name)["sandbox"]
    net.call("DEL", pod.name)
    host.ok("ADD", pod, host.conf(name="net", ipam={"type": "hpn-ipam", **TWO}))
    assert net.body(pod.name, "hpn0")["sandbox"] == alone
    assert alone["inode"] == pod.inode()
    add(net, elsewhere)
    assert net.body(elsewhere.name)["sandbox"]["cookie"] != alone["cookie"]


@needs_cookies
def test_what_a_launcher_opened_where_we_do_not_see_it(net: Net, make_pod: MakePod) -> None:
    """An agent in a container records the namespace only if the given descriptor matches the path, because it cannot
    see the namespace later."""
    pod, other = make_pod(), make_pod()
    with netns.hold_open(pod.path) as fd:
        sock = netns.run_in(fd, lambda: __import__("socket").socket(16, 3, 0))
        with sock:
            for path, known in ((other.path, False), ("/run/netns/nowhere", False), (pod.path, True)):
                request = net.request("ADD", pod.name).but(CNI_NETNS=path)
                request = type(request)(request.environ, request.stdin, (fd, sock.fileno()))
                assert not json.loads(main.run(request).stdout).get("code")
                assert ("sandbox" in net.body(pod.name)) is known


@needs_cookies
@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc(net: Net, make_pod: MakePod, key: str) -> None:
    """With a list GC follows it alone; without one GC releases leases of dead pods."""
    live, listed, dead = make_pod(), make_pod(), make_pod()
    net.ipam = {"subnet": "10.0.0.0/24"}
    for pod in (live, listed, dead):
        add(net, pod)
    listed.gone()
    dead.gone()
    assert net.call("GC", **{key: [{"containerID": p.name, "ifname": "net1"} for p in (live, listed)]}) == {}
    assert set(net.leases()) == {f"{live.name}:net1", f"{listed.name}:net1"}
    assert net.call("GC") == {}
    assert set(net.leases()) == {f"{live.name}:net1"}
    assert net.agrees()
    ip("netns", "delete", live.name)
    assert net.call("GC") == {}
    assert net.leases() == {}


def test_a_kernel_without_cookies(net: Net, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.14 nothing distinguishes a namespace from the next one with its number, so nothing is recorded."""
    monkeypatch.setattr(netns, "SO_NETNS_COOKIE", 0x7FFF)  # an option that no kernel has
    dead = make_pod()
    add(net, dead)
    dead.gone()
    assert b'"sandbox"' not in net.lines()[net.line(dead.name)]
