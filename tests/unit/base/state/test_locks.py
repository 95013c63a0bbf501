"""Locks of attachments, devices and namespaces: between processes, and their failures."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import pci

from base.protocol.errors import IoFailure, TryAgain
from base.protocol.spec import Key
from base.state import journal, owned, places
from base.state.pod import Identity

KEY = Key("c1", "hpn0")
NAMESPACE = Identity(inode=4026532008, cookie=4097, mounts=4026531841, processes=4026531836)

# Takes the lock like any program, without our code (man 2 flock).
HOLDER = """
import fcntl, sys
with open(sys.argv[1], "w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(lock: Path) -> Iterator[int]:
    """While another process holds the lock; its PID."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        yield holder.pid
        holder.communicate()


def the_lock(state: Path) -> Path:
    (lock,) = (state / "locks").iterdir()
    return lock


def test_a_lock_excludes_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.1)
    with journal.lock(tmp_path, "rail0", KEY):
        lock = the_lock(tmp_path)
        taken = subprocess.run(["flock", "--nonblock", lock, "true"], check=False)
        assert taken.returncode == 1
    with held(lock) as pid:
        with pytest.raises(TryAgain) as e, journal.lock(tmp_path, "rail0", KEY):
            pass
        assert e.value.code == 11
        assert e.value.msg.startswith(f"{lock} was held by process {pid} ({Path(sys.executable).name!r}) for 0.1 s; ")
        assert e.value.msg.endswith("see: lslocks")
    with journal.lock(tmp_path, "rail0", KEY):  # and free again
        pass


def test_a_lock_is_let_go_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), journal.lock(tmp_path, "rail0", KEY):
        raise ZeroDivisionError
    assert subprocess.run(["flock", "--nonblock", the_lock(tmp_path), "true"], check=False).returncode == 0


def test_locks_never_pile_up(tmp_path: Path) -> None:
    for n in range(300):
        with journal.lock(tmp_path, "rail0", Key(f"c{n}", "hpn0")):
            pass
    locks = list((tmp_path / "locks").iterdir())
    assert 32 < len(locks) <= 64  # spread, and bounded
    assert {lock.stat().st_mode & 0o777 for lock in locks} == {0o600}


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IoFailure, match="it must be a writable directory"), journal.lock(tmp_path / "file", "n", KEY):
        pass


def test_a_directory_where_the_lock_is(tmp_path: Path) -> None:
    with journal.lock(tmp_path, "rail0", KEY):
        lock = the_lock(tmp_path)
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(IoFailure, match=f"^locking {lock}: "), journal.lock(tmp_path, "rail0", KEY):
        pass


def test_alone_in_a_namespace_and_over_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of a namespace and of a device exclude others, whichever process saw the namespace."""
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.05)
    seen_elsewhere = replace(NAMESPACE, mounts=1, processes=2)
    with journal.lock_namespace(tmp_path, NAMESPACE):
        with pytest.raises(TryAgain):
            journal.lock_namespace(tmp_path, seen_elsewhere)
        journal.lock_namespace(tmp_path, replace(NAMESPACE, cookie=1)).release()
    monkeypatch.setattr(places, "COMMON", f"{tmp_path}")
    with owned.lock(pci.PF):
        with pytest.raises(TryAgain):
            owned.lock(pci.PF)
        owned.lock(pci.VF).release()
