"""Attachments of dead pods are undone without GC: a few by some ADDs, all by hpn gc, and all by an idle agent."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from netns.collecting import hpn_gc
from support.elapsed import Elapsed
from support.namespaces import needs_cookies
from support.topology import PROGRAMS, Host, Pod

from agent import idle
from base.protocol.location import location
from base.protocol.spec import Key
from base.state import journal
from cni import collect
from cni.undo import Undo

ROOT = Path(__file__).parents[2]
MakePod = Callable[[], Pod]
SCRIPT = {"ipam": {"type": "script"}}


@pytest.fixture(autouse=True)
def every_add_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "EVERY", 1)


def dead_and_living(host: Host, make_pod: MakePod) -> tuple[list[Pod], list[Pod]]:
    pods = [make_pod() for _ in range(4)]
    for pod in pods:
        host.ok("ADD", pod)
    for pod in pods[:2]:
        pod.gone()
    return pods[:2], pods[2:]


def test_adds_take_the_dead_away(host: Host, make_pod: MakePod) -> None:
    """ADDs undo the attachments of dead pods one at a time, and none of a living pod."""
    dead, living = dead_and_living(host, make_pod)
    before = [host.picture(pod)[pod.name] for pod in living]
    newcomer, left = make_pod(), {pod.name for pod in dead}
    for _ in range(40):
        reply = host.call("ADD", newcomer)
        assert reply.exit_code == 0
        now = {pod.name for pod in dead if host.record(pod).exists()}
        assert len(left - now) <= 1
        left = now
        host.ok("DEL", newcomer)
        if not left:
            break
    assert not left
    assert {lease.partition(":")[0] for lease in host.state_files() if "of leases" in lease} == {p.name for p in living}
    assert [host.picture(pod)[pod.name] for pod in living] == before


def test_not_with_every_add(host: Host, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most ADDs skip the search, because it takes time."""
    monkeypatch.setattr(collect, "EVERY", 257)  # no byte has this value
    monkeypatch.setattr("os.urandom", lambda count: b"\1" * count)
    dead, _ = dead_and_living(host, make_pod)
    host.ok("ADD", make_pod())
    assert all(host.record(pod).exists() for pod in dead)


def test_an_add_whose_attachment_is_gone_again(host: Host, make_pod: MakePod) -> None:
    """ADD accepts that its own attachment is deleted before its search for the dead."""
    conf = host.conf()
    collect.a_few(location(conf), Undo(host.request("ADD", make_pod(), conf), PROGRAMS, []))


def test_an_add_waits_for_nobody(host: Host, make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 120.0)
    dead, newcomer = make_pod(), make_pod()
    host.ok("ADD", dead)
    dead.gone()
    with journal.lock(host.state, "rail0", Key(dead.name, "hpn0")):
        elapsed = Elapsed()
        host.ok("ADD", newcomer)
        assert elapsed.seconds() < 60
        assert host.record(dead).exists()


def test_a_pod_whose_path_is_gone_lives(host: Host, make_pod: MakePod) -> None:
    """A pod without its path counts as alive if a process is in the namespace."""
    pod, newcomer = make_pod(), make_pod()
    host.ok("ADD", pod)
    with subprocess.Popen(["ip", "netns", "exec", pod.name, "sh", "-c", "echo; exec sleep 3600"], stdout=-1) as living:
        assert living.stdout
        assert living.stdout.readline()
        pod.gone()
        for _ in range(3):
            host.ok("ADD", newcomer)
            host.ok("DEL", newcomer)
        hpn_gc(host)
        living.kill()
    assert host.record(pod).exists()


def test_what_was_attached_again_meanwhile_is_left_alone(host: Host, pod: Pod) -> None:
    """The first search takes no lock, so an attachment stays if its record has changed by the time of the lock."""
    host.ok("ADD", pod)
    record = journal.peek(host.state, "rail0", Key(pod.name, "hpn0"))
    assert record
    seen = replace(record, time="2026-01-01T00:00:00.000+00:00")
    undo = Undo(host.request("ADD", pod, host.conf()), PROGRAMS, [])
    assert not collect._reclaim(host.state, seen, undo, 0)
    assert host.record(pod).exists()
    assert pod.links() == {"hpn0"}


