"""hpn install, killed before each step that another process could notice, and with a failing disk."""

import os
from pathlib import Path

import pytest
from support.installed import ROOT, UNITS, killed_at, program, tree

from base.protocol.errors import IoFailure
from ctl.installation import layout
from ctl.installation.command import install, withdraw
from ctl.installation.layout import Entry


@pytest.mark.parametrize("before", ["nothing", "another version"])
def test_killed_at_every_step(root: Path, tmp_path: Path, before: str) -> None:
    """Each name is the old program, the new one, or missing; the next install gives the result of a first one."""
    old, new = program(tmp_path, "old"), program(tmp_path, "new")
    known = {old.read_text(), new.read_text(), "-> /opt/cni/bin/hpn", *UNITS.values()}
    known |= {"-> /etc/systemd/system/hpn-agent.socket"}
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", new, UNITS, "")
    whole = tree(tmp_path / "other")
    for step in range(1000):
        if before == "another version":
            install(root, old, UNITS, "")
        killed = killed_at(step, lambda: install(root, new, UNITS, ""))
        for name, text in tree(root).items():
            if not name.rpartition("/")[2].startswith("."):
                assert text in known, f"step {step}: {name}"
        if before == "another version":
            assert layout.HPN in tree(root)
            assert layout.IPAM in tree(root)
        install(root, new, UNITS, "")
        assert tree(root) == whole, f"step {step}"
        assert (root / layout.HPN).samefile(root / layout.IPAM)
        if not killed:
            assert step > 12
            return
        for name in tree(root):
            (root / name).unlink()
    pytest.fail("it never ended")


@pytest.mark.parametrize("is_removal", [False, True], ids=["install", "removal"])
def test_units_of_the_daemonset(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_removal: bool
) -> None:
    """At no step is there a unit without the one that shows who installed it."""
    monkeypatch.syspath_prepend(ROOT)
    new, more = program(tmp_path, "new"), [Entry(layout.DEVICES, "file", f"{layout.MARK}\nresources: []\n")]
    units = {layout.LEAVE: f"{layout.MARK}\n", **UNITS}

    def put() -> object:
        return install(root, new, units, "", more=more)

    def take() -> object:
        return withdraw(root)

    for step in range(1000):
        take()
        if is_removal:
            put()
        killed = killed_at(step, take if is_removal else put)
        there = [unit for unit in units if (root / layout.UNITS / unit).exists()]
        assert not there or layout.LEAVE in there, f"step {step}"
        if not killed:
            assert step > 8
            assert (len(there), (root / layout.DEVICES).parent.exists()) == ((0, False) if is_removal else (4, True))
            return


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
def test_a_disk_that_fails(root: Path, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(root, program(tmp_path), UNITS, "")
    before = tree(root)

    def fail(*_words: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(IoFailure, match="No space left on device; check that it is writable and has room"):
            install(root, program(tmp_path, "two"), UNITS, "")
    assert tree(root) == before
    install(root, program(tmp_path, "two"), UNITS, "")
    assert tree(root)[layout.IPAM] == (tmp_path / "hpn-two").read_text()
