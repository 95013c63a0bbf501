"""The log's file: its bound, several writers, and obstacles."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.base.state.test_log import REQUEST, run, written

from base.protocol.errors import InvalidConfig
from base.state import log_file, policy
from base.state.log import log_command

LIMIT = 1 << 14
# Commands of another process: their number, or, without one, until it is killed.
WRITER = """
import itertools, sys
from base.protocol.spec import Request
from base.state import log_file, policy
from base.state.log import log_command

policy.FILE, log_file.LIMIT, log, most = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
print("begins", flush=True)
for n in range(int(most)) if most else itertools.count():
    request = Request({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"c{n}", "CNI_IFNAME": "hpn0"}, b"{}")
    lines = []
    with log_command(request, {"name": "rail0", "logFile": log}, lines):
        pass
    # Without a number, one may be so slow that the other finds its lock held and the file too long.
    assert not (most and lines), lines
"""


@pytest.fixture
def log(tmp_path: Path, node_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert node_file.exists()
    monkeypatch.setattr(log_file, "LIMIT", LIMIT)
    return tmp_path / "log"


def writer(log: Path, most: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, policy.FILE, str(LIMIT), str(log), most]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])


def fill(log: Path, more: int = 0) -> None:
    log.write_text('{"of": "before"}\n' * (LIMIT // 17 + 1 + more))


def grown(log: Path) -> list[str]:
    """The lines for stderr of a command that finds the log full."""
    return run({"logFile": str(log)}, recovered=False)


def test_a_full_one_becomes_the_older(log: Path) -> None:
    for _ in range(3):
        fill(log)
        assert grown(log) == []
        assert [line["message"] for line in written(log)] == ["done"]
        assert {line["of"] for line in written(Path(f"{log}.old"))} == {"before"}
        assert sorted(path.name for path in log.parent.iterdir()) == ["log", "log.old"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_one_that_is_not_full(log: Path) -> None:
    log.write_text("x" * (LIMIT - 1))
    assert grown(log) == []
    assert not Path(f"{log}.old").exists()


def test_it_became_full_while_the_command_ran(log: Path) -> None:
    with log_command(REQUEST, {"logFile": str(log)}, []):
        fill(log)
    assert [line["message"] for line in written(log)] == ["done"]


def test_logrotates_files_stand(log: Path) -> None:
    Path(f"{log}.1").write_text("precious")
    fill(log)
    assert grown(log) == []
    assert Path(f"{log}.1").read_text() == "precious"


@pytest.mark.parametrize("path", ["log.old", "log.old/", "log.old/.", "log.old.old"])
def test_a_name_of_an_older_one(log: Path, path: str) -> None:
    """The log of another network could become it."""
    conf = {"logFile": f"{log.parent}/{path}"}
    with pytest.raises(InvalidConfig, match=r"ends in \.old.* another name"):
        run(conf)
    (line,) = run(conf, REQUEST.but(CNI_COMMAND="DEL"), recovered=False)
    assert "ends in .old" in line
    assert list(log.parent.iterdir()) == []


@pytest.mark.parametrize("end", ["moved away", "removed"])
def test_others_have_begun_another(log: Path, end: str) -> None:
    """The line goes to a file that still has a name."""
    with log_command(REQUEST, {"logFile": str(log)}, []):
        fill(log)
        log.rename(f"{log}.old") if end == "moved away" else log.unlink()
    assert [line["message"] for line in written(log)] == ["done"]


def test_a_short_one_is_removed(log: Path) -> None:
    with log_command(REQUEST, {"logFile": str(log)}, []):
        log.unlink()
    assert [line["message"] for line in written(log)] == ["done"]


def test_the_one_that_others_have_begun_stays(log: Path) -> None:
    with log_command(REQUEST, {"logFile": str(log)}, []):
        fill(log)
        log.rename(f"{log}.old")
        assert grown(log) == []
    assert [line["message"] for line in written(log)] == ["done", "done"]
    assert {line["of"] for line in written(Path(f"{log}.old"))} == {"before"}


@pytest.mark.parametrize("long", [False, True])
def test_another_is_at_it(log: Path, long: bool) -> None:
    """No command waits: the line goes to the file that is about to be the older.  It does not grow silently."""
    fill(log, LIMIT if long else 0)
    opened = log_file.open_for_append(policy.place("logFile", str(log), [str(log.parent)]))
    with log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        opened.append('{"of": "ours"}\n', lines := [])
        opened.close()
    why = f"logFile {str(log)!r} is full and cannot be renamed to log.old: another process holds its lock; see: lslocks"
    assert lines == ([why] if long else [])
    assert not Path(f"{log}.old").exists()
    assert written(log)[-1] == {"of": "ours"}


def test_the_node_allows_the_file_alone(log: Path, node_file: Path) -> None:
    """The directory's other files are not allowed."""
    node_file.write_text(json.dumps({"allowedPaths": {"logFile": [str(log)]}}))
    Path(f"{log}.old").write_text("precious")
    assert grown(log) == []
    fill(log)
    (line,) = grown(log)
    assert line.startswith(
        f"logFile {str(log)!r} is full and cannot be renamed to log.old: the node allows this file, but"
    )
    assert (written(log)[-1]["message"], Path(f"{log}.old").read_text()) == ("done", "precious")


