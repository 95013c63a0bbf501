"""Wait for the one client that knows the token, among any that connect."""

import select
import socket
import time
from typing import Final

from base.protocol.errors import DecodeFailure
from base.protocol.spec import Json
from ctl.fabric.channel import (
    FIRST_MOST,
    GREETING,
    HEADER,
    MAGIC,
    Channel,
    Codec,
    Ended,
    greeting,
    keep_alive,
    length_of,
)

# Unknown clients at once, and the seconds that each has; then the oldest is dropped.
GUESTS: Final = 16
SECONDS: Final = 10.0
_CODE: Final = slice(4, HEADER)


class Guest:
    """A connection that has not proved yet that it knows the token."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0.0)
        self.sock, self.until = sock, time.monotonic() + SECONDS
        self._data, self._ours = b"", b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def advance(self, token: str) -> tuple[Channel, Json] | None:
        """Read on; return the channel and its first message once the token is proved.  Raises Ended, DecodeFailure,
        OSError."""
        want = GREETING if not self._ours else GREETING + HEADER
        if len(self._data) >= GREETING + HEADER:
            want += length_of(self._data[GREETING:], FIRST_MOST)
        try:
            more = self.sock.recv(want - len(self._data))
        except BlockingIOError:
            return None
        if not more:
            raise Ended("it closed the connection")
        self._data += more
        if not self._ours and len(self._data) == GREETING:
            if not self._data.startswith(MAGIC):
                raise Ended("it speaks another language")
            self._ours = greeting()
            self.sock.send(self._ours)
        if len(self._data) < GREETING + HEADER:
            return None
        header = self._data[GREETING : GREETING + HEADER]
        text = self._data[GREETING + HEADER :]
        if len(text) < length_of(header, FIRST_MOST):
            return None
        codec = Codec(token, self._data[:GREETING], self._ours, is_client=False)
        first = codec.opened(header[_CODE], text)
        return Channel(self.sock, codec), first


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
