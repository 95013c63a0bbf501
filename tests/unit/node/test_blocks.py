"""When hpn node does rounds over blocks: at the start, at intervals, at a command's request; without blocks never."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.node_loop import turn

from base.protocol import location, report
from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from ipam.cluster import RoundReport
from node import blocks
from node.blocks import Blocks

MOST = 60.0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Node:
    """hpn node's part.  Each round leaves a file ``round-<pid>``, and its result is ``found``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.folder = loop, folder
        self.found: tuple[RoundReport, ...] | None = (RoundReport("net"),)
        self.ipam = folder / "ipam"
        monkeypatch.setenv("HPN_STATE_DIR", f"{folder}")
        monkeypatch.setattr(report, "ROOM", f"{folder}/run/room.sock")
        monkeypatch.setattr(blocks, "REST", 0.05)
        (folder / "run").mkdir(0o700)

    def has_a_network(self) -> None:
        (self.ipam / "net").mkdir(parents=True)
        (self.ipam / "net" / "blocks").touch()

    def start(self) -> Blocks:
        def work(due_only: bool) -> tuple[RoundReport, ...] | None:
            (self.folder / f"round-{os.getpid()}").write_text(f"{due_only}")
            return self.found

        self.blocks = Blocks(self.loop, work, Path(report.ROOM))
        return self.blocks

    @property
    def rounds(self) -> int:
        return len(list(self.folder.glob("round-*")))

    @property
    def due_only(self) -> list[str]:
        """Whether each round was for networks with work only, in order."""
        files = sorted(self.folder.glob("round-*"), key=lambda path: path.stat().st_mtime_ns)
        return [path.read_text() for path in files]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + MOST
        while not condition():
            assert time.monotonic() < deadline
            turn(self.loop, 0.05)

    @property
    def due(self) -> float | None:
        """Seconds until the next round; None if none is due."""
        due = self.blocks._background.due
        return due - time.monotonic() if due is not None else None


@pytest.fixture
def node(loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(loop, tmp_path, monkeypatch)
    yield node
    node.blocks.close()
    assert not Path(report.ROOM).exists()


def test_nothing_is_done_where_there_are_no_blocks(node: Node) -> None:
    node.start()
    turn(node.loop, 0.2)
    assert (node.rounds, node.due) == (0, None)


def test_at_once_and_then_in_time(node: Node) -> None:
    node.has_a_network()
    node.start()
    node.until(lambda: node.due is not None)
    assert node.rounds == 1
    assert node.due is not None
    assert blocks.AGAIN < node.due <= blocks.EVERY


def test_a_network_in_a_directory_that_only_an_attachment_names(node: Node) -> None:
    """After a restart no command reports it before it needs room."""
    node.ipam = node.folder / "own"
    node.has_a_network()
    conf = {"name": "net", "ipam": {"type": "hpn-ipam", "dataDir": f"{node.ipam}"}}
    key = Key("pod", "net1")
    with journal.lock(location.state_dir(), "net", key) as entry:
        entry.save(Record("net", key, "/run/netns/x", Identity(1, 2), "macvlan", {}, conf))
    node.start()
    node.until(lambda: node.rounds == 1 and not node.blocks._background.is_at_work)
    assert node.due_only == ["False"]
    report.send_low(lambda: True)
    node.until(lambda: node.rounds == 2 and not node.blocks._background.is_at_work)
    assert node.due_only == ["False", "True"], "a request is about one network"
    assert node.due is not None
    assert node.due > blocks.AGAIN


def test_a_command_tells_that_there_is_little_room(node: Node) -> None:
    node.start()
    report.send_low(lambda: False)
    report.send_low(lambda: True)
    report.send_low(lambda: True)
    node.until(lambda: node.rounds == 1 and node.due is not None)


def test_a_command_tells_that_a_number_may_be_free(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node waits for the number, so the round comes soon, and one more follows a round under way."""
    monkeypatch.setattr(blocks, "REST", 1000.0)
    monkeypatch.setattr(blocks, "APART", 0.1)
    node.has_a_network()
    node.start()
    report.send_freed(lambda: False)
    node.until(lambda: node.rounds == 1 and not node.blocks._background.is_at_work)
    report.send_freed(lambda: True)
    node.until(lambda: node.rounds == 2 and not node.blocks._background.is_at_work)


def test_numbers_that_become_free_all_the_time(node: Node) -> None:
    """One round serves many of them."""
    node.has_a_network()
    node.start()
    node.until(lambda: node.rounds == 1 and not node.blocks._background.is_at_work)
    began = node.blocks._began
    report.send_freed(lambda: True)
    node.until(lambda: node.rounds == 2 and not node.blocks._background.is_at_work)
    assert node.blocks._began - began >= blocks.APART


def test_what_is_no_message_of_ours_is_left_alone(node: Node) -> None:
    node.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"2 LOW and more", report.ROOM)
    turn(node.loop, 1)
    assert node.due is None


def test_a_command_where_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROOM", f"{tmp_path}/none.sock")
    asked = list[int]()
    report.send_low(lambda: bool(asked.append(1)))
    assert asked == []


def test_no_more_where_the_last_network_is_gone(node: Node) -> None:
    node.has_a_network()
    node.found = None
    node.start()
    node.until(lambda: node.rounds == 1 and not node.blocks._background.is_at_work)
    assert node.due is None


def test_what_cannot_be_done_is_said_once_and_tried_again(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.has_a_network()
    node.found = (RoundReport("net", 2, ("block 3 of net: lost",), "the store does not answer"), RoundReport("other"))
    node.start()
    node.until(lambda: node.due is not None)
    assert node.blocks.is_problem
    assert node.blocks.suspected == {"net": 2, "other": 0}
    assert node.due is not None
    assert node.due <= blocks.AGAIN
    report.send_low(lambda: True)
    node.until(lambda: node.rounds == 2 and not node.blocks._background.is_at_work)
    said = capsys.readouterr().err
    assert said.count("block 3 of net: lost") == said.count("network net: the store does not answer") == 1
    node.found = (RoundReport("net"),)
    report.send_low(lambda: True)
    node.until(lambda: not node.blocks.is_problem)


def test_a_process_that_dies(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.has_a_network()
    node.blocks = Blocks(node.loop, lambda _: os._exit(3), Path(report.ROOM))
    node.until(lambda: node.blocks.is_problem)
    assert "ended with status 3" in capsys.readouterr().err
    assert node.due is not None


def test_a_directory_that_others_may_write(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.folder / "run").chmod(0o777)
    node.start()
    assert "commands cannot report that a network has little room" in capsys.readouterr().err


def test_a_request_about_one_network_solves_no_other_problem(node: Node) -> None:
    """Its round skips the others, so their problems and suspicions stand until the next round of all."""
    node.has_a_network()
    node.found = (RoundReport("net", 2, (), "the store refuses"), RoundReport("other", 1))
    one = node.start()
    node.until(lambda: one.is_problem)
    node.found = (RoundReport("other", 0),)
    report.send_low(lambda: True)
    node.until(lambda: node.due_only == ["False", "True"] and not one._background.is_at_work)
    assert one.is_problem
    assert one.suspected == {"net": 2, "other": 0}
    assert node.due is not None
    assert node.due <= blocks.AGAIN
