"""A local user without privileges, against the launcher, what it unpacks, and the agent."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import require

NOBODY = 65534
# Whatever they do, nothing takes longer; what is waited for ends after ten.
BOUND = 12.0

# Locks all that it can open of a directory and what is in it, says so, and keeps it.
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
time.sleep(60)
"""
CONNECTS = """
import socket, sys
for _ in range(200):
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(sys.argv[1])
            sock.sendall(b"HPN1" + bytes(16))
            assert sock.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            pass
print("closed")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may look into; those of pytest are its user's own."""
    with TemporaryDirectory(prefix="hpn-test-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def hpn(place: Path) -> Path:
    """A copy of the binary where everybody can run it."""
    if os.geteuid() != 0:
        require("attack", "root, to be somebody else")
    if not Path(os.environ.get("HPN_BINARY", "")).is_file():
        require("attack", "HPN_BINARY, which `make test` sets after building it")
    copy = shutil.copy(os.environ["HPN_BINARY"], place / "hpn")
    Path(copy).chmod(0o755)
    return Path(copy)


def run(hpn: Path, base: Path, agent: Path | str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """VERSION as a runtime asks for it."""
    environ = {"HPN_AGENT": str(agent), "HPN_PROGRAM_DIR": str(base), "CNI_COMMAND": "VERSION", **env}
    return subprocess.run([hpn], env=environ, input="", capture_output=True, text=True, check=False, timeout=30)


def error(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    return answer["code"], answer["msg"]


def answers(hpn: Path, base: Path, agent: Path | str = "") -> bool:
    return "supportedVersions" in run(hpn, base, agent).stdout


@contextmanager
def somebody(code: str, *arguments: str | Path, user: int = NOBODY) -> Iterator[str]:
    """A process of that user that has said something; ended afterwards."""
    argv = ["/usr/bin/python3", "-I", "-c", code, *map(str, arguments)]
    with subprocess.Popen(argv, user=user, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def agent(hpn: Path, base: Path, path: Path) -> Iterator[list[int]]:
    """One that listens there; its processes."""
    environ = {"HPN_PROGRAM_DIR": str(base)}
    with subprocess.Popen([hpn, "agent", "--socket", path], env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 20
            while not answers(hpn, Path("/proc/nowhere"), path):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield [process.pid, *map(int, children.split())]
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()


def states(pid: int) -> set[str]:
    """Of its threads."""
    stats = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Whole: until its first thread has stopped, the others may take a request."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        while any(states(pid) != {"T"} for pid in pids):
            time.sleep(0.001)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_flock_by_another_user(hpn: Path, place: Path) -> None:
    """Of all that he can open, before it is unpacked, when it is used, and when an agent begins."""
    base = place / "program"
    base.mkdir(mode=0o755)  # as an older version made it
    started = time.monotonic()
    with somebody(LOCKS, base) as opened:
        assert opened == "1"
        assert answers(hpn, base)
    assert base.stat().st_mode & 0o777 == 0o700
    with somebody(LOCKS, base) as opened:
        assert opened == "0"
        assert answers(hpn, base)
        with agent(hpn, base, place / "s"):
            pass
    assert time.monotonic() - started < BOUND


def test_flock_of_a_version_that_was_open_to_all(hpn: Path, place: Path) -> None:
    """Whoever opened it then has it open still: another is unpacked."""
    assert answers(hpn, place / "program")
    (directory,) = (path for path in (place / "program").iterdir() if path.is_dir())
    directory.parent.chmod(0o755)
    directory.chmod(0o755)
    with somebody(LOCKS, directory) as opened:
        assert opened != "0"
        started = time.monotonic()
        assert answers(hpn, place / "program")
        assert time.monotonic() - started < BOUND


@pytest.mark.parametrize("what", [".lock", "the version"])
def test_no_wait_without_end(hpn: Path, place: Path, what: str) -> None:
    """Also where root holds a lock: who, and of what, is said."""
    base = place / "program"
    assert answers(hpn, base)
    (directory,) = (path for path in base.iterdir() if path.is_dir())
    if what == ".lock":
        shutil.rmtree(directory)
    file = base / ".lock" if what == ".lock" else directory
    with subprocess.Popen(["flock", file, "sleep", "60"], start_new_session=True) as holder:
        try:
            while subprocess.run(["flock", "-n", file, "true"], check=False).returncode == 0:
                time.sleep(0.01)
            started = time.monotonic()
            code, message = error(run(hpn, base))
            assert 9 < time.monotonic() - started < BOUND
            assert (code, str(file) in message) == (11, True)
            assert f"by process {holder.pid};" in message
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


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
def test_a_parent_that_others_may_change(hpn: Path, place: Path, mode: int, owner: int, refused: str) -> None:
    """They would put their own in the place of what was checked."""
    parent = place / "parent"
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
def test_a_link_on_the_way(hpn: Path, place: Path, owner: int) -> None:
    """Root's are followed; another's lead where he likes, and elsewhere the next time."""
    (place / "disk").mkdir()
    sticky = place / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "link").symlink_to(place / "disk")
    os.chown(sticky / "link", owner, owner, follow_symlinks=False)
    base = sticky / "link" / "program"
    if owner == 0:
        assert answers(hpn, base)
        assert (place / "disk" / "program").is_dir()
    else:
        code, message = error(run(hpn, base))
        assert (code, f"another user owns {sticky / 'link'}" in message) == (5, True)
        assert list((place / "disk").iterdir()) == []


def test_a_link_to_itself(hpn: Path, place: Path) -> None:
    (place / "link").symlink_to("link")
    assert error(run(hpn, place / "link" / "program"))[0] == 5


def test_a_parent_that_changes_all_the_time(hpn: Path, place: Path) -> None:
    """Two directories take turns at one name: root runs what it checked, or refuses."""
    good, bad = place / "good", place / "bad"
    assert answers(hpn, good / "program")
    shutil.copytree(good, bad)
    (version,) = (path for path in (bad / "program").iterdir() if path.is_dir())
    marker = place / "marker"
    (version / "ld-hpn.so.2").write_text(f"#!/bin/sh\necho hostile >>{marker}\n")
    for path in (bad, *bad.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (place / "turn").symlink_to(good)
    end = threading.Event()

    def take_turns() -> None:
        for n in range(10**9):
            if end.is_set():
                return
            (place / "next").symlink_to(bad if n % 2 else good)
            (place / "next").rename(place / "turn")

    turning = threading.Thread(target=take_turns)
    turning.start()
    try:
        done = [run(hpn, place / "turn" / "program") for _ in range(60)]
    finally:
        end.set()
        turning.join()
    assert not marker.exists()
    assert all("supportedVersions" in one.stdout or error(one)[0] == 5 for one in done)


def test_what_runs_goes_by_descriptors(hpn: Path, place: Path) -> None:
    """What it opens later, it opens in the directory that was checked, whatever has its name by then."""
    base = place / "program"
    with agent(hpn, base, place / "s") as pids:
        (version,) = (path for path in base.iterdir() if path.is_dir())
        words = Path(f"/proc/{pids[0]}/cmdline").read_text().split("\0")
        assert words[0].startswith("/proc/self/fd/")
        for word in words[:4]:
            assert str(base) not in word
        descriptor = words[2].removeprefix("/proc/self/fd/")
        assert Path(f"/proc/{pids[0]}/fd/{descriptor}").readlink() == version
        assert Path(f"/proc/{pids[0]}/exe").readlink() == version / "ld-hpn.so.2"


def test_another_user_asks_the_agent(hpn: Path, place: Path) -> None:
    """Also where somebody made its socket writable to all: the agent looks who it is."""
    path = place / "s"
    with agent(hpn, place / "program", path) as pids:
        before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
        path.chmod(0o666)
        with somebody(CONNECTS, path) as said:
            assert said == "closed"
        assert answers(hpn, Path("/proc/nowhere"), path)
        time.sleep(0.2)
        assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids] == before


def test_another_users_agent_is_not_asked(hpn: Path, place: Path) -> None:
    """A socket that he listens at, where root was told to ask."""
    path = place / "his" / "s"
    path.parent.mkdir()
    os.chown(path.parent, NOBODY, NOBODY)
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(9); print(flush=True)\n"
        "c, _ = s.accept(); c.sendall(b'T' + bytes(4) + b'\\x07' + bytes(3) + bytes(4) + b'hostile'); c.recv(99)"
    )
    with somebody(code, path):
        assert answers(hpn, place / "program", path)


@pytest.mark.parametrize("many", [1, 2])
def test_workers_that_are_stopped(hpn: Path, place: Path, many: int) -> None:
    """One: the other has it soon.  Both: the launcher does it itself, soon enough."""
    base, path = place / "program", place / "s"
    with agent(hpn, base, path) as pids:
        for stopping in [pids[1:2], pids[2:3]] if many == 1 else [pids[1:]]:
            time.sleep(0.2)
            with stopped(stopping):
                for _ in range(3):
                    started = time.monotonic()
                    assert answers(hpn, Path("/proc/nowhere") if many == 1 else base, path)
                    assert time.monotonic() - started < (1 if many == 1 else 4)


def started(hpn: Path, place: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """An agent that should give up at once."""
    environ = {"HPN_PROGRAM_DIR": str(place / "program"), **env}
    argv = [hpn, "agent", *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize("what", ["file", "directory", "link to a socket", "fifo"])
def test_what_is_no_socket_is_not_removed(hpn: Path, place: Path, what: str) -> None:
    path = place / "s"
    match what:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(place / "stale"))
            path.symlink_to(place / "stale")
    before = path.lstat()
    done = started(hpn, place, "--socket", path)
    assert (done.returncode, f"{path} is there and is no socket; remove it" in done.stderr) == (1, True)
    assert path.lstat().st_ino == before.st_ino
    assert what != "file" or path.read_text() == "precious"


def test_a_stale_socket_is_removed(hpn: Path, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place / "s"))
    with agent(hpn, place / "program", place / "s"):
        done = started(hpn, place, "--socket", place / "s")
        assert (done.returncode, "in use by another agent" in done.stderr) == (1, True)
    assert not (place / "s").exists()


def test_a_socket_that_others_could_replace(hpn: Path, place: Path) -> None:
    for mode, owner in ((0o777, 0), (0o755, NOBODY)):
        folder = place / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, owner)
        done = started(hpn, place, "--socket", folder / "s")
        assert (done.returncode, f"others than root can change {folder}" in done.stderr) == (1, True)
        assert list(folder.iterdir()) == []


def test_the_agent_listens_where_launchers_ask(hpn: Path, place: Path) -> None:
    environ = {"HPN_PROGRAM_DIR": str(place / "program"), "HPN_AGENT": str(place / "s")}
    with subprocess.Popen([hpn, "agent"], env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            assert process.stderr.readline() == f"hpn agent: listens at {place / 's'}\n"
            assert answers(hpn, Path("/proc/nowhere"), place / "s")
        finally:
            process.terminate()
    for wrong, says in (("", "HPN_AGENT is empty"), ("s", "HPN_AGENT=s is not an absolute path")):
        done = started(hpn, place, HPN_AGENT=wrong)
        assert (done.returncode, says in done.stderr) == (1, True)


def test_a_fifo_for_a_namespace(hpn: Path, place: Path) -> None:
    os.mkfifo(place / "fifo")
    with agent(hpn, place / "program", place / "s"):
        env = {"CNI_NETNS": str(place / "fifo")}
        assert "supportedVersions" in run(hpn, place / "program", place / "s", **env).stdout
