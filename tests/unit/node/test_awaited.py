"""Devices offered before a boot are awaited once, for a time, and only while their resource is configured."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.node_loop import turn
from support.topology import until

from base.protocol.errors import IoFailure
from base.state import durable
from node.kubelet import awaited
from node.kubelet.awaited import FILE, Awaited, Devices

BEFORE = {"a/b": {"v1", "v2"}, "a/c": {"w1"}}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    one = asyncio.new_event_loop()
    yield one
    one.close()


class Node:
    """A node that a test boots."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._loop, self._patch = loop, monkeypatch
        self._boots = 0
        self.boot()

    def boot(self) -> None:
        self._boots += 1
        self._patch.setattr(durable, "boot_id", lambda: f"boot {self._boots}")

    def start(self, there: Devices, ago: float = 0.0) -> Awaited:
        """Start hpn node ``ago`` seconds before now, with these devices."""
        one = Awaited(self._loop, self.folder, time.monotonic() - ago)
        one.update(there, anew=True)
        one.keep()
        return one


@pytest.fixture
def node(loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(loop, tmp_path, monkeypatch)


def test_the_first_start(node: Node) -> None:
    assert node.start(BEFORE).is_over
    node.boot()
    assert node.start(BEFORE).is_over


def test_a_device_comes_late(node: Node, loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]) -> None:
    node.start(BEFORE)
    node.boot()
    first = (node.folder / FILE).read_bytes()
    one, shown = node.start({"a/b": {"v1"}, "a/c": set()}), list[int]()
    for number in range(2):
        one.then(lambda number=number: shown.append(number))  # type: ignore[misc]
    one.update({"a/b": {"v1", "v2"}, "a/c": set()}, anew=False)
    one.keep()
    turn(loop)
    assert (one.is_over, shown, (node.folder / FILE).read_bytes()) == (False, [], first)
    one.update(BEFORE, anew=False)
    one.keep()
    assert (one.is_over, shown) == (True, [0, 1])
    waits, there = capsys.readouterr().err.splitlines()
    assert waits == "hpn node: waits up to 60 s for devices offered before the boot: v2 of a/b; w1 of a/c"
    assert there.startswith("hpn node: all devices offered before the boot are there")
    # A device that is lost during this boot is not awaited.
    assert node.start({"a/b": {"v1"}, "a/c": set()}).is_over


def test_a_device_that_never_comes(
    node: Node, loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names it once, and the next boot does not wait for it."""
    node.start(BEFORE)
    node.boot()
    one, shown = node.start({"a/b": {"v1"}, "a/c": {"w1"}}, ago=awaited.WAIT), list[int]()
    one.then(lambda: shown.append(1))
    turn(loop)
    assert (one.is_over, shown) == (True, [1])
    assert "offered before the boot: v2 of a/b; kubelet refuses" in capsys.readouterr().err
    one.keep()
    node.boot()
    assert node.start({"a/b": {"v1"}, "a/c": {"w1"}}).is_over
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("there", [{"a/b": {"v1", "v2"}}, {}, {"a/c": {"v1", "v2", "w1"}, "a/b": set()}])
def test_what_is_asked_for_no_more_or_by_another_name(node: Node, there: Devices) -> None:
    node.start(BEFORE)
    node.boot()
    assert node.start(there).is_over


def test_the_file_is_read_anew_meanwhile(node: Node) -> None:
    node.start(BEFORE)
    node.boot()
    one = node.start({"a/b": {"v1"}, "a/c": {"w1"}})
    assert not one.is_over
    one.update({"a/c": {"w1"}}, anew=True)
    assert one.is_over


@pytest.mark.parametrize("anew", [False, True])
def test_a_device_is_lost_before_the_boot(node: Node, anew: bool) -> None:  # pytest's
    """A shutdown may remove drivers first.  A new configuration is another matter: ``anew``."""
    one = node.start(BEFORE)
    one.update({"a/b": {"v1"}, "a/c": set()}, anew=anew)
    one.keep()
    node.boot()
    assert node.start({"a/b": {"v1"}, "a/c": set()}).is_over == anew


def wrong(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no JSON": wrong("{"),
    "altered": lambda file: file.write_text(file.read_text().replace("v1", "v9")),
    "a link": lambda file: (file.rename(file.with_name("x")), file.symlink_to("x")),
    "another's": lambda file: durable.write(file, {"boot": "b", "devices": ["v1"]}),
    "of others": lambda file: file.parent.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_ours(node: Node, damage: str) -> None:
    node.start(BEFORE)
    node.boot()
    DAMAGES[damage](node.folder / FILE)
    one = node.start({"a/b": {"v1"}, "a/c": set()})
    assert one.is_over
    node.folder.chmod(0o700)


def test_it_cannot_be_written(node: Node) -> None:
    """A later call writes it, though nothing has changed meanwhile."""
    one = node.start({"a/b": {"v1"}})
    blocked = node.folder / f"{FILE}.tmp"
    blocked.mkdir()
    one.update(BEFORE, anew=True)
    with pytest.raises(IoFailure, match=f"writing {node.folder / FILE}: "):
        one.keep()
    blocked.rmdir()
    one.keep()
    body = durable.read(node.folder / FILE)
    assert body
    assert body["devices"] == {"a/b": ["v1", "v2"], "a/c": ["w1"]}


def test_it_is_written_again_where_it_is_missing(node: Node) -> None:
    """In a directory that was made again."""
    one = node.start(BEFORE)
    (node.folder / FILE).unlink()
    one.keep()
    until((node.folder / FILE).exists)


def test_kubelets_directory_is_gone(node: Node, tmp_path: Path) -> None:
    """It is not made: kubelet's directory would then be moved into it."""
    node.folder = tmp_path / "kubelet" / "plugins_registry"
    node.folder.mkdir(parents=True)
    one = node.start(BEFORE)
    node.folder.parent.rename(tmp_path / "old")
    one.update({"a/b": {"v3"}}, anew=True)
    with pytest.raises(IoFailure):
        one.keep()
    assert not node.folder.parent.exists()
