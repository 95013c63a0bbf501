"""Decisions of the Debian package's scripts (packaging/deb), run below a directory with a broken program."""

import subprocess
from pathlib import Path
from typing import Protocol

import pytest
from unit.ctl.installation.test_state import leases, written
from unit.packaging.test_deb import pack

PROGRAM = "usr/lib/cni/hpn"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    package = pack(folder / "build").stdout.strip()
    subprocess.run(["dpkg-deb", "--control", package, folder / "scripts"], check=True)
    return folder / "scripts"


Done = subprocess.CompletedProcess[str]


class Script(Protocol):
    def __call__(self, name: str, *words: str, **env: str) -> Done: ...


@pytest.fixture
def script(scripts: Path, tmp_path: Path) -> Script:
    """Return a function that runs a script with all of its paths below the test's directory."""

    def run(name: str, *words: str, **env: str) -> Done:
        return below(tmp_path, (scripts / name).read_text(), name, *words, **env)

    return run


def below(root: Path, text: str, *argv: str, **env: str) -> Done:
    for path in ("/run/", "/var/", "/usr/lib/cni/"):
        text = text.replace(path, f"{root}{path}")
    command = ["sh", "-c", text, *argv]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=False)


def program(root: Path, code: str) -> None:
    path = root / PROGRAM
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("exit 0", "hpn reports nothing about them"),
        ("exit 1", "hpn reports nothing about them"),
        ("echo cannot unpack >&2; exit 1", "cannot unpack"),
        ("echo cannot unpack >&2", "cannot unpack"),
        ("echo no pod uses hpn; exit 1", "no pod uses"),
        ("echo no pod uses; kill -9 $$", "no pod uses"),
        ("exec /nonexistent", "not found"),
    ],
)
@pytest.mark.parametrize("state", ["run/hpn/attachments", "run/hpn/claims", "var/lib/cni/hpn/ipam"])
def test_a_program_that_cannot_tell_who_is_attached(
    script: Script, tmp_path: Path, code: str, said: str, state: str
) -> None:
    program(tmp_path, code)
    assert script("prerm", "remove").returncode == 0  # nothing was ever attached
    (tmp_path / state).mkdir(parents=True)
    done = script("prerm", "remove")
    assert done.returncode == 1
    assert said in done.stderr
    assert "HPN_FORCE=1 dpkg --remove hpn-cni" in done.stderr
    assert script("prerm", "remove", HPN_FORCE="1").returncode == 0
    assert script("prerm", "upgrade", "9").returncode == 0


def test_a_program_that_says_nobody_is(script: Script, tmp_path: Path) -> None:
    program(tmp_path, '[ "$*" = gc ] && exit 1; echo "no pod uses hpn"')
    (tmp_path / "run" / "hpn" / "attachments").mkdir(parents=True)
    assert script("prerm", "remove").returncode == 0


@pytest.mark.parametrize(("status", "said"), [(0, False), (1, True)])
def test_hooks_of_container_runtimes(script: Script, tmp_path: Path, status: int, *, said: bool) -> None:
    """They go before the program, and only with it."""
    program(tmp_path, f'echo "$*" >>{tmp_path}/asked; exit {status}')
    assert script("prerm", "upgrade", "9").returncode == 0
    assert not (tmp_path / "asked").exists()
    done = script("prerm", "remove")
    assert ((tmp_path / "asked").read_text(), "cannot start again" in done.stderr) == ("uninstall --hooks\n", said)


def test_state_that_it_reads(script: Script, tmp_path: Path) -> None:
    written(tmp_path)
    path = leases(tmp_path, '{"schema":1}')
    path.write_bytes(path.read_bytes() + bytes(512))
    assert (script("preinst", "upgrade", "9").returncode, script("preinst", "install").returncode) == (0, 0)


@pytest.mark.parametrize("data_dir", ["var/lib/cni/hpn/ipam", "run/hpn/ipam"])
def test_leases_of_another_schema(script: Script, tmp_path: Path, data_dir: str) -> None:
    path = leases(tmp_path, '{"schema":2}', data_dir=data_dir)
    done = script("preinst", "upgrade", "9")
    assert done.returncode == 1
    assert f"\n{path}\nNothing was replaced" in done.stderr
    assert script("preinst", "upgrade", "9", HPN_FORCE="1").returncode == 0
    # Damaged files do not count.
    path.write_bytes(b"\0" * 512 + path.read_bytes())
    assert script("preinst", "upgrade", "9").returncode == 0


def test_records_of_another_schema(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "run/hpn/attachments" / "rail0" / "c:hpn0.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema":2,"anything":"else"}')
    done = script("preinst", "install")
    assert (done.returncode, f"\n{path}\n" in done.stderr) == (1, True)
    path.write_text('{"schema":1,"any\0')
    assert script("preinst", "install").returncode == 0
