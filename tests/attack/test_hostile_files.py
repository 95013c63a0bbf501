"""A local user without privileges replaces files: commands refuse or set aside the replacement, and never wait for
it."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from attack.user import NOBODY
from support.topology import Host, Pod

from base.protocol.errors import IoFailure
from base.state import durable, trust
from base.state.locks import Lock

pytestmark = pytest.mark.usefixtures("in_time")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


def device(path: Path) -> None:
    os.mknod(path, 0o20600, os.makedev(1, 5))


def folder(path: Path) -> None:
    path.mkdir()


def theirs(path: Path) -> None:
    path.touch()
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("make", [fifo, link, device, folder, theirs])
def test_what_is_no_lock(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = durable.directory(tmp_path / "s") / "lock"
    make(path)
    with pytest.raises((IoFailure, OSError)) as e:
        Lock(str(path), 1)
    assert str(path) in str(e.value)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("make", [fifo, link, device, folder, theirs])
@pytest.mark.parametrize("where", ["locks/attachment-{n}", "ipam/rail0/lock"])
def test_a_command_that_finds_no_lock(host: Host, pod: Pod, where: str, make: Callable[[Path], None]) -> None:
    """DEL fails with code 5 and the lock's path, and succeeds once the path is free."""
    host.ok("ADD", pod)
    (held,) = (host.state / "locks").glob("attachment-*")
    path = host.state / where.format(n=held.name.rpartition("-")[2])
    path.unlink()
    make(path)
    error = host.refused("DEL", pod)
    assert (error["code"], str(path) in error["msg"]) == (5, True)
    path.rmdir() if make is folder else path.unlink()
    host.ok("DEL", pod)


def test_a_lock_that_others_can_open(tmp_path: Path) -> None:
    """Lock repairs the file's mode, but does not end existing access."""
    path = durable.directory(tmp_path / "s") / "lock"
    path.touch()
    path.chmod(0o644)
    with Lock(str(path), 1):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("make", [fifo, link, device, folder])
def test_what_is_no_record(host: Host, pod: Pod, make: Callable[[Path], None]) -> None:
    """DEL sets the replacement aside like any other unreadable record."""
    host.ok("ADD", pod)
    record = host.record(pod)
    record.unlink()
    make(record)
    assert host.refused("DEL", pod)["code"] == 108
    assert len(list((host.state / "quarantine").rglob(f"{record.name}*"))) == 1
    host.call("DEL", pod)
    assert not os.path.lexists(record)


@pytest.mark.parametrize("make", [fifo, link, device, folder])
def test_what_is_no_unfinished_record(host: Host, pod: Pod, make: Callable[[Path], None]) -> None:
    """ADD may fail with an error, but neither waits nor writes elsewhere."""
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    temporary = host.record(pod).with_name(f"{host.record(pod).name}.tmp")
    make(temporary)
    if host.call("ADD", pod).exit_code == 0:
        host.ok("DEL", pod)
    assert not (host.state / "attachments" / "elsewhere").exists()
    if temporary.is_dir():
        temporary.rmdir()


def test_links_without_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        trust.refuse_unless_safe(f"{tmp_path}/a/x")
