"""The hosts of a test: a control connection to each, and to this host's own part, which is a child process.

A host whose connection ends or whose answer is malformed is lost: its trials cannot run, and the others go on.
"""

import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from base.child_process import Child
from base.protocol import written
from base.protocol.errors import DecodeFailure
from base.protocol.spec import Json
from ctl.fabric import channel, door, messages
from ctl.fabric.channel import Channel, Ended
from ctl.fabric.messages import Operation
from ctl.fabric.model import Participant
from ctl.fabric.station import Station

PORT: Final = 18500
_TOKEN: Final = 32  # digits
_CONNECT: Final = 30.0  # seconds for a connection, and for the first answer


@dataclass(frozen=True)
class Address:
    """A serving host, as ``hpn fabric serve`` prints it: TOKEN@ADDRESS:PORT."""

    host: str
    port: int
    token: str

    @property
    def name(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """The address in "TOKEN@10.0.0.5:18500" or "TOKEN@[fd00::5]:18500".  Raises ValueError."""
    token, at, rest = text.strip().rpartition("@")
    if not at or len(token) != _TOKEN or set(token) - set("0123456789abcdef"):
        raise ValueError(f"{rest!r} has no token; copy the line TOKEN@ADDRESS:PORT that hpn fabric serve prints")
    return Address(*endpoint(rest), token)


def endpoint(text: str) -> tuple[str, int]:
    """The address and port of "10.0.0.5:18500"; without a port it is PORT.  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, f"{PORT}"
    number = written.number(port)
    if number > 65535:
        raise ValueError(f"{text!r}: port {port} is above 65535")
    return f"{written.address(host.strip('[]'))}", number


class Fleet:
    """The participants by number, and how to reach them."""

    def __init__(self, channels: Sequence[tuple[str, Channel]]) -> None:
        """``channels`` are names for messages, and connections.  Raises Ended, DecodeFailure with the name."""
        self._channels = dict(enumerate(one for _, one in channels))
        self.lost = dict[int, str]()
        answers = self.ask(self._to_all(Operation.HELLO), _CONNECT)
        for number, why in self.lost.items():
            raise Ended(f"{channels[number][0]}: {why}")
        found = []
        for number, (name, _) in enumerate(channels):
            try:
                found.append(messages.participant(answers[number]))
            except DecodeFailure as e:
                raise Ended(f"{name}: {e.msg}") from e
        self.participants: tuple[Participant, ...] = _distinct(found, [name for name, _ in channels])

    def _to_all(self, operation: Operation) -> dict[int, Json]:
        return {number: {"operation": operation} for number in self._channels}

    def ask(self, requests: Mapping[int, Json], seconds: float) -> dict[int, Json]:
        """The answers of these hosts, which work at the same time.  Hosts without an answer are lost."""
        waiting, answers = dict[int, Channel](), dict[int, Json]()
        for number, request in requests.items():
            if number in self._channels:
                with self._losing(number):
                    self._channels[number].send(request)
                    waiting[number] = self._channels[number]
        until = time.monotonic() + seconds
        while waiting:
            ready = select.select([*waiting.values()], [], [], max(until - time.monotonic(), 0.0))[0]
            for number in [one for one, its in waiting.items() if its in ready]:
                with self._losing(number):
                    if (answer := waiting[number].take()) is not None:
                        answers[number] = answer
                        del waiting[number]
                if number in self.lost:
                    del waiting[number]
            if not ready:
                for number in waiting:
                    self._lose(number, f"no answer for {seconds:g} s")
                return answers
        return answers

    def again(self) -> dict[int, Participant]:
        """The participants as they are now."""
        found = {}
        for number, body in self.ask(self._to_all(Operation.HELLO), _CONNECT).items():
            with self._losing(number):
                found[number] = messages.participant(body)
        return found

    @contextmanager
    def losing(self, number: int) -> Iterator[None]:
        """Lose the host if its answer is malformed."""
        with self._losing(number):
            yield

    @contextmanager
    def _losing(self, number: int) -> Iterator[None]:
        try:
            yield
        except (Ended, DecodeFailure) as e:
            self._lose(number, e.msg)

    def _lose(self, number: int, why: str) -> None:
        self.lost[number] = why
        self._channels.pop(number).close()

    def close(self) -> None:
        """End the test at all hosts."""
        while self._channels:
            _, one = self._channels.popitem()
            with suppress(Ended):
                one.send({"operation": Operation.BYE}, 1.0)
            one.close()


def _distinct(found: Sequence[Participant], addresses: Sequence[str]) -> tuple[Participant, ...]:
    """The participants; those with one name get their address behind it."""
    names = [one.name for one in found]
    return tuple(
        replace(one, name=f"{one.name} ({where})") if names.count(one.name) > 1 else one
        for one, where in zip(found, addresses, strict=True)
    )


@contextmanager
def opened(addresses: Sequence[Address], own: Station | None) -> Iterator[Fleet]:
    """Connect to the hosts; ``own`` is this host's part, None if it does not take part.  Raises Ended."""
    child, channels = None, list[tuple[str, Channel]]()
    fleet = None
    try:
        if own:
            child, one = _start(own)
            channels.append(("this host", one))
        for where in addresses:
            channels.append((where.name, channel.connect((where.host, where.port), where.token, _CONNECT)))
        fleet = Fleet(channels)
        yield fleet
    finally:
        if fleet is not None:
            fleet.close()
        for _, one in channels:
            one.close()
        if child:
            child.end()


def _start(own: Station) -> tuple[Child, Channel]:
    """This host's part as a child process, which ends with the connection."""
    ours, theirs = socket.socketpair()
    token = channel.new_token()

    def work() -> None:
        with suppress(Ended, DecodeFailure, OSError):
            own.serve(*door.admit_one(theirs, token))

    child = Child(work, keeps=(theirs.fileno(),))
    theirs.close()
    return child, channel.greeted(ours, token, _CONNECT)
