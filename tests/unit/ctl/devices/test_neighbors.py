"""hpn devices and the switch ports that hpn node has heard."""

import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.sysfs_tree import Tree

from base.kernel import sysfs
from ctl.devices.command import answer
from hardware import neighbors
from hardware.neighbors import Neighbor

PF, VF = "fffe:3b:00.0", "fffe:3b:00.2"
ONE = Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1/1", "leaf1", ttl=120)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = Tree(tmp_path / "sys")
    tree.netdev("rail0", tree.pci(PF))
    tree.pci(VF, pf=PF)
    return tree.root


def hear(root: Path, one: Neighbor) -> None:
    neighbors.write({PF: one}, root.parent / "run/hpn/node/neighbors.json")


@pytest.mark.parametrize(
    ("ago", "ttl", "cell"),
    [
        (10, 120, "leaf1 Eth1/1"),
        (125, 120, "leaf1 Eth1/1 (heard 2 min ago)"),
        (20, 0, "leaf1 Eth1/1 (withdrawn 20 s ago)"),
        (40_000, 120, "leaf1 Eth1/1 (heard 11 h ago)"),
    ],
)
def test_a_cell(root: Path, monkeypatch: pytest.MonkeyPatch, ago: int, ttl: int, cell: str) -> None:
    monkeypatch.setattr(neighbors, "now", lambda: 100_000)
    hear(root, replace(ONE, heard=100_000 - ago, ttl=ttl))
    lines = answer([], root)[0].splitlines()
    at = lines[0].index("NEIGHBOR")
    assert lines[1][at:].startswith(f"{cell}  ")
    assert lines[2][at:].startswith("-  ")


def test_without_any(root: Path) -> None:
    assert "NEIGHBOR" not in answer([], root)[0]
    (one,) = json.loads(answer(["--json"], root)[0])["devices"]
    assert one["neighbor"] is None


def test_a_name_that_a_terminal_would_obey(root: Path) -> None:
    """Only printable text is accepted from the file, so a neighbor with another name is not shown."""
    hear(root, replace(ONE, name="a\x1b[31m"))
    assert "NEIGHBOR" not in answer([], root)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_read_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices are for every user, and the state of hpn node is not."""
    with TemporaryDirectory() as folder:
        tree = Tree(Path(folder, "sys"))
        tree.netdev("rail0", tree.pci(PF))
        hear(tree.root, ONE)
        monkeypatch.setattr(sysfs, "SYS", tree.root)
        Path(folder).chmod(0o755)
        assert "leaf1 Eth1/1" in answer([], tree.root)[0]
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                os._exit(0 if PF in answer([], tree.root)[0] else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
