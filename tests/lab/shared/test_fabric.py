"""hpn fabric between four hosts with two rails each, over soft-RoCE: faults of links are named exactly.

The hosts are namespaces, and a switch is one more, with a bridge for each rail.  The emulated machine is slow and its
bandwidth varies by a factor of ten, so pairs are tested one by one, and the faults are larger than that.
"""

import ctypes
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from guest.machine import rdma
from support.topology import Pod, until

from base.kernel import netns
from base.kernel.syscalls import libc
from ctl.fabric import command

HOSTS, RAILS = 4, 2
TOLERANT = ["--one-by-one", "--seconds", "1", "--queue-pairs", "1", "--patience", "120", "--qp-timeout", "19"]
LIMITS = ["--of-median", "0.05", "--of-least", "0"]
CLONE_NEWNS, MS_PRIVATE_OF_ALL = 0x20000, 0x44000
Found = list[tuple[str, str, list[tuple[int, int]]]]


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def inside(pod: Pod, out: Path, words: list[str]) -> NoReturn:
    """In a child process: run the command in the pod, with the pod's /sys; end with its status."""
    status = 99
    try:
        sys.stdout = out.open("w", buffering=1)
        with netns.hold_open(pod.path) as fd:
            assert libc.setns(fd, netns.CLONE_NEWNET) == 0
        assert libc.unshare(CLONE_NEWNS) == 0
        assert libc.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE_OF_ALL), None) == 0
        assert libc.mount(b"sysfs", b"/sys", b"sysfs", ctypes.c_ulong(0), None) == 0
        text, status = command.answer(words)
        sys.stdout.write(text)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  # this process must not go on as a second test
        traceback.print_exc()
    finally:
        os._exit(status)


@contextmanager
def process(pod: Pod, out: Path, words: list[str]) -> Iterator[int]:
    """The command in the pod; it is killed at the end, if it still runs."""
    pid = os.fork()
    if not pid:
        inside(pod, out, words)
    try:
        yield pid
    finally:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(pid, 9)
        os.waitpid(pid, 0)


@dataclass
class Fabric:
    """Four hosts, and the switch with port ``pHR`` for rail R of host H."""

    switch: Pod
    hosts: list[Pod]
    folder: Path

    def test(self, *words: str) -> tuple[int, Found, dict[str, Any], str]:
        """Serve on all hosts but the first, and test there: status, findings, document and text."""
        with ExitStack() as stack:
            lines = []
            for number, host in enumerate(self.hosts[1:], 1):
                out = self.folder / f"served{number}"
                out.unlink(missing_ok=True)
                bound = ["serve", "--bind", f"10.8.0.{number + 1}"]
                stack.enter_context(process(host, out, bound))
                lines.append(until(lambda out=out: out.exists() and out.read_text().strip()))
            listed, out, document = (self.folder / name for name in ("hosts", "out", "document"))
            listed.write_text("\n".join(lines))
            words = ("test", "--hosts", f"{listed}", "--json", f"{document}", *TOLERANT, *LIMITS, *words)
            pid = stack.enter_context(process(self.hosts[0], out, list(words)))
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert ended
            text = out.read_text()
            assert document.exists(), text
            body = json.loads(document.read_text())
        names = [one["name"] for one in body["hosts"]]
        findings = [
            (one["culprit"], one["verdict"], [(names.index(at["host"]), at["rail"]) for at in one["places"]])
            for one in body["findings"]
        ]
        return ended.si_status, findings, body, text


