"""kubelet's directory: noticed as soon as it appears, and locked by one process at a time."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node_loop import turn

from node.kubelet import directory
from node.kubelet.directory import Directory, Taken
from node.kubelet.sockets import Unusable


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    one = asyncio.new_event_loop()
    yield one
    one.close()


class Watched:
    """A Directory, and the number of its notifications."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self.times = 0
        self.loop = loop
        self.directory = Directory(loop, path, self._count)

    def _count(self) -> None:
        self.times += 1

    def new(self) -> bool:
        """Whether there was a notification since the last call."""
        before = self.times
        for _ in range(5):  # pending events only
            turn(self.loop, 0.01)
        return self.times > before


@pytest.fixture
def watched(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Watched]:
    one = Watched(loop, tmp_path / "kubelet" / "plugins_registry")
    yield one
    one.directory.close()


def test_it_comes_goes_and_comes(watched: Watched) -> None:
    path = watched.directory.path
    for _ in range(2):
        assert not watched.directory.claim()
        path.parent.mkdir()
        assert watched.new()
        path.mkdir()
        assert watched.new()
        assert watched.directory.claim()
        (path / "x.sock").touch()
        assert not watched.new()
        (path / "x.sock").unlink()
        assert watched.new()
        (path / ".hpn-node.lock").unlink()
        path.rmdir()
        path.parent.rmdir()
        assert watched.new()


def test_all_of_it_comes_at_once(watched: Watched) -> None:
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    assert watched.directory.claim()
    (watched.directory.path / "x").touch()
    (watched.directory.path / "x").unlink()
    assert watched.new()


def test_a_file_in_its_way(watched: Watched) -> None:
    watched.directory.path.parent.touch()
    assert watched.new()
    assert not watched.directory.claim()
    watched.directory.path.parent.unlink()
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    assert watched.directory.claim()


def test_it_is_moved_away(watched: Watched, tmp_path: Path) -> None:
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    watched.directory.path.rename(tmp_path / "old")
    assert watched.new()
    watched.directory.path.mkdir()
    assert watched.new()


def test_a_directory_above_it_is_moved_away(watched: Watched, tmp_path: Path) -> None:
    """As when an administrator moves kubelet's state away and lets kubelet make it again."""
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    assert watched.directory.claim()
    watched.directory.path.parent.rename(tmp_path / "old")
    assert watched.new()
    assert not watched.directory.claim()
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    assert watched.directory.claim()
    assert (watched.directory.path / ".hpn-node.lock").exists()


def test_what_was_moved_away_is_claimed_no_more(watched: Watched, tmp_path: Path) -> None:
    """Even before the next claim, and with no file open in it: its filesystem may be about to be unmounted."""
    watched.directory.path.mkdir(parents=True)
    assert watched.directory.claim()
    assert watched.directory.is_claimed
    watched.directory.path.parent.rename(tmp_path / "old")
    assert not watched.directory.is_claimed
    assert not watched.directory.claim()
    assert not any(f"{tmp_path}/old" in f"{fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
    watched.directory.path.mkdir(parents=True)
    assert not watched.directory.is_claimed
    assert watched.directory.claim()
    assert watched.directory.is_claimed


@pytest.mark.parametrize("above", [False, True])
def test_a_link_leads_elsewhere(watched: Watched, tmp_path: Path, above: bool) -> None:
    path = watched.directory.path
    link, rest = (path.parent, path.name) if above else (path, ".")
    link.parent.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (tmp_path / name / rest).mkdir(parents=True)
        (tmp_path / "next").symlink_to(tmp_path / name)
        (tmp_path / "next").rename(link)
        assert watched.new()
        assert watched.directory.claim()
        assert (tmp_path / name / rest / ".hpn-node.lock").exists()
    link.unlink()
    assert watched.new()
    assert not watched.directory.claim()


@pytest.mark.parametrize("before", [False, True])
def test_links_that_lead_nowhere(
    loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: bool,
) -> None:
    """It is checked at intervals, because no event reports a link elsewhere; and logged once."""
    monkeypatch.setattr(directory, "AGAIN", 0.01)
    path = tmp_path / "kubelet" / "plugins_registry"
    if before:
        path.parent.symlink_to(tmp_path / "round")
    else:
        path.parent.mkdir()
    (tmp_path / "round").symlink_to(path.parent)
    watched = Watched(loop, path)
    try:
        if not before:
            path.mkdir()
            assert watched.new()
            assert watched.directory.claim()
            path.parent.rename(tmp_path / "old")
            path.parent.symlink_to(tmp_path / "round")
        assert watched.new()
        assert not watched.directory.claim()
        (tmp_path / "round").unlink()
        (tmp_path / "round" / path.name).mkdir(parents=True)
        assert watched.new()
        assert watched.directory.claim()
        said = f"hpn node: {path} cannot be watched: Too many levels of symbolic links; checked every 0.01 s\n"
        assert capsys.readouterr().err == said
        assert not watched.new()
    finally:
        watched.directory.close()


def test_it_tells_of_nothing_else(watched: Watched) -> None:
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    (watched.directory.path.parent / "other").touch()
    (watched.directory.path.parent.parent / "other").touch()
    # Mounts elsewhere wake the loop, and cause no notification.
    assert not watched.new()


def test_what_is_made_there_by_itself(watched: Watched) -> None:
    """A failed write would cause another write.  A removed lock is another matter."""
    watched.directory.path.mkdir(parents=True)
    assert watched.new()
    assert watched.directory.claim()
    for name in (".hpn-node.json.tmp", ".hpn-example.com_rail0.sock"):
        (watched.directory.path / name).touch()
        (watched.directory.path / name).unlink()
    assert not watched.new()
    (watched.directory.path / ".hpn-node.lock").unlink()
    assert watched.new()


def test_two_processes(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    first, second = (Directory(loop, tmp_path, lambda: None) for _ in range(2))
    assert first.claim()
    assert first.claim()
    with pytest.raises(Taken, match=rf"{tmp_path}: another hpn node \(process {os.getpid()}\) serves there; stop"):
        second.claim()
    first.close()
    assert second.claim()
    second.close()


def test_a_directory_that_others_can_write(watched: Watched) -> None:
    """hpn node makes no file there."""
    watched.directory.path.mkdir(parents=True)
    watched.directory.path.chmod(0o777)
    with pytest.raises(Unusable, match=f"chmod go-w {watched.directory.path}"):
        watched.directory.claim()
    assert not any(watched.directory.path.iterdir())
    watched.directory.path.chmod(0o755)
    assert watched.directory.claim()


def test_a_lock_that_somebody_removed(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    """It is made again: else a second process could lock the directory too."""
    first, second = (Directory(loop, tmp_path, lambda: None) for _ in range(2))
    assert first.claim()
    (tmp_path / ".hpn-node.lock").unlink()
    assert first.claim()
    with pytest.raises(Taken):
        second.claim()
    first.close()
    second.close()
