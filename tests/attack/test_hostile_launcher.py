"""A local user without privileges attacks the launcher and its unpacked program."""

import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attack.launched import NOBODY, agent, answers, error, run, somebody
from support.topology import until

# Locks every readable file of a directory, prints their number, and holds them.
LOCKS = """
import fcntl, os, sys, time
kept = []
for path in [sys.argv[1], *(os.path.join(d, n) for d, ds, fs in os.walk(sys.argv[1]) for n in ds + fs)]:
    try:
        kept.append(os.open(path, os.O_RDONLY))
        fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
print(len(kept), flush=True)
time.sleep(3600)
"""


def test_flock_by_another_user(hpn: Path, public: Path) -> None:
    """The user locks all readable files: before the program is unpacked, while it is in use, and when an agent
    starts."""
    base = public / "program"
    base.mkdir(mode=0o755)  # the mode that older versions used
    with somebody(LOCKS, base) as opened:
        assert opened == "1"
        assert answers(hpn, base)
    assert base.stat().st_mode & 0o777 == 0o700
    with somebody(LOCKS, base) as opened:
        assert opened == "0"
        assert answers(hpn, base)
        with agent(hpn, base, public / "s"):
            pass


def test_flock_of_a_version_that_was_open_to_all(hpn: Path, public: Path) -> None:
    """A user may still hold a directory that was once open to all, so the launcher unpacks another one."""
    assert answers(hpn, public / "program")
    (directory,) = (path for path in (public / "program").iterdir() if path.is_dir())
    directory.parent.chmod(0o755)
    directory.chmod(0o755)
    with somebody(LOCKS, directory) as opened:
        assert opened != "0"
        assert answers(hpn, public / "program")


def test_no_wait_without_end(hpn: Path, public: Path) -> None:
    """The wait is bounded even if root holds the lock, and the error names the holder and the file."""
    with ThreadPoolExecutor() as threads:
        for case in [threads.submit(waits_and_fails, hpn, public / what, what) for what in (".lock", "the version")]:
            case.result()


def waits_and_fails(hpn: Path, base: Path, what: str) -> None:
    assert answers(hpn, base)
    (directory,) = (path for path in base.iterdir() if path.is_dir())
    if what == ".lock":
        shutil.rmtree(directory)
    file = base / ".lock" if what == ".lock" else directory
    with subprocess.Popen(["flock", file, "sleep", "3600"], start_new_session=True) as holder:
        try:
            until(lambda: subprocess.run(["flock", "-n", file, "true"], check=False).returncode)
            started = time.monotonic()
            code, message = error(run(hpn, base))
            assert time.monotonic() - started > 59
            assert (code, str(file) in message) == (11, True)
            assert f"by process {holder.pid};" in message
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_a_lock_file_that_others_can_open(hpn: Path, public: Path) -> None:
    """Any user who opens it could hold its lock."""
    base = public / "program"
    base.mkdir()
    (base / ".lock").touch()
    (base / ".lock").chmod(0o666)
    code, message = error(run(hpn, base))
    assert (code, message) == (5, f"{base}/.lock is not mine alone; remove it")
    (base / ".lock").unlink()
    assert answers(hpn, base)


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [
        (0o777, 0, "others may write to {}; chmod go-w {}"),
        (0o775, 0, "others may write to {}; chmod go-w {}"),
        (0o755, NOBODY, "another user owns {}; chown {}"),
        (0o1777, NOBODY, "another user owns {}; chown {}"),
        (0o1777, 0, ""),
        (0o755, 0, ""),
    ],
)
def test_a_parent_that_others_may_change(hpn: Path, public: Path, mode: int, owner: int, refused: str) -> None:
    """The launcher refuses a parent in which others could replace a checked file."""
    parent = public / "parent"
    base = parent / "between" / "program"
    base.parent.mkdir(parents=True)
    os.chown(parent, owner, owner)
    parent.chmod(mode)
    if not refused:
        assert answers(hpn, base)
        return
    code, message = error(run(hpn, base))
    assert code == 5
    assert f"HPN_PROGRAM_DIR={base}: {refused.format(parent, parent)}" in message
    assert not base.exists()


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_link_on_the_way(hpn: Path, public: Path, owner: int) -> None:
    """The launcher follows root's links only: another user could redirect a link at any time."""
    (public / "disk").mkdir()
    sticky = public / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "link").symlink_to(public / "disk")
    os.chown(sticky / "link", owner, owner, follow_symlinks=False)
    base = sticky / "link" / "program"
    if owner == 0:
        assert answers(hpn, base)
        assert (public / "disk" / "program").is_dir()
    else:
        code, message = error(run(hpn, base))
        assert (code, f"another user owns {sticky / 'link'}" in message) == (5, True)
        assert list((public / "disk").iterdir()) == []


def test_a_relative_directory(hpn: Path, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's directory would decide where it lies."""
    monkeypatch.chdir(public)
    code, message = error(run(hpn, Path("here/program")))
    assert (code, message) == (5, "HPN_PROGRAM_DIR=here/program: not an absolute path; set one, or none")
    assert not (public / "here").exists()


def test_a_link_to_itself(hpn: Path, public: Path) -> None:
    (public / "link").symlink_to("link")
    assert error(run(hpn, public / "link" / "program"))[0] == 5


def test_a_parent_that_changes_all_the_time(hpn: Path, public: Path) -> None:
    """Two directories alternate under one name: root runs the checked program or refuses."""
    good, bad = public / "good", public / "bad"
    assert answers(hpn, good / "program")
    shutil.copytree(good, bad)
    (version,) = (path for path in (bad / "program").iterdir() if path.is_dir())
    marker = public / "marker"
    (version / "ld-hpn.so.2").write_text(f"#!/bin/sh\necho hostile >>{marker}\n")
    for path in (bad, *bad.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (public / "turn").symlink_to(good)
    end = threading.Event()

    def take_turns() -> None:
        for n in range(10**9):
            if end.is_set():
                return
            (public / "next").symlink_to(bad if n % 2 else good)
            (public / "next").rename(public / "turn")

    turning = threading.Thread(target=take_turns)
    turning.start()
    try:
        done = [run(hpn, public / "turn" / "program") for _ in range(60)]
    finally:
        end.set()
        turning.join()
    assert not marker.exists()
    assert all("supportedVersions" in one.stdout or error(one)[0] == 5 for one in done)


def test_what_runs_goes_by_descriptors(hpn: Path, public: Path) -> None:
    """The program opens later files in the checked directory, even if another one has its name by then."""
    base = public / "program"
    with agent(hpn, base, public / "s") as pids:
        (version,) = (path for path in base.iterdir() if path.is_dir())
        words = Path(f"/proc/{pids[0]}/cmdline").read_text().split("\0")
        assert words[0].startswith("/proc/self/fd/")
        for word in words[:4]:
            assert str(base) not in word
        descriptor = words[2].removeprefix("/proc/self/fd/")
        assert Path(f"/proc/{pids[0]}/fd/{descriptor}").readlink() == version
        assert Path(f"/proc/{pids[0]}/exe").readlink() == version / "ld-hpn.so.2"
