"""The launcher: it unpacks the program once and safely, and reports when it cannot."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.disks import mounted
from support.topology import open_files, until
from system.machine import Tools

NOBODY = 65534


def hpn(binary: Path, *argv: str, user: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary, *argv], env={"HPN_AGENT": "", **env}, input="", capture_output=True, text=True, check=False, user=user,
    )  # fmt: skip


def version(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unpacked(base: Path) -> list[Path]:
    """The unpacked directories, without the lock."""
    return [path for path in base.iterdir() if path.name != ".lock"]


def test_unpacked_once(tools: Tools, tmp_path: Path) -> None:
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    (directory,) = unpacked(tmp_path)
    before = {p: p.stat().st_ctime_ns for p in tmp_path.rglob("*")}
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    assert {p: p.stat().st_ctime_ns for p in tmp_path.rglob("*")} == before
    assert not [p for p in (directory, *directory.rglob("*")) if p.stat().st_mode & 0o077]


def test_ten_at_once(tools: Tools, tmp_path: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        done = list(pool.map(lambda _: hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)), range(10)))
    assert {version(one) for one in done} == {done[0].stdout}
    assert len(unpacked(tmp_path)) == 1


def test_one_that_waited_finds_what_another_unpacked(tools: Tools, tmp_path: Path) -> None:
    """It does not unpack again, because the other program may already run from the directory."""
    first, base = tmp_path / "first", tmp_path / "base"
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(first)))
    (directory,) = unpacked(first)
    base.mkdir(mode=0o700)
    (base / ".lock").touch(0o600)
    environ = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": str(base)}
    with (base / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([tools.hpn, "version"], env=environ, stdout=subprocess.DEVNULL) as waiting:
            until(lambda: str(base / ".lock") in open_files(waiting.pid))
            directory.rename(base / directory.name)  # the files keep their ctimes
            number = (base / directory.name).stat().st_ino
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.wait(60) == 0
    assert [path.stat().st_ino for path in unpacked(base)] == [number]


def test_a_version_is_locked_while_it_runs(tools: Tools, tmp_path: Path) -> None:
    """Otherwise the first run of another version would remove its files."""
    base = tmp_path / "base"
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(base)))
    (directory,) = unpacked(base)
    locked = ["flock", "-n", str(directory), "true"]
    assert subprocess.run(locked, check=False).returncode == 0
    argv = [tools.hpn, "agent", "--socket", tmp_path / "s"]
    with subprocess.Popen(argv, env={"HPN_PROGRAM_DIR": str(base)}) as running:
        try:
            until(lambda: subprocess.run(locked, check=False).returncode)
        finally:
            running.terminate()
    assert subprocess.run(locked, check=False).returncode == 0


@pytest.mark.parametrize(
    "damage",
    ["removed", "shorter", "altered", "a link", "writable", "a directory", "open to all", "a FIFO", "all of it"],
)
def test_what_is_not_as_it_was_unpacked_is_unpacked_again(tools: Tools, tmp_path: Path, damage: str) -> None:
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    (directory,) = unpacked(tmp_path)
    program = directory / "hpn"
    match damage:
        case "removed":
            program.unlink()
        case "shorter":
            os.truncate(program, 1000)
        case "altered":
            with program.open("r+b") as file:
                file.write(b"#!/bin/false\n")
        case "a directory":
            (directory / "encodings").chmod(0o777)
        case "open to all":
            directory.chmod(0o755)
        case "a link":
            program.rename(tmp_path.parent / "elsewhere")
            program.symlink_to(tmp_path.parent / "elsewhere")
        case "writable":
            program.chmod(0o777)
        case "a FIFO":
            (directory / ".stamp").unlink()
            os.mkfifo(directory / ".stamp", 0o600)
        case _:
            shutil.rmtree(directory)
            directory.mkdir()
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    assert program.stat(follow_symlinks=False).st_size > 1000
    assert not [p for p in (directory, *directory.rglob("*")) if p.stat().st_mode & 0o077]
    assert [p.name for p in unpacked(tmp_path)] == [directory.name]


def test_nothing_but_what_is_carried_is_run(tools: Tools, tmp_path: Path) -> None:
    """Python would search for its library in all parent directories and in the environment's directories."""
    number = Path(sysconfig.get_paths()["stdlib"]).name
    hostile = tmp_path / "lib" / number
    for where in (hostile, tmp_path, tmp_path / "lib"):
        (where / "encodings").mkdir(parents=True)
        for module in ("os.py", "re.py", "sitecustomize.py", "encodings/__init__.py"):
            (where / module).write_text("print('hostile')")
    with ZipFile(tmp_path / "lib" / f"{number.replace('.', '')}.zip", "w") as archive:
        archive.writestr("encodings/__init__.py", "print('hostile')")
    names = ("HOME", "PATH", "STARTUP", "INSPECT", "VERBOSE", "WARNINGS", "OPTIMIZE", "PYCACHEPREFIX")
    environ = {f"PYTHON{name}": str(tmp_path) for name in names}
    done = hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path / "program"), **environ)
    assert (version(done), done.stderr) == (version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path / "p"))), "")