def test_an_add_asks_no_other_program(host: Host, make_pod: MakePod) -> None:
    """ADD does not run another program for the dead, since that may be slow or refuse; the agent and hpn gc do."""
    dead, newcomer = make_pod(), make_pod()
    path = host.giving(ips=[{"address": "10.56.0.2/24"}])
    host.ok("ADD", dead, host.conf(**SCRIPT), CNI_PATH=path)
    dead.gone()
    for _ in range(5):
        host.ok("ADD", newcomer, CNI_PATH=path)
        host.ok("DEL", newcomer)
    assert host.record(dead).exists()
    done = hpn_gc(host, CNI_PATH=path, PATH=os.environ["PATH"])
    assert (done.returncode, done.stderr) == (0, "")
    assert not host.record(dead).exists()


@needs_cookies
def test_hpn_gc(host: Host, make_pod: MakePod) -> None:
    dead, living = dead_and_living(host, make_pod)
    before = host.picture(*living)
    done = hpn_gc(host, "--dry-run")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), "two attachments, and their leases"
    assert done.stdout.count("would undo") == 2
    assert host.picture(*living) == before
    done = hpn_gc(host)
    assert (done.returncode, done.stderr, done.stdout.count("undid")) == (0, "", 2)
    assert not any(host.record(pod).exists() for pod in dead)
    assert all(host.record(pod).exists() for pod in living)
    assert len(host.leases()) == 4
    assert hpn_gc(host).stdout == "nothing is provably dead\n"


def test_hpn_gc_says_what_it_could_not_do(host: Host, make_pod: MakePod) -> None:
    """hpn gc reports what it cannot undo, and does not count the refusal: its CNI_PATH may contain another plugin of
    that name."""
    dead, other = make_pod(), make_pod()
    host.ok("ADD", other)
    host.ok("ADD", dead, host.conf(**SCRIPT), CNI_PATH=host.giving(ips=[{"address": "10.56.0.9/24"}]))
    for pod in (dead, other):
        pod.gone()
    for _ in range(12):
        done = hpn_gc(host, CNI_PATH="/nonexistent")
        assert done.returncode == 1
        assert "script" in done.stdout
    assert host.record(dead).exists()
    assert not host.record(other).exists()


def test_the_agents_idle_time(host: Host, make_pod: MakePod) -> None:
    dead, living = dead_and_living(host, make_pod)
    said = list(idle.undo_dead(host.state, host.tmp_path / "no"))
    assert len(said) == 2
    assert all("removed" in line for line in said)
    assert not any(host.record(pod).exists() for pod in dead)
    assert all(host.record(pod).exists() for pod in living)
    assert len(host.leases()) == 4


@needs_cookies
def test_leases_under_other_main_plugins(host: Host, make_pod: MakePod) -> None:
    """Leases of other main plugins are released, too, although hpn has no attachment for them."""
    dead, living = dead_and_living(host, make_pod)
    for pod in (*dead, *living):
        host.record(pod).unlink()
    said = list(idle.undo_dead(host.state, host.tmp_path / "no"))
    assert said == ["released 2 leases of rail0: their pods are gone"]
    assert len(host.leases()) == 4


def test_not_more_often_than_once_a_minute(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    looks = list[Any]()

    def undone(*words: Any) -> list[str]:
        looks.append(words)
        return []

    monkeypatch.setattr(idle, "undo_dead", undone)
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for seconds, count in ((0, 1), (59, 1), (2, 2), (30, 2), (31, 3)):
        now[0] += seconds
        idle.reclaim()
        assert len(looks) == count
    idle._last[:] = bytes(8)
