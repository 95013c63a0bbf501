"""Locks of attachments, devices and namespaces: between processes, and their failures."""

import fcntl
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import pci
from support.topology import until

from base.child_process import Child
from base.protocol.errors import IoFailure, TryAgain
from base.protocol.spec import Key
from base.state import journal, locks, owned
from base.state.locks import Mode
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


@contextmanager
def child_with(state: Path, key: Key) -> Iterator[int]:
    """While a child process holds the attachment's lock; its PID.  It is killed."""
    if not (pid := os.fork()):
        try:
            with journal.lock(state, "rail0", key):
                signal.pause()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


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


def test_each_name_has_a_lock_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While three hundred attachments, chains, devices and claims are locked, each other one can be."""
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.0)
    keys = [Key(f"c{n}", "hpn0") for n in range(300)]
    with ExitStack() as held:
        for key in keys:
            held.enter_context(journal.lock(tmp_path, "rail0", key))
        for what in ("chain", "device", "claim", "namespace"):
            for key in keys:
                held.enter_context(journal.locked(tmp_path, what, f"rail0/{key}"))
        for key in keys[::100]:
            with pytest.raises(TryAgain), journal.lock(tmp_path, "rail0", key):
                pass
    files = list((tmp_path / "locks").glob("attachment-*"))
    assert 32 < len(files) <= 64  # spread, and bounded
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_several_attachments_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr(journal, "_LOCKS", 1)
    one, two, three = (journal.Entry(tmp_path, "rail0", Key("c1", f"hpn{n}")) for n in range(3))
    with journal.lock_all([two, one, two]):
        for each in (one, two):
            with pytest.raises(TryAgain), journal.lock_all([three, each]):
                pass
        with journal.lock_all([three]):
            pass
    with journal.lock_all([three, two, one]):
        pass


def test_an_older_version_beside_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version takes the whole file (`flock` here): each excludes the other from the attachment."""
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.0)
    with journal.lock(tmp_path, "rail0", KEY):
        lock = the_lock(tmp_path)
        assert subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode == 1
    with held(lock) as pid:
        assert journal.at_work(tmp_path, "rail0", KEY).startswith(f"process {pid} ")
        with pytest.raises(TryAgain, match=f"was held by process {pid} "), journal.lock(tmp_path, "rail0", KEY):
            pass
    assert journal.at_work(tmp_path, "rail0", KEY) == ""


def test_a_wait_for_a_name_holds_nothing(tmp_path: Path) -> None:
    """An older version takes the whole file while this one waits for its name.

    On NFS the kernel makes an flock of locks of bytes, so two waiting commands that kept it would stop each other.
    """
    path = f"{tmp_path}/lock"
    byte = locks.byte_of("pod")
    with open(path, "w") as waiting, open(path) as older:
        with locks.Lock(path, 0, "pod"), pytest.raises(TryAgain):
            locks.take(waiting.fileno(), path, 0, byte)
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_works_on_an_attachment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processes that hold and await locks in one file, only the holder of this attachment's is named."""
    monkeypatch.setattr(journal, "_LOCKS", 1)
    other = Key("c2", "hpn0")
    with child_with(tmp_path, KEY) as pid, child_with(tmp_path, other) as another:
        until(lambda: journal.at_work(tmp_path, "rail0", KEY) and journal.at_work(tmp_path, "rail0", other))
        assert journal.at_work(tmp_path, "rail0", KEY) == f"process {pid} ({comm(pid)!r})"
        assert journal.at_work(tmp_path, "rail0", other) == f"process {another} ({comm(another)!r})"
        assert journal.at_work(tmp_path, "rail0", Key("c3", "hpn0")) == ""
        with pytest.raises(TryAgain, match=f"held by process {pid} "), journal.lock(tmp_path, "rail0", KEY, 0):
            pass
    # Both were killed.
    with journal.lock(tmp_path, "rail0", KEY), journal.lock(tmp_path, "rail0", other):
        pass


def test_a_child_that_outlives_the_work(tmp_path: Path) -> None:
    """A forked child has the lock's file open, and the attachment can be locked again."""
    with journal.lock(tmp_path, "rail0", KEY):
        child = Child(signal.pause)
    try:
        with journal.lock(tmp_path, "rail0", KEY, 0):
            pass
        assert subprocess.run(["flock", "--nonblock", the_lock(tmp_path), "true"], check=False).returncode == 0
    finally:
        child.end()


