"""A log that cannot be written, or that a user prepared, changes neither a command's answer nor its effects."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack.user import NOBODY
from support.disks import filled, mounted, read_only, writable
from support.topology import Host, Pod

pytestmark = pytest.mark.usefixtures("node_file")
FULL = "logFile '{}' cannot be written: No space left on device"


@pytest.fixture
def folder(public: Path, node_file: Path) -> Path:
    """A user's directory that a careless administrator allows."""
    (public / "logs").mkdir()
    os.chown(public / "logs", NOBODY, NOBODY)
    node_file.write_text(json.dumps({"allowedPaths": {"logFile": [str(public / "logs")]}}))
    return public / "logs"


def attached(host: Host, pod: Pod, log: Path, *words: str, **keys: Any) -> None:
    """Assert that ADD, CHECK and DEL succeed with these warnings, if any."""
    conf = host.conf(logFile=str(log), logLevel="debug", **keys)
    result = host.call("ADD", pod, conf)
    checked = host.call("CHECK", pod, conf | {"prevResult": json.loads(result.stdout)})
    assert pod.links() == {"hpn0"}
    for reply in (result, checked, host.call("DEL", pod, conf)):
        assert reply.exit_code == 0, reply.stdout
        assert list(reply.log) == list(words)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_a_full_disk(host: Host, pod: Pod, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        log = disk / "log"
        log.write_text("")
        filled(disk)
        attached(host, pod, log, FULL.format(log))


def test_a_full_disk_where_the_log_is_to_be_made(host: Host, pod: Pod, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        filled(disk)
        attached(host, pod, disk / "log", FULL.format(disk / "log"))


def test_a_read_only_disk(host: Host, pod: Pod, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        read_only(disk)
        log = disk / "log"
        attached(host, pod, log, f"logFile {str(log)!r} cannot be written: Read-only file system")
        writable(disk)


def test_a_full_log_on_a_full_disk(host: Host, pod: Pod, tmp_path: Path, monkeypatch: Any) -> None:
    """The log cannot be renamed there."""
    monkeypatch.setattr("base.state.log_file.LIMIT", 10)
    with mounted(tmp_path / "disk") as disk:
        log = disk / "log"
        log.write_text("x" * os.sysconf("SC_PAGESIZE"))  # its last page is full
        (disk / "log.old").mkdir()
        filled(disk)
        first = f"logFile {str(log)!r} is full and cannot be renamed to log.old: Is a directory"
        attached(host, pod, log, first, FULL.format(log))


def test_a_users_file(host: Host, pod: Pod, folder: Path) -> None:
    """A command does not write to a user's log, because that user could read and change it."""
    log = folder / "log"
    log.write_text("theirs\n")
    os.chown(log, NOBODY, NOBODY)
    attached(
        host,
        pod,
        log,
        f"logFile {str(log)!r} cannot be written: it belongs to user {NOBODY}, who could read and change it",
    )
    assert log.read_text() == "theirs\n"


@pytest.mark.parametrize("older", [False, True])
def test_links_of_a_user(host: Host, pod: Pod, folder: Path, monkeypatch: Any, older: bool) -> None:
    """A link in place of the log is refused; one in place of the old log is removed, and its target stays."""
    victim, log = folder.parent / "victim", folder / "log"
    victim.write_text("precious")
    monkeypatch.setattr("base.state.log_file.LIMIT", 1)
    (folder / "log.old" if older else log).symlink_to(victim)
    if older:
        attached(host, pod, log)
        assert log.stat().st_mode & 0o777 == (folder / "log.old").lstat().st_mode & 0o777 == 0o600
    else:
        error = host.refused("ADD", pod, host.conf(logFile=str(log)))
        assert (error["code"], "a link" in error["msg"]) == (7, True)
    assert victim.read_text() == "precious"


def test_whatever_a_user_puts_there(host: Host, make_pod: Callable[[], Pod], folder: Path) -> None:
    """DEL and GC succeed with a link, a FIFO, a directory or a file in place of the log."""
    victim, log = folder.parent / "victim", folder / "log"
    victim.write_text("precious")
    kinds: list[Callable[[], object]] = [
        lambda: log.symlink_to(victim),
        lambda: os.mkfifo(log),
        log.mkdir,
        lambda: log.hardlink_to(victim),
        lambda: log.write_text(""),
    ]
    for make in kinds:
        pod = make_pod()
        conf = host.conf(logFile=str(log))
        result = host.ok("ADD", pod, conf)
        log.unlink()
        make()
        reply = host.call("DEL", pod, conf)
        assert (reply.exit_code, pod.links()) == (0, set())
        assert host.call("GC", None, conf | {"cni.dev/valid-attachments": []}).exit_code == 0
        log.rmdir() if log.is_dir() and not log.is_symlink() else log.unlink()
        assert result["ips"]
    assert victim.read_text() == "precious"