@pytest.mark.parametrize("way", [False, True])
def test_another_cannot_be_begun(log: Path, way: bool) -> None:
    """An obstacle is in its place, or on the path.  The old file is open, and gets the line."""
    folder, aside, lines = log.parent / "folder", log.parent / "aside", list[str]()
    folder.mkdir()
    path, moved = folder / "log", (aside / "log" if way else aside)
    with log_command(REQUEST, {"logFile": str(path)}, lines):
        fill(path)
        if way:
            folder.rename(aside)
            folder.symlink_to(aside)
        else:
            path.rename(aside)
            os.mkfifo(path)
    why = "Not a directory" if way else "it is a FIFO, not a regular file"
    assert lines == [f"logFile {str(path)!r} cannot be reopened: {why}; these lines are in the old file"]
    assert written(moved)[-1]["message"] == "done"


def test_a_link_in_the_olders_place(log: Path) -> None:
    victim = log.parent / "victim"
    victim.write_text("precious")
    Path(f"{log}.old").symlink_to(victim)
    fill(log)
    assert grown(log) == []
    assert (victim.read_text(), Path(f"{log}.old").is_symlink()) == ("precious", False)


def test_a_directory_in_the_olders_place(log: Path) -> None:
    """A log that cannot be renamed grows on, and the command reports it."""
    Path(f"{log}.old", "x").mkdir(parents=True)
    fill(log)
    (line,) = grown(log)
    assert line == f"logFile {str(log)!r} is full and cannot be renamed to log.old: Is a directory"
    assert written(log)[-1]["message"] == "done"


def test_its_directory_is_gone(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path, lines = folder / "log", list[str]()
    with log_command(REQUEST, {"logFile": str(path)}, lines):
        path.unlink()
        folder.rmdir()
    assert lines == []


def test_nothing_that_goes_wrong_is_an_error(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a bug: the pod has its interface."""

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(log_file.LogFile, "append", fails)
    assert grown(log) == [f"logFile {str(log)!r} cannot be written: RuntimeError('a bug')"]
    with (
        pytest.raises(ValueError, match="its own"),
        log_command(REQUEST, {"logFile": str(log)}, []),
    ):
        raise ValueError("its own")


def test_several_at_once(log: Path) -> None:
    """While one process begins another file, no line is lost or cut.  All lines together fill one file, not two."""
    grown(log)
    one = log.stat().st_size
    log.unlink()
    writers, each = 4, int(LIMIT * 1.5 / 4 / (one + 4))
    for process in [writer(log, str(each)) for _ in range(writers)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    lines = [*written(Path(f"{log}.old")), *written(log)]
    assert sorted(line["container"] for line in lines) == sorted(f"c{n}" for n in range(each) for _ in range(writers))


def test_killed(log: Path) -> None:
    """Whenever processes are killed, the next command logs, and only a full file becomes the older."""
    for _ in range(5):
        processes = [writer(log, "") for _ in range(2)]
        for process in processes:
            assert process.stdout
            process.stdout.readline()
        while not Path(f"{log}.old").exists():
            assert all(process.poll() is None for process in processes)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        before = log.read_bytes() if log.exists() else b""
        assert grown(log) == []
        more = log.read_bytes().removeprefix(before if len(before) < LIMIT else b"")
        assert json.loads(more)["container"] == "c1"
        assert Path(f"{log}.old").stat().st_size >= LIMIT
        assert sorted(path.name for path in log.parent.iterdir()) == ["log", "log.old"]
        Path(f"{log}.old").unlink()