@pytest.fixture
def fabric(make_pod: Callable[[], Pod], tmp_path: Path) -> Iterator[Fabric]:
    switch, hosts = make_pod(), [make_pod() for _ in range(HOSTS)]
    devices = []
    with ExitStack() as undo:
        for name in (*(f"rail{rail}" for rail in range(RAILS)), "manage"):
            run("ip", "-n", switch.name, "link", "add", name, "up", "type", "bridge", "vlan_filtering", "1")
        for number, host in enumerate(hosts):
            attach(switch, host, "manage", f"m{number}", f"10.8.0.{number + 1}/24")
            for rail in range(RAILS):
                attach(switch, host, f"rail{rail}", f"p{number}{rail}", f"10.9.{rail}.{number + 1}/24")
                name = f"h{number}r{rail}"
                undo.callback(rdma, "link", "delete", name)
                rdma("link", "add", name, "type", "rxe", "netdev", f"rail{rail}", netns=host.name)
                devices.append(name)
        for name in devices:
            until(lambda name=name: has_gid(name))
        yield Fabric(switch, hosts, tmp_path)


def attach(switch: Pod, host: Pod, name: str, port: str, address: str) -> None:
    """Connect an interface of a host to the switch's bridge of the same name."""
    peer = ("peer", "name", port, "netns", switch.name)
    run("ip", "-n", host.name, "link", "add", name, "type", "veth", *peer)
    run("ip", "-n", switch.name, "link", "set", port, "master", name, "up")
    run("ip", "-n", host.name, "address", "add", address, "dev", name)
    run("ip", "-n", host.name, "link", "set", name, "up")


def has_gid(device: str) -> bool:
    gids = Path(f"/sys/class/infiniband/{device}/ports/1/gids")
    return any(":ffff:0a09:" in (gids / f"{index}").read_text() for index in range(8))


def delayed(host: Pod, rail: str, *how: str) -> None:
    run("tc", "-n", host.name, "qdisc", "add", "dev", rail, "root", *how)


# Both faults let every program end by itself: killed ones leave packets in the queue, and soft-RoCE warns of these.
# Each has a test of its own, because a long way also lowers the rate with which others are compared.


def test_a_slow_rail(fabric: Fabric) -> None:
    """A rate on rail 1 of one host, which the slowest emulated machine exceeds fifty times."""
    delayed(fabric.hosts[2], "rail1", "tbf", "rate", "600kbit", "burst", "4kb", "limit", "10mb")
    status, findings, body, text = fabric.test("--quick", "--rails", "1")
    assert (status, findings) == (1, [("rail", "slow", [(2, 1)])]), text
    assert body["counts"] == {"ok": 1, "slow": 1}, text


def test_a_late_rail(fabric: Fabric) -> None:
    """A long way on rail 0 of one host.  On a busy machine the others differ by a factor of ten."""
    delayed(fabric.hosts[1], "rail0", "netem", "delay", "500ms", "limit", "100000")
    status, findings, body, text = fabric.test("--quick", "--rails", "0", "--of-least", "22")
    assert (status, findings) == (1, [("rail", "slow", [(1, 0)])]), text
    assert body["counts"] == {"ok": 1, "slow": 1}, text


def test_cut_rails(fabric: Fabric) -> None:
    """A cable that is pulled on rail 0, and a wrong VLAN on rail 1."""
    run("ip", "-n", fabric.switch.name, "link", "set", "p30", "down")
    run("bridge", "-n", fabric.switch.name, "vlan", "add", "dev", "p11", "vid", "7", "pvid", "untagged")
    status, findings, _, text = fabric.test("--quick")
    assert (status, sorted(findings)) == (1, [("rail", "cut", [(1, 1)]), ("rail", "cut", [(3, 0)])]), text
    assert "its port is DOWN, not ACTIVE" in text
    assert "no TCP connection to 10.9.1." in text or "no answer from 10.9.1." in text


def test_no_fault_and_a_rail_without_a_gid(fabric: Fabric) -> None:
    """What cannot run is no finding, and no other one is there; the rails are isolated from each other."""
    run("ip", "-n", fabric.hosts[1].name, "address", "flush", "dev", "rail1", "scope", "global")
    status, findings, body, text = fabric.test("--quick", "--isolated")
    assert (status, findings) == (2, []), text
    assert "rail1 has no IPv4 address" in text
    # Hosts 1 and 3 have one rail left, so their isolation is unknown.
    assert body["counts"] == {"ok": 5, "not run": 3}, text
