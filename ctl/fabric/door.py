"""Wait for the one client that knows the token, among any that connect."""

import select
import socket
import time
from typing import Final

from base.protocol.errors import DecodeFailure
from base.protocol.spec import Json
from ctl.fabric.channel import FIRST_MOST, GREETING, MAGIC, MOST, Channel, Codec, Ended, greeting, keep_alive

# Unknown clients at once, and the seconds that each has; then the oldest is dropped.
GUESTS: Final = 16
SECONDS: Final = 10.0


class Guest:
    """A connection that has not proved yet that it knows the token."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0.0)
        self.sock, self.until = sock, time.monotonic() + SECONDS
        self._theirs = b""
        self._channel: Channel | None = None

    def fileno(self) -> int:
        return self.sock.fileno()

    def advance(self, token: str) -> tuple[Channel, Json] | None:
        """Read on; return the channel and its first message once the token is proved.  Raises Ended, DecodeFailure,
        OSError."""
        if not self._channel:
            more = self.sock.recv(GREETING - len(self._theirs))
            self._theirs += more
            if more and len(self._theirs) < GREETING:
                return None
            if not more or not self._theirs.startswith(MAGIC):
                raise Ended("it does not greet")
            ours = greeting()
            self.sock.send(ours)
            self._channel = Channel(self.sock, Codec(token, self._theirs, ours, is_client=False), FIRST_MOST)
        if (first := self._channel.take()) is None:
            return None
        self._channel.most = MOST
        return self._channel, first


def listen(address: str, port: int) -> socket.socket:
    """A listening socket at exactly this address.  Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=GUESTS)


def admit(listener: socket.socket, token: str) -> tuple[Channel, Json]:
    """The first client that proves the token, with its first message.  All others are closed.  Raises OSError."""
    guests = list[Guest]()
    listener.settimeout(0.0)
    try:
        while True:
            found = _look(listener, guests, token)
            if found:
                keep_alive(found[0].sock)
                return found
    finally:
        for guest in guests:
            guest.sock.close()


def _look(listener: socket.socket, guests: list[Guest], token: str) -> tuple[Channel, Json] | None:
    """Wait for something to happen; return the admitted client if that was it."""
    wait = max(guests[0].until - time.monotonic(), 0.0) if guests else None
    readable = select.select([listener.fileno(), *map(Guest.fileno, guests)], [], [], wait)[0]
    for guest in [one for one in guests if one.fileno() in readable]:
        try:
            if admitted := guest.advance(token):
                guests.remove(guest)
                return admitted
        except (Ended, DecodeFailure, OSError):
            guests.remove(guest)
            guest.sock.close()
    now = time.monotonic()
    if listener.fileno() in readable:
        try:
            guests.append(Guest(listener.accept()[0]))
        except (BlockingIOError, ConnectionAbortedError):
            return None
    while guests and (guests[0].until <= now or len(guests) > GUESTS):
        guests.pop(0).sock.close()
    return None
