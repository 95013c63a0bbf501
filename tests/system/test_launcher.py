"""The launcher: unpacking what it carries, once, safely, and what it does where it cannot."""

import json
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest
from system.machine import Tools

NOBODY = 65534


def hpn(binary: Path, *argv: str, user: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary, *argv], env={"HPN_AGENT": "", **env}, input="", capture_output=True, text=True, check=False, user=user,
    )  # fmt: skip


def version(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_unpacked_once(tools: Tools, tmp_path: Path) -> None:
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    (directory,) = tmp_path.iterdir()
    before = {p: p.stat().st_ctime_ns for p in tmp_path.rglob("*")}
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    assert {p: p.stat().st_ctime_ns for p in tmp_path.rglob("*")} == before
    assert not [p for p in directory.rglob("*") if p.stat().st_mode & 0o022]


def test_ten_at_once(tools: Tools, tmp_path: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        done = list(pool.map(lambda _: hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)), range(10)))
    assert {version(one) for one in done} == {done[0].stdout}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", ["removed", "shorter", "a link", "writable", "all of it"])
def test_what_is_not_as_it_was_unpacked_is_unpacked_again(tools: Tools, tmp_path: Path, damage: str) -> None:
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    (directory,) = tmp_path.iterdir()
    program = directory / "hpn"
    match damage:
        case "removed":
            program.unlink()
        case "shorter":
            os.truncate(program, 1000)
        case "a link":
            program.rename(tmp_path.parent / "elsewhere")
            program.symlink_to(tmp_path.parent / "elsewhere")
        case "writable":
            program.chmod(0o777)
        case _:
            shutil.rmtree(directory)
            directory.mkdir()
    version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
    assert program.stat(follow_symlinks=False).st_size > 1000
    assert [p.name for p in tmp_path.iterdir()] == [directory.name]


def test_nothing_but_what_is_carried_is_run(tools: Tools, tmp_path: Path) -> None:
    """Python would look for its library in all directories above, and in what the environment says."""
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
    with subprocess.Popen(["flock", "--shared", tmp_path / "fedcba9876543210", "sleep", "60"]) as user:
        try:
            while subprocess.run(["flock", "-n", tmp_path / "fedcba9876543210", "true"], check=False).returncode == 0:
                pass
            version(hpn(tools.hpn, "version", HPN_PROGRAM_DIR=str(tmp_path)))
            left = {p.name for p in tmp_path.iterdir()}
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


def test_a_user_has_a_place_of_his_own(tools: Tools, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for folder in (tmp_path, *tmp_path.parents[:3], tools.plugins):
        folder.chmod(folder.stat().st_mode | 0o055)
    version(hpn(tools.hpn, "version", user=NOBODY, HOME=str(home)))
    assert len(list((home / ".cache/hpn").iterdir())) == 1


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
