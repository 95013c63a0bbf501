"""A process that may open few files or start no process: each command fails as an error of CNI, leaves nothing, and the
next one works."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn
import pytest
from netns.test_claimed import ARGS, CLAIM, MASTER
from support.topology import Host, Pod, until

from base.child_process import Child
from base.kernel import neighbors
from base.protocol.spec import Reply
from base.state import claims
from cni import commands

SCRIPT = """#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.56.0.9/24"}]}'
exit 0
"""
# Error 5: state cannot be read or written; 11: repeat the call.
CODES = (5, 11)
MOST = 64  # descriptors; an ADD has about twelve open at once
PIDS = Path("/sys/fs/cgroup/pids")


@contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Let this process open ``number`` more files at once."""
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def opened() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


KINDS = ("plain", "steered", "claim", "host-device")


def conf_of(kind: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(claims, "FOLDER", f"{host.tmp_path}/claims")
    monkeypatch.setattr(commands, "CLAIMS_DIR", claims.FOLDER)
    if kind == "claim":
        claims.save(replace(CLAIM, devices=(replace(MASTER, ips=(), mac=""),)))
        return host.conf(master=..., deviceID="rail0")
    if kind == "host-device":
        return host.conf(kind="host-device", master=..., device="rail0")
    steered = {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "policyRouting": True}
    return host.conf(**(steered if kind == "steered" else {}))


@pytest.mark.parametrize("kind", drawn.share(KINDS, "kinds with few descriptors"))
@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL", "GC"])
def test_few_descriptors(
    host: Host, make_pod: Callable[[], Pod], kind: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, pod, refused = conf_of(kind, host, monkeypatch), make_pod(), 0
    # Imports what commands need: the program has all modules in one open file, and these tests have not.
    host.checked(pod, conf, host.ok("ADD", pod, conf, CNI_ARGS=ARGS), CNI_ARGS=ARGS)
    host.refused("ADD", pod, conf, CNI_ARGS=ARGS)
    host.ok("DEL", pod, conf, CNI_ARGS=ARGS)
    before = host.picture(pod)
    for number in range(MOST):
        result = host.ok("ADD", pod, conf, CNI_ARGS=ARGS) if command != "ADD" else {}
        more = {"CHECK": {"prevResult": result}, "GC": {"cni.dev/valid-attachments": []}}.get(command, {})
        held = opened()
        with descriptors(number):
            reply = host.call(command, None if command == "GC" else pod, conf | more, CNI_ARGS=ARGS)
        until(lambda held=held: opened() == held)  # a removal ends in a thread
        host.ok("DEL", pod, conf, CNI_ARGS=ARGS)
        assert host.picture(pod) == before, f"with {number} descriptors"
        if reply.exit_code == 0:
            break
        refused += 1
        error = json.loads(reply.stdout)
        assert (error["code"] in CODES, "oo many open files" in error["msg"]) == (True, True), (number, error)
    assert 2 < refused == number
    host.ok("ADD", pod, conf, CNI_ARGS=ARGS)
    host.ok("DEL", pod, conf, CNI_ARGS=ARGS)


@pytest.fixture
def processes() -> Iterator[Path]:
    """A cgroup whose processes and threads are counted."""
    folder = PIDS / f"hpn-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no cgroup of pids can be made here: {e.strerror}")
    yield folder
    until(lambda: not (folder / "tasks").read_text())
    folder.rmdir()


def within(folder: Path, number: int, work: Callable[[], object]) -> Any:
    """The result of work in a process of its own, in a cgroup with so many processes and threads."""

    def inside() -> object:
        (folder / "pids.max").write_text(f"{number}")
        (folder / "cgroup.procs").write_text("0")
        return work()

    return Child(inside).answer()


def limited(folder: Path, number: int, host: Host, *words: Any, **environ: str) -> tuple[int, str]:
    """The exit status and the answer of a command there."""
    reply: Reply = within(folder, number, lambda: host.call(*words, **environ))
    return reply.exit_code, reply.stdout


def test_announcing_without_a_thread(host: Host, processes: Path) -> None:
    """As ADD does for a device: closing the socket takes long, so a thread does it where there is one."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    assert within(processes, 1, lambda: neighbors.send(own, "rail0", [bytes(60)])) is None
    os.close(own)


def test_no_thread(host: Host, pod: Pod, processes: Path) -> None:
    """A thread only saves time, so each command does without."""
    before = host.picture(pod)
    code, text = limited(processes, 1, host, "ADD", pod, host.conf())
    assert code == 0, text
    for command, conf in (("CHECK", host.conf(prevResult=json.loads(text))), ("DEL", host.conf())):
        assert limited(processes, 1, host, command, pod, conf)[0] == 0
    assert host.picture(pod) == before


@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL"])
def test_few_processes(host: Host, pod: Pod, processes: Path, command: str) -> None:
    """The IPAM plugin is another program."""
    (host.tmp_path / "bin").mkdir()
    path = host.tmp_path / "bin/script"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    conf, environ = host.conf(ipam={"type": "script"}), {"CNI_PATH": f"{path.parent}"}
    before = host.picture(pod)

    for number in range(1, 10):
        result = host.ok("ADD", pod, conf, **environ) if command != "ADD" else {}
        asked = conf | ({"prevResult": result} if command == "CHECK" else {})
        code, text = limited(processes, number, host, command, pod, asked, **environ)
        host.ok("DEL", pod, conf, **environ)
        assert host.picture(pod) == before
        if code == 0:
            break
        error = json.loads(text)
        assert (error["code"], "no process can be started now" in error["msg"]) == (11, True), (number, error)
    assert number > 1
