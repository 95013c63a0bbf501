"""GC treats a pod as dead only if it sees all mounts and processes that could hold the pod's namespace."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from netns.collecting import LISTS, collect
from support.processes import await_inside
from support.topology import Host, Pod

from base.kernel import netns
from base.protocol.spec import Key
from base.state import journal
from base.state.record import LOST
from cni import undo
from cni.attachments import list_all
from ctl import inspection

ROOT = Path(__file__).parents[2]


def collect_from_elsewhere(host: Host, unseen: Pod) -> None:
    """Run GC without a list, in another mount and PID namespace, as by an agent in a container."""
    script = f'{{ ! test -e {unseen.path} || umount {unseen.path}; }} && exec "$0" -m ctl'
    environ = {"PATH": os.environ["PATH"], "CNI_COMMAND": "GC", "CNI_PATH": "/nonexistent"}
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, sys.executable],
        input=json.dumps(host.conf()).encode(), capture_output=True, check=False, cwd=ROOT, env=environ, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b""), done


@pytest.mark.parametrize("held_by", ["a mount", "a process"])
def test_who_does_not_see_the_pods_takes_none_for_dead(host: Host, make_pod: Callable[[], Pod], held_by: str) -> None:
    live, dead = make_pod(), make_pod()
    host.ok("ADD", live)
    host.ok("ADD", dead)
    dead.gone()
    process = None
    try:
        if held_by == "a process":
            process = subprocess.Popen(["ip", "netns", "exec", live.name, "cat"], stdin=subprocess.PIPE)
            await_inside(process, live.inode())
            live.gone()
        before = host.picture()
        collect_from_elsewhere(host, live)
        assert host.picture() == before, "the dead one neither: nothing is proven there"
        collect(host)
        assert [host.record(pod).exists() for pod in (live, dead)] == [True, False]
        assert host.leases() == {"10.56.0.2", "fd00:56::2"}
        if held_by == "a mount":
            assert live.links() == {"hpn0"}
    finally:
        if process:
            process.communicate()
    if held_by == "a process":
        collect(host)
        assert host.state_files() == set()


@pytest.mark.parametrize("view", ["mounts", "processes"])
def test_both_are_to_be_seen(host: Host, pod: Pod, view: str) -> None:
    """GC keeps a record from another mount or PID namespace, where the pod may be alive."""
    host.ok("ADD", pod)
    identity = host.identity(pod)
    host.rewrite(host.record(pod), identity=identity | {view: 1})
    pod.gone()
    collect(host)
    assert host.record(pod).exists()
    host.rewrite(host.record(pod), identity=identity)
    collect(host)
    assert host.state_files() == set()


def test_a_record_of_before_there_was_a_view(host: Host, pod: Pod) -> None:
    """GC without a list keeps a record without a view, which proves nothing; DEL and GC with a list succeed."""
    host.ok("ADD", pod)
    identity = host.identity(pod)
    host.rewrite(host.record(pod), identity={key: identity[key] for key in ("inode", "cookie")})
    pod.gone()
    collect(host)
    assert host.record(pod).exists()
    host.ok("DEL", pod)
    collect(host, **{LISTS[0]: []})
    assert host.state_files() == set()


def test_what_a_damaged_record_says_proves_no_death(host: Host, pod: Pod) -> None:
    """GC without a list keeps a damaged record, because the pod that it names may be wrong."""
    host.ok("ADD", pod)
    record = host.record(pod)
    record.write_text(record.read_text().replace('"complete":true', '"complete":null'))
    pod.gone()
    assert host.refused("GC", None, CNI_IFNAME="")["code"] == 108
    host.ok("GC", None, CNI_IFNAME="")
    assert record.exists()
    host.ok("GC", None, host.conf(**{"cni.dev/valid-attachments": []}), CNI_IFNAME="")
    assert not record.exists()


def test_a_path_that_is_no_mount(host: Host, pod: Pod) -> None:
    """GC keeps a pod that only the runtime's own descriptor holds, without a mount or a process in it."""
    fd = os.open(pod.path, os.O_RDONLY)
    try:
        host.ok("ADD", pod, CNI_NETNS=f"/proc/{os.getpid()}/fd/{fd}")
        pod.gone()
        collect(host)
        assert host.record(pod).exists()
    finally:
        os.close(fd)
    collect(host)
    assert host.state_files() == set()


def looks(work: Callable[[], object]) -> int:
    """The number of searches through all processes during the work, as counted by the interpreter."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code in (netns.inhabited.__code__, netns.holders.__code__)

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_one_look_for_all(host: Host, make_pod: Callable[[], Pod]) -> None:
    """One search serves all records: a node without the agent may collect a thousand attachments of dead pods."""
    pods = [make_pod() for _ in range(4)]
    for pod in pods:
        host.ok("ADD", pod)
    dead, elsewhere, older, living = [journal.peek(host.state, "rail0", Key(pod.name, "hpn0")) for pod in pods]
    assert dead
    assert elsewhere
    assert older
    assert living
    for pod in pods[:2]:
        pod.gone()
    records = [
        replace(dead, identity=replace(dead.identity, mounts=1)),
        dead,
        replace(elsewhere, identity=replace(elsewhere.identity, processes=1)),
        replace(older, boot="older"),
        replace(dead, kind=LOST),
        living,
    ]
    assert undo.are_dead(records) == [False, True, False, True, False, False]
    assert looks(lambda: undo.are_dead([*records, *[dead] * 100])) == 1
    assert looks(lambda: list_all(host.state)) == 1
    assert looks(lambda: inspection.answer_list(["--state-dir", f"{host.state}"])) == 1
