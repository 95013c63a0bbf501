"""hpn install over existing names: it replaces its own files, and no others."""

import re
from pathlib import Path

import pytest
from support.installed import UNITS, program, tree

from base.protocol.errors import InvalidConfig
from ctl.installation import layout
from ctl.installation.command import install


@pytest.mark.parametrize("text", ["", "\x7fELF half", "#!/bin/sh\necho theirs\n"])
@pytest.mark.parametrize("path", [layout.HPN, layout.IPAM])
def test_a_file_that_is_not_hpn(root: Path, tmp_path: Path, path: str, text: str) -> None:
    """A foreign file stays; so does an empty or partial copy, because its origin is unknown."""
    theirs = root / path
    theirs.parent.mkdir(parents=True)
    theirs.write_text(text)
    with pytest.raises(InvalidConfig, match=re.escape(f"/{path} is not a file of hpn install, or only a part")):
        install(root, program(tmp_path), UNITS, "")
    assert tree(root) == {path: text}
    theirs.unlink()
    install(root, program(tmp_path), UNITS, "")


@pytest.mark.parametrize("path", [layout.HPN, layout.IPAM, layout.COMMAND])
@pytest.mark.parametrize("target", ["/opt/highperf/hpn", "../highperf/hpn", "/dev/null"])
def test_a_link_to_something_else(root: Path, tmp_path: Path, path: str, target: str) -> None:
    theirs = root / path
    theirs.parent.mkdir(parents=True)
    theirs.symlink_to(target)
    with pytest.raises(InvalidConfig, match=re.escape(f"/{path} is a link to {target}, which is not a path of hpn")):
        install(root, program(tmp_path), UNITS, "")
    assert tree(root) == {path: f"-> {target}"}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (layout.HPN, "/usr/lib/cni/hpn"),
        (layout.IPAM, "/usr/lib/cni/hpn"),
        (layout.IPAM, "hpn"),
        (layout.IPAM, "/opt/cni/bin/hpn"),
        (layout.COMMAND, "../../../opt/cni/bin/hpn"),
        (layout.COMMAND, "/usr/lib/cni/hpn"),
    ],
)
def test_a_link_to_hpn(root: Path, tmp_path: Path, path: str, target: str) -> None:
    """Install replaces a link to hpn that a removed package or a person made."""
    (root / "usr/lib").mkdir(parents=True)  # the whole node, not what a DaemonSet's pod sees of it
    install(root, program(tmp_path), UNITS, "")
    whole = tree(root)
    (root / path).unlink()
    (root / path).symlink_to(target)
    said = install(root, program(tmp_path), UNITS, "")
    assert [line for line in said if line.endswith(f"(instead of a link to {target})")]
    assert tree(root) == whole


def test_a_program_that_only_its_owner_may_run(root: Path, tmp_path: Path) -> None:
    """Install replaces hpn's own file, whatever its mode."""
    install(root, program(tmp_path), UNITS, "")
    (root / layout.HPN).chmod(0o700)
    assert "put /opt/cni/bin/hpn (instead of another version)" in install(root, program(tmp_path), UNITS, "")
    assert (root / layout.HPN).stat().st_mode & 0o777 == 0o755
