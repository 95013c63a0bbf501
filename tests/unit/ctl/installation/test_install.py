"""hpn install without systemd: installed, replaced and refused files."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.installed import ROOT, UNITS, program, tree

from base.protocol.errors import CniError, InvalidConfig, IoFailure, TryAgain
from ctl.installation import files, layout
from ctl.installation.command import answer_install, install, uninstall


def test_what_it_puts_where(root: Path, tmp_path: Path) -> None:
    said = install(root, program(tmp_path), UNITS, "")
    text = (tmp_path / "hpn-one").read_text()
    there = tree(root)
    units = {f"etc/systemd/system/{path.name}": path for path in (ROOT / "packaging" / "systemd").iterdir()}
    assert {name: there.pop(name).partition("\n")[2] for name in units} == {n: p.read_text() for n, p in units.items()}
    assert there == {
        "opt/cni/bin/hpn": text,
        "opt/cni/bin/hpn-ipam": text,
        "usr/local/sbin/hpn": "-> /opt/cni/bin/hpn",
        "etc/systemd/system/sockets.target.wants/hpn-agent.socket": "-> /etc/systemd/system/hpn-agent.socket",
    }
    assert (root / layout.HPN).samefile(root / layout.IPAM)
    assert stat.S_IMODE((root / layout.HPN).stat().st_mode) == 0o755
    assert [line for line in said if "hpn-node.service is not enabled" in line]


def test_again_is_nothing(root: Path, tmp_path: Path) -> None:
    install(root, program(tmp_path), UNITS, "")
    before = {path: path.lstat().st_ctime_ns for path in root.rglob("*")}
    assert install(root, program(tmp_path), UNITS, "")[0] == "it is already installed"
    assert {path: path.lstat().st_ctime_ns for path in root.rglob("*")} == before


def test_what_an_interrupted_install_left(root: Path, tmp_path: Path) -> None:
    """The next install removes leftovers; the installed version stays."""
    install(root, program(tmp_path), UNITS, "")
    whole = tree(root)
    for path in (layout.HPN, layout.IPAM, layout.COMMAND, f"{layout.UNITS}/{layout.AGENT}"):
        (root / layout.temporary(path)).write_text("half")
    install(root, program(tmp_path), UNITS, "")
    assert tree(root) == whole


def test_by_itself_where_it_is(root: Path, tmp_path: Path) -> None:
    install(root, program(tmp_path), UNITS, "")
    (root / layout.IPAM).unlink()
    install(root, root / layout.HPN, UNITS, "")
    assert (root / layout.HPN).samefile(root / layout.IPAM)


def test_another_version(root: Path, tmp_path: Path) -> None:
    install(root, program(tmp_path), UNITS, "")
    (root / "etc/systemd/system/sockets.target.wants/hpn-agent.socket").unlink()
    with (root / layout.HPN).open() as old:
        said = install(root, program(tmp_path, "two"), UNITS, "")
        assert old.read() == (tmp_path / "hpn-one").read_text()
    assert [line for line in said if line.startswith("put")] == [
        "put /opt/cni/bin/hpn (instead of another version)",
        "put /opt/cni/bin/hpn-ipam, another name of /opt/cni/bin/hpn (instead of another version)",
    ]
    assert tree(root)["opt/cni/bin/hpn-ipam"] == (tmp_path / "hpn-two").read_text()


def test_dry_run_changes_nothing(root: Path, tmp_path: Path) -> None:
    said = install(root, program(tmp_path), UNITS, "", dry_run=True)
    assert "would put /opt/cni/bin/hpn" in said
    assert tree(root) == {}
    assert list(root.iterdir()) == []
    done = install(root, program(tmp_path), UNITS, "")
    assert {f"would {line}" for line in done if line.startswith("put ")} == {line for line in said if "put " in line}


def test_without_units(root: Path, tmp_path: Path) -> None:
    *_, last = install(root, program(tmp_path), {}, "")
    assert last == "put /usr/local/sbin/hpn -> /opt/cni/bin/hpn"
    assert not (root / "etc").exists()
    assert install(root, program(tmp_path), {}, "") == ["it is already installed"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("exit 7", "exit status 7"),
        ("cat >/dev/null; echo '{\"supportedVersions\": []}'; exit", "it printed '{\"supportedVersions\": []}'"),
        ("echo no; exit", "it printed 'no'"),
    ],
)
def test_what_does_not_run_is_not_installed(root: Path, tmp_path: Path, code: str, why: str) -> None:
    install(root, program(tmp_path), UNITS, "")
    before = tree(root)
    with pytest.raises(IoFailure, match="so the old one stays") as e:
        install(root, program(tmp_path, "two", code), UNITS, "")
    assert why in e.value.msg
    assert tree(root) == before


def test_units_are_not_put_without_their_program(root: Path, tmp_path: Path) -> None:
    """Units belong to their program's version, so a failing program stops the installation before the units."""
    install(root, program(tmp_path), {name: f"{text}# an older one\n" for name, text in UNITS.items()}, "")
    (root / layout.UNITS / layout.AGENT_SOCKET).unlink()
    (root / layout.wants_link(layout.AGENT_SOCKET)).unlink()
    before = tree(root)
    with pytest.raises(IoFailure, match="so the old one stays"):
        install(root, program(tmp_path, "two", "exit 7"), UNITS, "")
    assert tree(root) == before


