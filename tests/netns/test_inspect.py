"""hpn inspect of real attachments, as a process that trusts only the state directory as root's."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.topology import Host, Pod, leases

ROOT = Path(__file__).parents[2]


def inspect(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "CNI_COMMAND"}
    return subprocess.run(
        [sys.executable, "-m", "ctl", "inspect", *map(str, words)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environ,
    )  # fmt: skip


def attachments(host: Host) -> list[dict[str, Any]]:
    done = inspect("--json", "--state-dir", host.state)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["unreadable"] == []
    return list(document["attachments"])


def test_nothing(host: Host) -> None:
    host.state.mkdir()
    done = inspect("--state-dir", host.state)
    assert (done.returncode, done.stdout) == (0, f"nothing is attached (searched {host.state})\n")
    assert attachments(host) == []
    assert not list(host.state.iterdir())


def test_attachments_of_every_network(host: Host, make_pod: Callable[[], Pod]) -> None:
    one, two = make_pod(), make_pod()
    host.ok("ADD", one, CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=worker-0")
    host.ok("ADD", two, host.conf(name="other", ipam=...), CNI_IFNAME="net1")
    other, first = attachments(host)
    link = one.link()
    assert link
    assert first | {"since": ...} == {
        "pod": "default/worker-0", "network": "rail0", "containerID": one.name, "ifname": "hpn0", "netns": one.path,
        "alive": True, "complete": True, "since": ..., "kind": "macvlan", "master": "rail0", "mac": link["address"],
        "addresses": ["10.56.0.2/24", "fd00:56::2/64"], "rdma": {"devices": [], "gids": []},
    }  # fmt: skip
    assert (other["network"], other["ifname"], other["addresses"]) == ("other", "net1", [])
    lines = inspect("--state-dir", host.state).stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].index("ADDRESS") == lines[2].index("10.56.0.2/24") == lines[3].index("fd00:56::2/64")
    assert [word in lines[2] for word in ("default/worker-0", "rail0", "hpn0", "macvlan", "alive", one.path)] == [
        True
    ] * 6


def test_a_name_without_a_namespace(host: Host, pod: Pod) -> None:
    """inspect and `hpn ipam show` name a pod without a namespace alike, as with podman."""
    host.ok("ADD", pod, CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=web")
    assert [a["pod"] for a in attachments(host)] == ["web"]
    assert [lease["pod"] for lease in leases(host.state / "ipam")] == ["web"]


def test_a_namespace_that_died(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    pod.remade()
    (found,) = attachments(host)
    assert (found["alive"], found["netns"]) == (False, pod.path)
    assert "dead" in inspect("--state-dir", host.state).stdout
    host.ok("DEL", pod)
    assert attachments(host) == []


def test_an_incomplete_one(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.rewrite(host.record(pod), complete=False, result={})
    (found,) = attachments(host)
    assert (found["complete"], found["addresses"]) == (False, [])
    assert "incomplete" in inspect("--state-dir", host.state).stdout


def test_a_record_that_cannot_be_read(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    host.record(pod).write_text("{")
    done = inspect("--state-dir", host.state)
    assert (done.returncode, str(host.record(pod)) in done.stdout) == (0, True)
    assert host.record(pod).exists()


def test_it_waits_for_no_lock(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    before = host.picture(pod)
    with next((host.state / "locks").glob("attachment-*")).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert len(attachments(host)) == 1
    assert host.picture(pod) == before


def test_wrong_words() -> None:
    assert inspect("--yaml").returncode == 2
    assert inspect("--state-dir").returncode == 2


def test_no_directory(tmp_path: Path) -> None:
    (tmp_path / "attachments").write_text("")
    done = inspect("--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path) in done.stderr
