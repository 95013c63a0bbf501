"""The Debian package of a binary (packaging/deb), as dpkg-deb and man read it."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import require

from ctl.installation import layout
from ctl.main import HELP

ROOT = Path(__file__).parents[3]
EPOCH = 1_700_000_000
RULE = "=" * 100
LICENSES = f"""\
{RULE}
libc6 2.36, libc-bin 2.36
{RULE}

Some terms.

{RULE}
hpn-cni 0.1.0
{RULE}

Ours.

{RULE}
GPL-2
{RULE}

A text that every Debian has.

"""


def elf(machine: int) -> bytes:
    """Return the head of a program for that machine (man 5 elf)."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0" + machine.to_bytes(2, "little") + b"a program"


def pack(directory: Path, program: bytes = elf(62), umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """Run the build in an empty directory, which then contains the package."""
    if not shutil.which("dpkg-deb"):
        require("unit", "dpkg-deb")
    directory.mkdir()
    (directory / "hpn").write_bytes(program)
    (directory / "hpn.licenses.txt").write_text(LICENSES)
    argv = [sys.executable, ROOT / "packaging" / "deb" / "build.py", directory / "hpn", directory]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "TMPDIR": str(directory)}
    return subprocess.run(argv, env=env, umask=umask, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = pack(tmp_path_factory.mktemp("deb") / "build")
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    tree = package.with_name("unpacked")
    subprocess.run(["dpkg-deb", "--extract", package, tree], check=True)
    return tree


def field(package: Path, name: str) -> str:
    return subprocess.check_output(["dpkg-deb", "--field", package, name], text=True).strip()


def test_two_builds_are_the_same_file(package: Path, tmp_path: Path) -> None:
    """Builds by any user in any directory give the same file."""
    again = pack(tmp_path / "elsewhere", umask=0o077).stdout.strip()
    assert Path(again).read_bytes() == package.read_bytes()


def test_its_name(package: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert package.name == f"hpn-cni_{version}_amd64.deb"
    assert (field(package, "Package"), field(package, "Version")) == ("hpn-cni", version)
    assert (field(package, "Architecture"), field(package, "Depends")) == ("amd64", "")
    assert int(field(package, "Installed-Size")) > 300


def test_another_architecture(tmp_path: Path) -> None:
    """The package has the architecture of the binary, not of the build machine."""
    package = Path(pack(tmp_path / "arm", elf(183)).stdout.strip())
    assert package.name.endswith("_arm64.deb")
    assert field(package, "Architecture") == "arm64"


@pytest.mark.parametrize("program", [b"", b"#!/bin/sh\n", elf(8)])
def test_what_is_no_binary_of_ours(tmp_path: Path, program: bytes) -> None:
    done = pack(tmp_path / "build", program)
    assert done.returncode == 1
    assert "hpn is not a program for amd64 or arm64" in done.stderr
    assert list(tmp_path.rglob("*.deb")) == []


def test_its_files_are_roots(package: Path) -> None:
    listed = subprocess.check_output(["dpkg-deb", "--contents", package], text=True).splitlines()
    assert {line.split()[1] for line in listed} == {"root/root"}
    modes = {line.split()[5]: line.split()[0] for line in listed}
    assert modes["./usr/lib/cni/hpn"] == "-rwxr-xr-x"
    assert modes["./usr/lib/systemd/system/hpn-agent.socket"] == "-rw-r--r--"
    assert modes["./usr/lib/cni/"] == "drwxr-xr-x"


def test_the_program_is_found(unpacked: Path) -> None:
    program = (unpacked / "usr/lib/cni/hpn").read_bytes()
    assert program == elf(62)
    assert (unpacked / "usr/lib/cni/hpn-ipam").read_bytes() == (unpacked / "usr/sbin/hpn").read_bytes() == program
    for name in ("hpn", "hpn-ipam"):
        assert (unpacked / "opt/cni/bin" / name).readlink() == Path("/usr/lib/cni/hpn")


def test_the_units_run_what_is_there(unpacked: Path) -> None:
    units = list((unpacked / "usr/lib/systemd/system").iterdir())
    assert {unit.name for unit in units} >= {"hpn-agent.socket", "hpn-agent.service", "hpn-node.service"}
    run = {path for unit in units for path in re.findall(r"^ExecStart=/(\S*hpn)", unit.read_text(), re.MULTILINE)}
    assert run
    assert all((unpacked / path).is_symlink() for path in run)


def test_shells_find_their_completion(unpacked: Path) -> None:
    """The completions are in the directories that Debian's bash-completion and zsh search (`print $fpath`)."""
    for path in ("bash-completion/completions/hpn", "zsh/vendor-completions/_hpn"):
        assert "Completion of hpn for " in (unpacked / "usr/share" / path).read_text()


def test_licences(unpacked: Path) -> None:
    text = (unpacked / "usr/share/doc/hpn-cni/copyright").read_text()
    assert f"{RULE}\nlibc6 2.36, libc-bin 2.36\n{RULE}\n\nSome terms.\n" in text
    assert "/usr/share/common-licenses:\nGPL-2.\n" in text
    assert "that every Debian has" not in text
    assert "/usr/share/common-licenses/Apache-2.0" in text


def test_the_links_of_its_pages_lead_somewhere(unpacked: Path) -> None:
    """Each link in its pages has a target, except links into the source tree."""
    pages = list((unpacked / "usr/share/doc/hpn-cni").rglob("*.md"))
    assert len(pages) > 20
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page} links to {link}"


def test_man_page(unpacked: Path) -> None:
    """The man page has every command and variable; lintian checks it with man in tests/system/test_deb.py."""
    page = unpacked / "usr/share/man/man8/hpn.8.gz"
    assert (page.parent / "hpn-ipam.8.gz").read_bytes() == page.read_bytes()
    text = gzip.decompress(page.read_bytes()).decode().replace("\\-", "-")
    commands = re.findall(r"^  (hpn \w+)  ", HELP, re.MULTILINE)
    variables = re.findall(
        r"^\| `(HPN_\w+)`",
        (ROOT / "docs" / "user" / "install.md").read_text().partition("## Variables")[2],
        re.MULTILINE,
    )
    assert len(commands) > 6
    assert len(variables) > 2
    assert set(commands + variables) <= set(re.findall(r"^\.B (.*)$", text, re.MULTILINE))
    assert "@" not in text


def test_what_hpn_uninstall_removes_the_package_does() -> None:
    script = (ROOT / "packaging" / "deb" / "postrm").read_text()
    removed = {path for line in re.findall(r"\brm -r?f (.*)$", script, re.MULTILINE) for path in line.split()}
    assert {f"/{path}" for path in (*layout.STATE, *layout.CONFIGURATION)} <= removed
