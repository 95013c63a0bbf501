"""A local user without privileges attacks the agent and its socket."""

import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attack.launched import NOBODY, agent, answers, run, somebody
from support.processes import stopped
from support.topology import until

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


def test_another_user_asks_the_agent(hpn: Path, public: Path) -> None:
    """The agent checks its peer's user, so it refuses another user even if its socket is writable for all."""
    path = public / "s"
    with agent(hpn, public / "program", path) as pids:
        path.chmod(0o666)
        with somebody(CONNECTS, path) as said:
            assert said == "closed"
        assert answers(hpn, Path("/proc/nowhere"), path)
        # 200 connections arrived; each process needs a dozen descriptors for itself.
        until(lambda: max(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) < 50)


def test_another_users_agent_is_not_asked(hpn: Path, public: Path) -> None:
    """The launcher does not ask the agent of another user, even at the socket that root configured."""
    path = public / "his" / "s"
    path.parent.mkdir()
    os.chown(path.parent, NOBODY, NOBODY)
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(9); print(flush=True)\n"
        "c, _ = s.accept(); c.sendall(b'T' + bytes(4) + b'\\x07' + bytes(3) + bytes(4) + b'hostile'); c.recv(99)"
    )
    with somebody(code, path):
        assert answers(hpn, public / "program", path)


@pytest.mark.parametrize("many", [1, 2])
def test_workers_that_are_stopped(hpn: Path, public: Path, many: int) -> None:
    """With one stopped worker the other one serves; with both stopped the launcher runs the command itself."""
    base, path = public / "program", public / "s"
    with agent(hpn, base, path) as pids:
        for stopping in [pids[1:2], pids[2:3]] if many == 1 else [pids[1:]]:
            # time: so that those to be stopped wait for requests again
            time.sleep(0.2)
            with stopped(*stopping):
                for _ in range(3):
                    # Repeat: without processor time for the other worker, the launcher runs the command itself.
                    until(lambda: answers(hpn, Path("/proc/nowhere") if many == 1 else base, path))


def test_a_second_connection_follows_one_without_an_answer(hpn: Path, public: Path) -> None:
    """The kernel wakes one process for each connection, and the first one may have woken a stopped process."""
    with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor(1) as launcher:
        listening.bind(str(public / "s"))
        listening.listen()
        listening.settimeout(60)
        answered = launcher.submit(answers, hpn, public / "program", public / "s")
        first, _ = listening.accept()
        with first:
            second, _ = listening.accept()
            second.close()
        assert answered.result(), "it runs the command itself"


def started(hpn: Path, public: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Start an agent that must exit at once."""
    environ = {"HPN_PROGRAM_DIR": str(public / "program"), **env}
    argv = [hpn, "agent", *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("what", ["file", "directory", "link to a socket", "fifo"])
def test_what_is_no_socket_is_not_removed(hpn: Path, public: Path, what: str) -> None:
    path = public / "s"
    match what:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case _:
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(public / "stale"))
            path.symlink_to(public / "stale")
    before = path.lstat()
    done = started(hpn, public, "--socket", path)
    assert (done.returncode, f"{path} exists and is not a socket; remove it" in done.stderr) == (1, True)
    assert path.lstat().st_ino == before.st_ino
    assert what != "file" or path.read_text() == "precious"


def test_a_stale_socket_is_removed(hpn: Path, public: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(public / "s"))
    with agent(hpn, public / "program", public / "s"):
        done = started(hpn, public, "--socket", public / "s")
        assert (done.returncode, "in use by another agent" in done.stderr) == (1, True)
    assert not (public / "s").exists()


def test_a_socket_that_others_could_replace(hpn: Path, public: Path) -> None:
    for mode, owner in ((0o777, 0), (0o755, NOBODY)):
        folder = public / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, owner)
        done = started(hpn, public, "--socket", folder / "s")
        assert (done.returncode, f"others than root can change {folder}" in done.stderr) == (1, True)
        assert list(folder.iterdir()) == []


def test_the_agent_listens_where_launchers_ask(hpn: Path, public: Path) -> None:
    environ = {"HPN_PROGRAM_DIR": str(public / "program"), "HPN_AGENT": str(public / "s")}
    with subprocess.Popen([hpn, "agent"], env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            assert process.stderr.readline() == f"hpn agent: listens at {public / 's'}\n"
            assert answers(hpn, Path("/proc/nowhere"), public / "s")
        finally:
            process.terminate()
    for wrong, says in (("", "HPN_AGENT is empty"), ("s", "HPN_AGENT=s is not an absolute path")):
        done = started(hpn, public, HPN_AGENT=wrong)
        assert (done.returncode, says in done.stderr) == (1, True)


def test_a_fifo_for_a_namespace(hpn: Path, public: Path) -> None:
    os.mkfifo(public / "fifo")
    with agent(hpn, public / "program", public / "s"):
        env = {"CNI_NETNS": str(public / "fifo")}
        assert "supportedVersions" in run(hpn, public / "program", public / "s", **env).stdout