def test_another_version_is_removed_unless_it_runs(tools: Tools, tmp_path: Path) -> None:
    for name in ("0123456789abcdef", "fedcba9876543210"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hpn").write_text("old")
    with subprocess.Popen(["flock", "--shared", tmp_path / "fedcba9876543210", "sleep", "3600"]) as user:
        try:
            while subprocess.run(["flock", "-n", tmp_path / "fedcba9876543210", "true"], check=False).returncode == 0:
                pass
            version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
            left = {p.name for p in unpacked(tmp_path)}
            assert "fedcba9876543210" in left
            assert "0123456789abcdef" not in left
            assert len(left) == 2
        finally:
            user.terminate()


@pytest.mark.parametrize("prepared", ["a link", "others may write", "somebody else's"])
def test_a_directory_that_others_prepared(tools: Tools, tmp_path: Path, prepared: str) -> None:
    """Root runs nothing from it."""
    base = tmp_path / "base"
    match prepared:
        case "a link":
            (tmp_path / "elsewhere").mkdir()
            base.symlink_to(tmp_path / "elsewhere")
        case "others may write":
            base.mkdir()
            base.chmod(0o777)
        case _:
            base.mkdir()
            os.chown(base, NOBODY, NOBODY)
    done = hpn(tools.hpn, HPN_PROGRAM_DIR=str(base), CNI_COMMAND="VERSION")
    assert done.returncode == 1
    error = json.loads(done.stdout)
    assert (error["code"], str(base) in error["msg"]) == (5, True)


def test_a_file_system_from_which_nothing_runs(tools: Tools, tmp_path: Path) -> None:
    """The launcher refuses before it unpacks anything, and also when a remount makes unpacked files noexec."""
    with mounted(tmp_path / "var", "100m") as var:
        base = var / "base"
        for before in (False, True):
            if before:
                subprocess.run(["mount", "-o", "remount,exec", var], check=True)
                version(hpn(tools.hpn, "--version", HPN_PROGRAM_DIR=str(base)))
            subprocess.run(["mount", "-o", "remount,noexec", var], check=True)
            done = hpn(tools.hpn, HPN_PROGRAM_DIR=str(base), CNI_COMMAND="VERSION")
            assert done.returncode == 1
            error = json.loads(done.stdout)
            assert (error["code"], error["msg"].startswith(f"{base} is on a file system that is mounted noexec")) == (
                5,
                True,
            )
            assert bool(unpacked(base)) == before
    version(hpn(tools.hpn, "--version", HPN_PROGRAM_DIR=str(tmp_path / "elsewhere")))


def test_a_user_has_a_place_of_his_own(tools: Tools, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for folder in (tmp_path, *tmp_path.parents[:3], tools.plugins):
        folder.chmod(folder.stat().st_mode | 0o055)
    version(hpn(tools.hpn, "version", user=NOBODY, HOME=str(home)))
    assert len(unpacked(home / ".cache/hpn")) == 1


def test_nothing_else_is_removed(tools: Tools, tmp_path: Path) -> None:
    """The launcher keeps foreign files in its directory, and the directory's permissions."""
    tmp_path.chmod(0o755)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").write_text("kept")
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    assert (tmp_path / "photos" / "one").read_text() == "kept"
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_one_that_is_damaged_while_it_runs(tools: Tools, tmp_path: Path) -> None:
    """The launcher unpacks another copy beside it; the running program keeps the old one."""
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    (directory,) = unpacked(tmp_path)
    with subprocess.Popen(["flock", "--shared", directory, "sleep", "3600"]) as user:
        try:
            while subprocess.run(["flock", "-n", directory, "true"], check=False).returncode == 0:
                pass
            (directory / "hpn").unlink()
            version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
            version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
            assert len(unpacked(tmp_path)) == 2
            assert (directory / "hpn").exists()
        finally:
            user.terminate()


def test_messages_are_json_whatever_a_path_holds(tools: Tools, tmp_path: Path) -> None:
    base = tmp_path / 'a "quoted" \\ name\n\tof \u00e4'
    base.mkdir()
    base.chmod(0o777)
    error = json.loads(hpn(tools.hpn, HPN_PROGRAM_DIR=str(base), CNI_COMMAND="VERSION").stdout)
    assert (error["code"], "others may write to" in error["msg"]) == (5, True)


@pytest.mark.parametrize("length", [300, 4000, 4095, 4096, 5000, 100000])
def test_a_path_that_is_too_long(tools: Tools, tmp_path: Path, length: int) -> None:
    name = "x" * (length if length == 300 else 200)
    base = str(tmp_path) + f"/{name}" * -(-length // len(name))
    done = hpn(tools.hpn, HPN_PROGRAM_DIR=base[: max(length, 400)], CNI_COMMAND="VERSION")
    assert json.loads(done.stdout).get("code", 0) == (5 if length == 300 or length > 4095 else 0)


def test_without_a_name(tools: Tools, tmp_path: Path) -> None:
    """A kernel before 5.18 accepts an empty argument list; newer ones add an empty name."""
    code = (
        "import ctypes, sys; variables = (ctypes.c_char_p * 2)(f'HPN_PROGRAM_DIR={sys.argv[2]}'.encode());"
        "ctypes.CDLL(None).execve(sys.argv[1].encode(), None, variables)"
    )
    done = subprocess.run([sys.executable, "-c", code, tools.hpn, tmp_path], check=False, capture_output=True)
    assert done.returncode in (0, 1)


def test_many_arguments(tools: Tools, tmp_path: Path) -> None:
    words = ["x"] * 50000
    assert hpn(tools.hpn, *words, HPN_PROGRAM_DIR=str(tmp_path)).returncode == 2


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_descriptors(tools: Tools, tmp_path: Path, closed: str) -> None:
    """The launcher's own descriptors do not become stdin, stdout or stderr."""
    script = f'"$1" version {closed}; echo $? >"$2"/status'
    env = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": str(tmp_path / "program")}
    subprocess.run(["sh", "-c", script, "sh", tools.hpn, tmp_path], env=env, check=True, capture_output=True)
    assert (tmp_path / "status").read_text() in ("0\n", "1\n", "120\n")
    assert len(unpacked(tmp_path / "program")) == 1


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_a_damaged_file(tools: Tools, tmp_path: Path, damage: str) -> None:
    data = bytearray(tools.hpn.read_bytes())
    if damage == "cut short":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 1
    copy = tmp_path / "hpn"
    copy.write_bytes(data)
    copy.chmod(0o755)
    done = hpn(copy, HPN_PROGRAM_DIR=str(tmp_path / "program"), CNI_COMMAND="VERSION")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 5)
    assert "install it again" in done.stdout


def test_an_endless_stdin(tools: Tools) -> None:
    done = subprocess.run(
        [tools.hpn],
        env={"HPN_AGENT": "", "CNI_COMMAND": "ADD"},
        input=b" " * (5 << 20),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 6)
