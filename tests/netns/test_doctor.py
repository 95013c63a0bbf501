"""hpn doctor on a state directory with real attachments, and on full file systems."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.disks import filled, mounted
from support.topology import Host, Pod

from base.protocol.spec import Key
from base.state import journal

ROOT = Path(__file__).parents[2]
RANGE = {"subnet": "10.56.0.0/24", "rangeStart": "10.56.0.2", "rangeEnd": "10.56.0.11"}


@pytest.fixture
def root(host: Host) -> Path:
    """The root directory for hpn doctor, with this process's /proc and the tests' state directory."""
    (host.tmp_path / "root" / "run").mkdir(parents=True)
    (host.tmp_path / "root" / "proc").symlink_to("/proc")
    host.state = host.tmp_path / "root" / "run" / "hpn"
    return host.tmp_path / "root"


def found(root: Path) -> dict[str, list[dict[str, str]]]:
    """The findings by id, without the notes."""
    environ = {k: v for k, v in os.environ.items() if k not in ("CNI_COMMAND", "HPN_STATE_DIR")}
    argv = [sys.executable, "-m", "ctl", "doctor", "--json", "--root", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    assert done.stderr == ""
    by_id = dict[str, list[dict[str, str]]]()
    for one in json.loads(done.stdout)["findings"]:
        if one["severity"] != "note":
            by_id.setdefault(one["id"], []).append(one)
    assert done.returncode == bool(by_id)
    by_id.pop("plugin-missing", None)  # present once there are attachments
    return by_id


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(ipam={"type": "hpn-ipam", "ranges": [[RANGE]], "overlaps": True}, **keys)


def test_the_dead(host: Host, root: Path, make_pod: Callable[[], Pod]) -> None:
    """The finding's remedy, typed verbatim, undoes the attachments of dead pods."""
    dead, living = make_pod(), make_pod()
    for pod in (dead, living):
        host.ok("ADD", pod, conf(host))
    assert found(root) == {}
    dead.gone()
    ((name, (one,)),) = found(root).items()
    assert (name, dead.name in one["evidence"], one["remedy"]) == ("attachment-dead", True, "hpn gc")
    remedied(one, host)
    assert found(root) == {}
    host.ok("DEL", living, conf(host))


def test_the_half_attached(host: Host, root: Path, pod: Pod) -> None:
    """The finding's remedy undoes the attachment of a killed ADD that never got a DEL."""
    host.ok("ADD", pod, conf(host))
    key = Key(pod.name, "hpn0")
    with journal.lock(host.state, "rail0", key) as entry:
        record = entry.load()
        assert record
        entry.save(replace(record, complete=False, time="2026-01-02T03:04:05.678+00:00"))
    ((name, (one,)),) = found(root).items()
    assert (name, pod.name in one["evidence"], one["remedy"]) == ("attachment-incomplete", True, "hpn repair")
    remedied(one, host)
    assert (found(root), pod.links()) == ({}, set())


def remedied(one: dict[str, str], host: Host) -> None:
    """Run the remedy, an hpn command."""
    argv = [sys.executable, "-m", "ctl", *one["remedy"].split()[1:], "--state-dir", str(host.state)]
    subprocess.run(argv, check=True, capture_output=True, cwd=ROOT)


def test_a_pool(host: Host, root: Path, make_pod: Callable[[], Pod]) -> None:
    pods = [make_pod() for _ in range(9)]
    for pod in pods:
        assert found(root) == {}
        host.ok("ADD", pod, conf(host))
    ((name, (one,)),) = found(root).items()
    assert (name, "9 of 10 addresses of 10.56.0.2-10.56.0.11" in one["evidence"]) == ("pool-nearly-full", True)
    host.ok("DEL", pods[0], conf(host))
    assert found(root) == {}
    for pod in pods[1:]:
        host.ok("DEL", pod, conf(host))


def test_strict_filters(host: Host, root: Path, pod: Pod) -> None:
    """The finding appears only if a pod has two interfaces in one subnet without routing by source address."""
    names = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a"}
    host.ok("ADD", pod, conf(host), **names)
    host.ok("ADD", pod, conf(host, name="rail1"), CNI_IFNAME="hpn1", **names)
    assert found(root) == {}
    subprocess.run(["sysctl", "-q", "-w", "net.ipv4.conf.all.rp_filter=1"], check=True)
    ((name, (one,)),) = found(root).items()
    assert (name, "pod default/a has several interfaces in 10.56.0.0/24" in one["evidence"]) == ("rp-filter", True)
    for number in (0, 1):
        keys: dict[str, Any] = {"name": f"rail{number}", "policyRouting": True}
        host.ok("DEL", pod, conf(host, **keys), CNI_IFNAME=f"hpn{number}")
        host.ok("ADD", pod, conf(host, **keys), CNI_IFNAME=f"hpn{number}", **names)
    assert found(root) == {}
    for number in (0, 1):
        host.ok("DEL", pod, conf(host, name=f"rail{number}"), CNI_IFNAME=f"hpn{number}")


def test_a_full_disk(host: Host, root: Path) -> None:
    with mounted(host.state, "4m") as disk:
        assert found(root) == {}
        filler = filled(disk)
        ((name, (one,)),) = found(root).items()
        assert (name, f"the file system of {disk} has 0 KiB free" in one["evidence"]) == ("disk-nearly-full", True)
        filler.unlink()
        assert found(root) == {}


def test_no_inodes(host: Host, root: Path) -> None:
    with mounted(host.state, "4m,nr_inodes=200") as disk:
        assert found(root) == {}
        files = [disk / f"{number}" for number in range(195)]
        for file in files:
            file.touch()
        ((name, (one,)),) = found(root).items()
        assert (name, f"{disk} has 4 inodes free of 200" in one["evidence"]) == ("disk-nearly-full", True)
        for file in files:
            file.unlink()
        assert found(root) == {}
