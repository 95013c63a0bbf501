"""When the neighbor of a PF counts for others: at once if it is the first, else after it has stayed the same."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.node_loop import turn

from hardware import neighbors
from hardware.model import Device, Kind
from hardware.neighbors import Neighbor
from node.lldp import listener, reader
from node.lldp.listener import Listener, Port
from node.log import Topics

PORT = Port("0000:3b:00.0", "none9", 7)
AFTER = 0.3  # seconds


class Wire:
    """A listener, and the neighbors that counted after each change."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.counted = asyncio.new_event_loop(), list[str]()
        self.file = folder / "neighbors.json"
        self.listener = self.made()

    def made(self) -> Listener:
        made = Listener(self.loop, Topics(), self._changed, self.file)
        made.after = AFTER
        return made

    def hear(self, port: str, *, times: int = 2, seconds: float = 0, vlan: int = 0) -> None:
        one = Neighbor("mac", f"of {port}", "ifname", port, ttl=120, vlan=vlan)
        for _ in range(times):
            self.listener._hear(PORT, one, now=1000)
        turn(self.loop, seconds)

    def _changed(self) -> None:
        self.counted.append(self.listener.settled[PORT.pf].port)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    yield made
    made.listener.close()
    made.loop.close()


def test_the_first_counts_at_once(wire: Wire) -> None:
    wire.hear("a", times=1)
    assert wire.counted == ["a"]


def test_another_counts_when_it_has_stayed(wire: Wire) -> None:
    wire.hear("a")
    before = wire.listener.settled
    wire.hear("b")
    assert wire.counted == ["a"]
    turn(wire.loop, AFTER * 2)
    assert wire.counted == ["a", "b"]
    assert wire.listener.settled != before


def test_one_that_comes_and_goes_does_not_count(wire: Wire) -> None:
    wire.hear("a")
    for _ in range(10):
        wire.hear("b", seconds=AFTER / 5)
        wire.hear("c", seconds=AFTER / 5)
    wire.hear("a", seconds=AFTER * 2)
    assert wire.counted == ["a"]


def test_another_time_is_no_change(wire: Wire) -> None:
    wire.hear("a", times=20, seconds=AFTER * 2)
    assert wire.counted == ["a"]
    wire.hear("a", vlan=7, seconds=AFTER * 2)
    assert wire.counted == ["a", "a"]


def test_after_a_restart_the_last_one_counts(wire: Wire) -> None:
    wire.hear("a")
    again = wire.made()
    assert [one.port for one in again.settled.values()] == ["a"]
    again.close()


def test_a_message_that_the_reader_never_sends(wire: Wire) -> None:
    known = neighbors.document(Neighbor("mac", "c", "ifname", "p", ttl=1))
    wire.listener._take((PORT,), {"at": 0, "neighbor": known}, 1000)
    for message in (None, [], {}, {"at": 1}, {"at": "0"}, {"at": 0, "neighbor": {**known, "name": "x" * 300}}):
        with pytest.raises((ValueError, LookupError, TypeError)):
            wire.listener._take((PORT,), message, 1000)
    assert replace(wire.listener.settled[PORT.pf], heard=0) == neighbors.parsed(known)


Reader = Callable[[Sequence[socket.socket], socket.socket], None]


def is_mute(_: Sequence[socket.socket], parent: socket.socket) -> None:
    parent.close()
    # time: it does not end
    time.sleep(60)


def sends_nothing(_: Sequence[socket.socket], parent: socket.socket) -> None:
    parent.send(b"")
    # time: it does not end
    time.sleep(60)


@pytest.mark.parametrize("taken_over", [is_mute, sends_nothing])
def test_a_reader_that_a_stranger_has_taken_over(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, taken_over: Reader
) -> None:
    """It does not keep hpn node awake."""
    monkeypatch.setattr(reader, "read", taken_over)
    wire.listener._ports[PORT] = socket.socket()
    wire.listener._start()
    turn(wire.loop, 1)
    assert wire.listener._again  # another one starts then
    rounds, select = list[object](), wire.loop._selector.select  # type: ignore[attr-defined]
    monkeypatch.setattr(wire.loop._selector, "select", lambda wait: (rounds.append(wait), select(wait))[1])  # type: ignore[attr-defined]
    turn(wire.loop, 1)
    assert len(rounds) < 100  # a descriptor that is ready for ever makes thousands


def test_an_interface_that_returns_between_two_scans(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was gone when the reader's report led to another attempt, and each scan sees it in its place."""
    device = Device(PORT.pf, Kind.PF, netdevs=("lo",), link_type="ether")
    monkeypatch.setattr(listener.frames, "open_receiver", refused(errno.ENODEV))
    wire.listener.update([device])
    assert not wire.listener._ports
    monkeypatch.setattr(listener.frames, "open_receiver", lambda *_: socket.socket())
    wire.listener.update([device])
    assert [port.name for port in wire.listener._ports] == ["lo"]


def refused(number: int) -> Callable[..., socket.socket]:
    def refuse(*_: object) -> socket.socket:
        raise OSError(number, "refused")

    return refuse