def test_a_child_that_outlives_a_killed_command(tmp_path: Path) -> None:
    """The kernel names no process for the lock, and the error invents none."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            with journal.lock(tmp_path, "rail0", KEY):
                if not os.fork():
                    os.close(write)
                    os.read(read, 1)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(read)
    os.waitpid(pid, 0)
    try:
        unnamed = "held by a process that /proc/locks does not name for 0 s"
        with pytest.raises(TryAgain, match=unnamed), journal.lock(tmp_path, "rail0", KEY, 0):
            pass
    finally:
        os.close(write)
    with journal.lock(tmp_path, "rail0", KEY, 60):
        pass


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
    monkeypatch.setattr(locks, "SHARED", 0.05)
    seen_elsewhere = replace(NAMESPACE, mounts=1, processes=2)
    with journal.lock_namespace(tmp_path, NAMESPACE):
        with pytest.raises(TryAgain):
            journal.lock_namespace(tmp_path, seen_elsewhere)
        journal.lock_namespace(tmp_path, replace(NAMESPACE, cookie=1)).release()
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    with owned.lock(pci.PF):
        with pytest.raises(TryAgain):
            owned.lock(pci.PF).release()
        owned.lock(pci.VF).release()


def test_holders_that_share_in_turns_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins before the one before ends, as the ADDs of a node that boots do."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    with ThreadPoolExecutor(1) as threads, ExitStack() as held:
        before = held.enter_context(owned.lock(pci.PF, 0, Mode.SHARED))
        alone = threads.submit(lambda: owned.lock(pci.PF, 30).release())

        def is_kept_out() -> bool:
            nonlocal before
            try:
                now = held.enter_context(owned.lock(pci.PF, 0, Mode.SHARED))
            except TryAgain:
                return True
            before.release()
            before = now
            return alone.done()

        until(is_kept_out)
        before.release()
        alone.result()
        owned.lock(pci.PF, 0, Mode.SHARED).release()


def test_only_those_that_share_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders in turns, of which one always waits, keep nobody out either."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    with owned.lock(pci.PF, 0, Mode.NEXT):
        assert can_be_shared()
        with owned.lock(pci.PF, 0, Mode.SHARED):
            assert not can_be_shared()


def test_a_holder_that_hangs_keeps_others_out_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for it, and the others could go on beside it."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    monkeypatch.setattr(locks, "OWN", 0.5)
    with ThreadPoolExecutor(1) as threads:
        with owned.lock(pci.PF, 0, Mode.SHARED):
            waiting = threads.submit(owned.lock, pci.PF, 20)
            until(lambda: not can_be_shared())
            until(can_be_shared)
            assert not waiting.done()
        waiting.result().release()


class Clock:
    """The time of base.state.locks: ``ahead`` seconds ahead, and how often it was read."""

    ahead, read = 0.0, 0
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        self.read += 1
        return time.monotonic() + self.ahead


def test_only_holders_that_share_use_up_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One may wait behind others that want the lock alone for longer than a turn.  Those that share it in turns delay
    it no more afterwards."""
    clock = Clock()
    monkeypatch.setattr(locks, "time", clock)
    monkeypatch.setattr(locks, "OWN", 60.0)
    path, name = f"{tmp_path}/lock", "rail0"

    def can_be_shared() -> bool:
        try:
            locks.Lock(path, 0, name, Mode.SHARED).release()
        except TryAgain:
            return False
        return True

    fd = locks.opened(path)
    locks.take(fd, path, 0, locks.byte_of(name))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(locks.Lock, path, 1000, name)
        try:
            until(lambda: clock.read > 10)
            clock.ahead = 2 * locks.OWN
            before = clock.read
            until(lambda: clock.read > before + 10)
            locks.take(fd, path, 0, locks.byte_of(name), Mode.SHARED)  # with no moment between
            until(lambda: not can_be_shared())
        finally:
            os.close(fd)
        waiting.result().release()


def test_a_child_that_outlives_one_that_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock's file open, as one that hangs in a driver, and others share the lock nevertheless."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    with ThreadPoolExecutor(1) as threads:
        with owned.lock(pci.PF, 0, Mode.SHARED):
            waiting = threads.submit(owned.lock, pci.PF)
            until(lambda: not can_be_shared())
        with waiting.result():
            child = Child(signal.pause)
    try:
        assert can_be_shared()
    finally:
        child.end()


def can_be_shared() -> bool:
    try:
        owned.lock(pci.PF, 0, Mode.SHARED).release()
    except TryAgain:
        return False
    return True


def test_one_that_waited_in_vain_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    with owned.lock(pci.PF, 0, Mode.SHARED):
        with pytest.raises(TryAgain):
            owned.lock(pci.PF, 0.1)
        owned.lock(pci.PF, 0, Mode.SHARED).release()


def test_no_device_excludes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration may name none that is there.  This function's lock is in the file of no name at all."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}")
    functions = (f"0000:{n:02x}:00.0" for n in range(256))
    with owned.lock(next(one for one in functions if zlib.crc32(one.encode()) % 64 == zlib.crc32(b"") % 64)):
        owned.lock("", 0).release()