def test_of_another_architecture(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    header = bytearray(Path("/bin/true").read_bytes())
    header[18:20] = (0xF3).to_bytes(2, "little")  # RISC-V (elf.h, e_machine)
    other.write_bytes(header)
    with pytest.raises(IoFailure, match="Exec format error; it is built for riscv64, and this machine is "):
        install(root, other, UNITS, "")
    assert not (root / layout.HPN).exists()


@pytest.mark.parametrize("path", ["usr/bin/env", "opt/cni/bin/loopback"])
def test_a_root_of_another_architecture(root: Path, path: str) -> None:
    """The root is an image's, or that of a node which emulates the program and shows a DaemonSet's pod only the
    plugins."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(Path("/bin/true").read_bytes()[:18] + (0xF3).to_bytes(2, "little"))
    why = f"and {root / path} for riscv64; nothing was replaced.  Install the hpn that is built for riscv64"
    with pytest.raises(IoFailure, match=why):
        install(root, Path("/bin/true"), UNITS, "")
    assert not (root / layout.HPN).exists()
    (root / path).write_bytes(b"#!/bin/sh\n")
    with pytest.raises(IoFailure, match="does not run"):  # a script has no architecture to compare
        install(root, Path("/bin/true"), UNITS, "")


@pytest.mark.parametrize("path", [layout.HPN, layout.IPAM, layout.COMMAND, f"{layout.UNITS}/{layout.AGENT}"])
def test_a_directory_in_a_files_place(root: Path, tmp_path: Path, path: str) -> None:
    (root / path).mkdir(parents=True)
    with pytest.raises(InvalidConfig, match=re.escape(f"/{path} is a directory")):
        install(root, program(tmp_path), UNITS, "")
    assert tree(root) == {}


def test_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    left = root / layout.temporary(layout.HPN)
    left.parent.mkdir(parents=True)
    left.symlink_to(precious)
    install(root, program(tmp_path), UNITS, "")
    assert precious.read_text() == "precious"
    assert not left.is_symlink()
    assert not (root / layout.HPN).is_symlink()


def test_a_link_on_the_way_stays_below_the_root(root: Path, tmp_path: Path) -> None:
    """Systems with a read-only /usr have such links; one that leaves an image would reach this node's files."""
    (root / "var" / "opt").mkdir(parents=True)
    (root / "opt").symlink_to("var/opt")
    install(root, program(tmp_path), UNITS, "")
    assert (root / "var" / "opt" / "cni" / "bin" / "hpn").is_file()
    (root / "usr" / "local" / "sbin" / "hpn").unlink()
    (root / "usr" / "local" / "sbin").rmdir()
    (root / "usr" / "local" / "sbin").symlink_to(tmp_path)
    with pytest.raises(InvalidConfig, match=f"on the way to usr/local/sbin/hpn leads out of it, to {tmp_path}"):
        install(root, program(tmp_path), UNITS, "")
    assert not (tmp_path / "hpn").is_symlink()


def test_the_mode_of_directories(root: Path, tmp_path: Path) -> None:
    """The mode does not depend on the umask, which stays unchanged."""
    before = os.umask(0o077)
    try:
        install(root, program(tmp_path), UNITS, "")
        assert (root / "opt" / "cni" / "bin").stat().st_mode & 0o777 == 0o755
    finally:
        assert os.umask(before) == 0o077


def test_a_unit_of_somebody_elses(root: Path, tmp_path: Path) -> None:
    unit = root / layout.UNITS / layout.NODE
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/opt/other node\n")
    with pytest.raises(InvalidConfig, match=r"hpn-node\.service is not a file of hpn install"):
        install(root, program(tmp_path), UNITS, "")
    assert list(tree(root)) == [f"{layout.UNITS}/{layout.NODE}"]


def test_a_unit_that_was_copied_by_hand(root: Path, tmp_path: Path) -> None:
    unit = root / layout.UNITS / layout.NODE
    unit.parent.mkdir(parents=True)
    unit.write_text((ROOT / "packaging" / "systemd" / layout.NODE).read_text())
    install(root, program(tmp_path), UNITS, "")
    assert unit.read_text() == UNITS[layout.NODE]


def test_a_unit_that_must_not_start(root: Path, tmp_path: Path) -> None:
    unit = root / layout.UNITS / layout.NODE
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/dev/null")
    install(root, program(tmp_path), UNITS, "")
    assert unit.readlink() == Path("/dev/null")


def test_two_at_once(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LOCK_TIMEOUT", 0.1)
    with files.exclusive(root):
        with pytest.raises(TryAgain, match=rf"opt/cni/bin/.hpn.lock was held by .*{os.getpid()}"):
            install(root, program(tmp_path), UNITS, "")
        assert tree(root).keys() == {layout.LOCK}
        assert stat.S_IMODE((root / layout.LOCK).stat().st_mode) == 0o600
    install(root, program(tmp_path), UNITS, "")
    assert layout.LOCK not in tree(root)


def test_many_at_once(root: Path, tmp_path: Path) -> None:
    """Each removes the lock's file; even so, at most one is inside at a time."""
    inside = tmp_path / "inside"
    script = (
        "import sys; from pathlib import Path; from ctl.installation import files\n"
        "for _ in range(20):\n"
        " with files.exclusive(Path(sys.argv[1])):\n"
        "  Path(sys.argv[2]).mkdir(); Path(sys.argv[2]).rmdir()\n"
    )
    argv = [sys.executable, "-c", script, root, inside]
    running = [subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [one.communicate()[1] for one in running] == [""] * 4
    assert tree(root) == {}


# Holds the locks until it reads a line.
USER = """
import fcntl, os, sys
for folder in sys.argv[1:]:
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root, to become another user")
def test_a_users_lock_of_the_plugin_directory(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user can open the directory, and hold its lock for ever."""
    monkeypatch.setattr(files, "_LOCK_TIMEOUT", 0.1)
    monkeypatch.syspath_prepend(ROOT)  # an earlier test may have prepended to it
    install(root, program(tmp_path), UNITS, "")
    for folder in (*root.parents, root):
        folder.chmod(folder.stat().st_mode | 0o011)
    held = [one for one in (root / layout.HPN).parents if one.is_relative_to(root)]
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", USER, *held]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout
        assert user.stdout.readline() == "held\n"
        assert install(root, program(tmp_path, "two"), UNITS, "")[0].startswith("put /opt/cni/bin/hpn")
        assert "remove /opt/cni/bin/hpn" in uninstall(root)
        user.communicate("end\n")


# As in a container without capabilities.
WITHOUT_CAPABILITIES = """
import sys
from pathlib import Path
from base.protocol.errors import IoFailure
from ctl.installation.command import install
try:
    install(Path(sys.argv[1]), Path(sys.argv[2]), {}, "")
except IoFailure as e:
    print(e.msg)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root, to give the directory another owner")
def test_a_plugin_directory_of_another_user(root: Path, tmp_path: Path) -> None:
    """The error names the owner, whom the mode of a directory favours over a root without capabilities."""
    folder = root / "opt" / "cni" / "bin"
    folder.mkdir(parents=True)
    os.chown(folder, 1000, 1000)
    argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", WITHOUT_CAPABILITIES]
    said = subprocess.check_output([*argv, root, program(tmp_path)], cwd=ROOT, text=True)
    assert f"Permission denied: {folder} belongs to uid 1000, and this process lacks CAP_DAC_OVERRIDE; " in said


def test_from_its_sources() -> None:
    with pytest.raises(IoFailure, match="runs from its sources"):
        answer_install([], "", "")


def test_a_file_that_was_removed(root: Path, tmp_path: Path) -> None:
    with pytest.raises(CniError, match=re.escape("hpn (deleted): No such file")):
        install(root, tmp_path / "hpn (deleted)", UNITS, "")


def test_links_without_an_end(root: Path, tmp_path: Path) -> None:
    (root / "opt").symlink_to("opt")
    with pytest.raises(IoFailure, match="Too many levels"):
        install(root, program(tmp_path), UNITS, "")
