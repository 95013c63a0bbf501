"""kubelet's directory: seen as soon as it is there, and one process's at a time."""

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


class Heard:
    """A Directory, and how often it said that something has changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self.times = 0
        self.loop = loop
        self.directory = Directory(loop, path, self._count)

    def _count(self) -> None:
        self.times += 1

    def new(self) -> bool:
        """Whether it was told anything since the last question."""
        before = self.times
        for _ in range(5):  # what is to come is there already
            turn(self.loop, 0.01)
        return self.times > before


@pytest.fixture
def heard(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Heard]:
    one = Heard(loop, tmp_path / "kubelet" / "plugins_registry")
    yield one
    one.directory.close()


def test_it_comes_goes_and_comes(heard: Heard) -> None:
    path = heard.directory.path
    for _ in range(2):
        assert not heard.directory.claim()
        path.parent.mkdir()
        assert heard.new()
        path.mkdir()
        assert heard.new()
        assert heard.directory.claim()
        (path / "x.sock").touch()
        assert not heard.new()
        (path / "x.sock").unlink()
        assert heard.new()
        (path / ".hpn-node.lock").unlink()
        path.rmdir()
        path.parent.rmdir()
        assert heard.new()


def test_all_of_it_comes_at_once(heard: Heard) -> None:
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    assert heard.directory.claim()
    (heard.directory.path / "x").touch()
    (heard.directory.path / "x").unlink()
    assert heard.new()


def test_a_file_in_its_way(heard: Heard) -> None:
    heard.directory.path.parent.touch()
    assert heard.new()
    assert not heard.directory.claim()
    heard.directory.path.parent.unlink()
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    assert heard.directory.claim()


def test_it_is_moved_away(heard: Heard, tmp_path: Path) -> None:
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    heard.directory.path.rename(tmp_path / "old")
    assert heard.new()
    heard.directory.path.mkdir()
    assert heard.new()


def test_a_directory_above_it_is_moved_away(heard: Heard, tmp_path: Path) -> None:
    """As where kubelet's state is set aside and made anew."""
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    assert heard.directory.claim()
    heard.directory.path.parent.rename(tmp_path / "old")
    assert heard.new()
    assert not heard.directory.claim()
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    assert heard.directory.claim()
    assert (heard.directory.path / ".hpn-node.lock").exists()


def test_what_was_moved_away_is_claimed_no_more(heard: Heard, tmp_path: Path) -> None:
    """Also before anybody has asked for it anew, and with nothing open in it: it may be on what is to be unmounted."""
    heard.directory.path.mkdir(parents=True)
    assert heard.directory.claim()
    assert heard.directory.is_claimed
    heard.directory.path.parent.rename(tmp_path / "old")
    assert not heard.directory.is_claimed
    assert not heard.directory.claim()
    assert not any(f"{tmp_path}/old" in f"{fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
    heard.directory.path.mkdir(parents=True)
    assert not heard.directory.is_claimed
    assert heard.directory.claim()
    assert heard.directory.is_claimed


@pytest.mark.parametrize("above", [False, True])
def test_a_link_leads_elsewhere(heard: Heard, tmp_path: Path, above: bool) -> None:
    path = heard.directory.path
    link, rest = (path.parent, path.name) if above else (path, ".")
    link.parent.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (tmp_path / name / rest).mkdir(parents=True)
        (tmp_path / "next").symlink_to(tmp_path / name)
        (tmp_path / "next").rename(link)
        assert heard.new()
        assert heard.directory.claim()
        assert (tmp_path / name / rest / ".hpn-node.lock").exists()
    link.unlink()
    assert heard.new()
    assert not heard.directory.claim()


@pytest.mark.parametrize("before", [False, True])
def test_links_that_lead_nowhere(
    loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: bool,
) -> None:
    """It is looked at again and again, because nobody tells of a link elsewhere, and said once."""
    monkeypatch.setattr(directory, "AGAIN", 0.01)
    path = tmp_path / "kubelet" / "plugins_registry"
    if before:
        path.parent.symlink_to(tmp_path / "round")
    else:
        path.parent.mkdir()
    (tmp_path / "round").symlink_to(path.parent)
    heard = Heard(loop, path)
    try:
        if not before:
            path.mkdir()
            assert heard.new()
            assert heard.directory.claim()
            path.parent.rename(tmp_path / "old")
            path.parent.symlink_to(tmp_path / "round")
        assert heard.new()
        assert not heard.directory.claim()
        (tmp_path / "round").unlink()
        (tmp_path / "round" / path.name).mkdir(parents=True)
        assert heard.new()
        assert heard.directory.claim()
        said = f"hpn node: {path} cannot be watched: Too many levels of symbolic links; checked every 0.01 s\n"
        assert capsys.readouterr().err == said
        assert not heard.new()
    finally:
        heard.directory.close()


def test_it_tells_of_nothing_else(heard: Heard) -> None:
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    (heard.directory.path.parent / "other").touch()
    (heard.directory.path.parent.parent / "other").touch()
    # Somebody else's mounts wake the loop, and nobody is told of them.
    assert not heard.new()


def test_what_is_made_there_by_itself(heard: Heard) -> None:
    """A write that fails would be its own reason to write again.  A lock that is gone is another matter."""
    heard.directory.path.mkdir(parents=True)
    assert heard.new()
    assert heard.directory.claim()
    for name in (".hpn-node.json.tmp", ".hpn-example.com_rail0.sock"):
        (heard.directory.path / name).touch()
        (heard.directory.path / name).unlink()
    assert not heard.new()
    (heard.directory.path / ".hpn-node.lock").unlink()
    assert heard.new()


def test_two_processes(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    first, second = (Directory(loop, tmp_path, lambda: None) for _ in range(2))
    assert first.claim()
    assert first.claim()
    with pytest.raises(Taken, match=rf"{tmp_path}: another hpn node \(process {os.getpid()}\) serves there; stop"):
        second.claim()
    first.close()
    assert second.claim()
    second.close()


def test_a_directory_that_others_can_write(heard: Heard) -> None:
    """Nothing is made there."""
    heard.directory.path.mkdir(parents=True)
    heard.directory.path.chmod(0o777)
    with pytest.raises(Unusable, match=f"chmod go-w {heard.directory.path}"):
        heard.directory.claim()
    assert not any(heard.directory.path.iterdir())
    heard.directory.path.chmod(0o755)
    assert heard.directory.claim()


def test_a_lock_that_somebody_removed(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    """It is taken anew, or a second process would think that it is alone."""
    first, second = (Directory(loop, tmp_path, lambda: None) for _ in range(2))
    assert first.claim()
    (tmp_path / ".hpn-node.lock").unlink()
    assert first.claim()
    with pytest.raises(Taken):
        second.claim()
    first.close()
    second.close()
