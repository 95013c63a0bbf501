"""What the Debian package's scripts decide (packaging/deb), run below a directory, with a program that is broken."""

import subprocess
from pathlib import Path

import pytest

DEB = Path(__file__).parents[2] / "packaging" / "deb"
PROGRAM = "usr/lib/cni/hpn"


def script(root: Path, name: str, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with each of its paths below the root."""
    text = (DEB / name).read_text()
    for path in ("/run/", "/var/", "/usr/lib/cni/"):
        text = text.replace(path, f"{root}{path}")
    argv = ["sh", "-c", text, name, *words]
    return subprocess.run(argv, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=False)


def program(root: Path, code: str) -> None:
    path = root / PROGRAM
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("exit 0", "hpn says nothing of them"),
        ("exit 1", "hpn says nothing of them"),
        ("echo cannot unpack >&2; exit 1", "cannot unpack"),
        ("echo cannot unpack >&2", "cannot unpack"),
        ("echo no pod has an interface or an address of hpn; exit 1", "no pod has"),
        ("echo no pod has an; kill -9 $$", "no pod has"),
        ("exec /nonexistent", "not found"),
    ],
)
@pytest.mark.parametrize("state", ["run/hpn/attachments", "run/hpn/elsewhere", "var/lib/cni/hpn/ipam"])
def test_a_program_that_cannot_tell_who_is_attached(tmp_path: Path, code: str, said: str, state: str) -> None:
    program(tmp_path, code)
    assert script(tmp_path, "prerm", "remove").returncode == 0  # nothing was ever attached
    (tmp_path / state).mkdir(parents=True)
    done = script(tmp_path, "prerm", "remove")
    assert done.returncode == 1
    assert said in done.stderr
    assert "HPN_FORCE=1 dpkg --remove hpn-cni" in done.stderr
    assert script(tmp_path, "prerm", "remove", HPN_FORCE="1").returncode == 0
    assert script(tmp_path, "prerm", "upgrade", "9").returncode == 0


def test_a_program_that_says_nobody_is(tmp_path: Path) -> None:
    program(tmp_path, '[ "$*" = gc ] && exit 1; echo "no pod has an interface or an address of hpn"')
    (tmp_path / "run" / "hpn" / "attachments").mkdir(parents=True)
    assert script(tmp_path, "prerm", "remove").returncode == 0
