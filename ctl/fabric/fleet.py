"""The hosts of a test: a control connection to each, and to this host's own part, which is a child process.

A host whose connection ends or whose answer is malformed is lost: its trials cannot run, and the others go on.
"""

import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from base.child_process import Child
from base.protocol import written
from base.protocol.errors import DecodeFailure
from base.protocol.spec import Json
from ctl.fabric import channel, messages
from ctl.fabric.channel import Channel, Codec, Ended
from ctl.fabric.messages import Operation
from ctl.fabric.model import Participant
from ctl.fabric.station import Station

PORT: Final = 18500
_TOKEN: Final = 32  # digits
_CONNECT: Final = 30.0  # seconds for a connection, and for the first answer
_HELLO: Final[Json] = {"operation": Operation.HELLO}


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
        """``channels`` are names for messages, and connections that have been sent HELLO.  Raises Ended with the
        name."""
        self._channels = dict(enumerate(one for _, one in channels))
        self.lost = dict[int, str]()
        found = self._participants(self._answers(self._channels, _CONNECT))
        for number, why in self.lost.items():
            raise Ended(f"{channels[number][0]}: {why}")
        self.participants = _distinct([found[number] for number in self._channels], [name for name, _ in channels])

    def ask(self, requests: Mapping[int, Json], seconds: float) -> dict[int, Json]:
        """The answers of these hosts, which work at the same time.  Hosts without an answer are lost."""
        for number, request in requests.items():
            if number in self._channels:
                with self.losing(number):
                    self._channels[number].send(request)
        return self._answers(requests, seconds)

    def _answers(self, numbers: Iterable[int], seconds: float) -> dict[int, Json]:
        answers, until, poll = dict[int, Json](), time.monotonic() + seconds, select.poll()
        waiting = {self._channels[number].fileno(): number for number in numbers if number in self._channels}
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        while waiting and (rest := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(rest * 1000):
                number = waiting[fd]
                with self.losing(number):
                    if (answer := self._channels[number].take()) is not None:
                        answers[number] = answer
                if number in answers or number in self.lost:
                    poll.unregister(fd)
                    del waiting[fd]
        for number in waiting.values():
            self._lose(number, f"no answer for {seconds:g} s")
        return answers

    def again(self) -> dict[int, Participant]:
        """The participants as they are now."""
        return self._participants(self.ask(dict.fromkeys(self._channels, _HELLO), _CONNECT))

    def _participants(self, answers: Mapping[int, Json]) -> dict[int, Participant]:
        """These answers to HELLO.  Hosts without a valid one are lost."""
        found = dict[int, Participant]()
        for number, body in answers.items():
            with self.losing(number):
                found[number] = messages.participant(body)
        return found

    @contextmanager
    def losing(self, number: int) -> Iterator[None]:
        """Lose the host if its connection ends, or if its answer is malformed."""
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
            channels.append((where.name, channel.connect((where.host, where.port), where.token, _HELLO, _CONNECT)))
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

    def work() -> None:
        with suppress(Ended, DecodeFailure, OSError):
            own.serve(Channel(theirs, Codec("", b"", b"", is_client=False)))

    child = Child(work, keeps=(theirs.fileno(),))
    theirs.close()
    made = Channel(ours, Codec("", b"", b"", is_client=True))
    made.send(_HELLO)
    return child, made
