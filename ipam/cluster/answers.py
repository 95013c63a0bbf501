"""A server's answer over HTTP, read until a deadline."""

import io
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final

from cni.protocol.spec import Json

_MOST: Final = 1 << 26  # bytes of an answer
_PIECE: Final = 1 << 16
_SHOWN: Final = 300  # characters of a server's own words


@dataclass(frozen=True)
class Answer:
    """``at`` is the server's clock (the header Date) in seconds since 1970, 0 if it has not said; ``pause`` is how many
    seconds it asks to wait, 0 if it does not.  ``again``: it was asked more than once, so an earlier time
    may have done it already."""

    status: int
    body: bytes
    at: float = 0.0
    pause: float = 0.0
    again: bool = False

    def json(self) -> Json:
        """The body as an object; an empty one if it is none."""
        import json  # noqa: PLC0415

        with suppress(ValueError, RecursionError):
            found = json.loads(self.body)
            if isinstance(found, dict):
                return found
        return {}

    @property
    def said(self) -> str:
        """The server's own words for what went wrong, for a message."""
        found = self.json()
        words = found.get("message") or found.get("error") or self.body.decode(errors="replace")
        return " ".join(str(words).split())[:_SHOWN] or f"status {self.status}"


def read(connection: HTTPConnection, deadline: float) -> Answer:
    """The answer to what was sent.  Raises OSError, HTTPException."""
    connection.response_class = partial(_response, deadline)  # type: ignore[assignment]
    with closing(connection.getresponse()) as response:
        body = bytearray()
        while piece := response.read1(_PIECE):
            body += piece
            if len(body) > _MOST:
                raise HTTPException(f"its answer is longer than {_MOST} bytes")
        # read1 takes an end before the announced length for the end.
        if response.length:  # guard: whole-answer
            raise HTTPException(f"its answer ended {response.length} bytes too early")
        pause = response.headers.get("Retry-After", "")
        return Answer(
            response.status,
            bytes(body),
            _seconds(response.headers.get("Date", "")),
            float(pause) if pause.isascii() and pause.isdigit() else 0.0,
        )


def _seconds(date: str) -> float:
    """A date of a server's in seconds since 1970; 0 if it is none."""
    with suppress(ValueError, OverflowError):
        if found := parsedate_tz(date):
            return float(mktime_tz(found))
    return 0.0


class _Timed(io.RawIOBase):
    """What comes from a socket until the deadline.  A socket's own timeout begins anew with every byte."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        # Its file keeps the socket open where the server ends the connection after this answer.
        self._sock, self._deadline, self._file = sock, deadline, sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._sock.settimeout(left(self._deadline))
        return self._file.readinto(into)

    def close(self) -> None:
        self._file.close()
        super().close()


def _response(deadline: float, sock: socket.socket, *args: Any, **more: Any) -> HTTPResponse:
    response = HTTPResponse(sock, *args, **more)
    response.fp.close()
    response.fp = io.BufferedReader(_Timed(sock, deadline))
    return response


def left(deadline: float) -> float:
    """The seconds until then.  Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
