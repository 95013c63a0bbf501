"""HTTP/1.1 to a backend's servers: one kept connection, and waits that end with the request's budget.

A request without an answer may have taken effect.  So it is sent again only if the caller declares that safe; otherwise
Unreachable is raised.  A request that no server began (429, or no connection) is always sent again.
"""

import errno
import io
import json
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from email.utils import mktime_tz, parsedate_tz
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from base.kernel import budget
from base.kubernetes import tls
from base.protocol.errors import Unreachable
from base.protocol.spec import Json

_TIMEOUT: Final = 3.0  # seconds for one server's answer, or what is left of the budget
_IDLE: Final = 20.0  # seconds until a connection is no longer reused: a firewall on the way may have dropped it
_DEAF: Final = 3.0  # seconds for which a server's kernel may acknowledge nothing, however slow the server is
_ATTEMPTS: Final = 4
_FIRST_PAUSE: Final = 0.05  # seconds; each further pause doubles
_MOST: Final = 1 << 26  # bytes of an answer
_PIECE: Final = 1 << 16
_SHOWN: Final = 300  # characters of a server's error message
_BUSY: Final = 429
# Server-side apply (kubernetes.io, "Server-Side Apply"): the only PATCH here.  JSON is YAML.
_PATCH: Final = "application/apply-patch+yaml"
# The server, or a proxy before it, failed (RFC 9110, section 15.6).
_FAILED: Final = frozenset({500, 502, 503, 504})


def is_url(text: object, *schemes: str) -> bool:
    """Whether it is a server's URL without a user and a password, because messages quote it."""
    try:
        parts = urlsplit(text if isinstance(text, str) else "")
        return parts.scheme in schemes and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def shown(value: object) -> str:
    """Return the value for a message, with the user and the password of a URL in it removed."""
    return re.sub(r"//[^/']*@", "//...@", repr(value))


@dataclass(frozen=True)
class Answer:
    """A server's answer.

    - ``at``: the server's clock (the header Date) in seconds since 1970; 0 if absent.
    - ``pause``: the seconds to wait that the server demands; 0 if none.
    - ``again``: the request was sent more than once, so an earlier sending may have taken effect.
    """

    status: int
    body: bytes
    at: float = 0.0
    pause: float = 0.0
    again: bool = False

    def json(self) -> Json:
        """Return the body as an object; an empty one for any other body."""
        with suppress(ValueError, RecursionError):
            found = json.loads(self.body)
            if isinstance(found, dict):
                return found
        return {}

    @property
    def is_absent(self) -> bool:
        """Whether the API server has no such object; without its CustomResourceDefinition, a 404 has no details."""
        found = self.json() if self.status == 404 else {}
        about = found.get("details")
        return found.get("reason") == "NotFound" and isinstance(about, dict) and bool(about.get("name"))

    @property
    def reason(self) -> str:
        """The server's error message, shortened."""
        found = self.json()
        words = found.get("message") or found.get("error") or self.body.decode(errors="replace")
        return " ".join(str(words).split())[:_SHOWN] or f"status {self.status}"


class _NotSent(Exception):
    """There was no connection."""


class _NotAnswered(Exception):
    """The request was sent, at least in part."""


class Http:
    """One connection to one of the servers, opened on demand.

    - ``servers``: URLs of one backend's servers; if one is unreachable, the next is tried.
    - ``trust``: returns the certificates for a new connection, as they change.
    - ``headers``: returns further headers for a request, as tokens change.
    - ``is_patient``: ``begin`` gives a whole budget, for a caller with many requests and no command waiting.
    - ``patience``: with that, the seconds of this budget, which may all pass before one answer.  A slow server gets a
      request once.
    """

    def __init__(
        self,
        servers: Sequence[str],
        trust: Callable[[], tls.Tls],
        headers: Callable[[], Mapping[str, str]] = dict,
        *,
        is_patient: bool = False,
        patience: float = 0.0,
    ) -> None:
        self._servers = [urlsplit(server) for server in servers]
        self._trust, self._headers, self._is_patient, self._patience = trust, headers, is_patient, patience
        self._at = 0  # the current server's position
        self._connection: HTTPConnection | None = None
        self._used = 0.0
        self._is_new = True  # whether this request opens its connection

    def begin(self) -> None:
        """Give the next request one budget, together with those that repeat it with another credential."""
        budget.begin(is_patient=True, seconds=self._patience) if self._is_patient else budget.begin_one()

    def ask(
        self, method: str, path: str, body: Json | None = None, *, is_safe: bool, accept: str = "application/json"
    ) -> Answer:
        """Return the server's answer of any status but "busy" and "failed".

        ``is_safe``: the request may be sent twice.  ``accept``: the answer's media types.  Raises Unreachable,
        BackendRefused.
        """
        why = "the time for this request is over"
        for attempt in range(_ATTEMPTS):
            begun, pause = time.monotonic(), _FIRST_PAUSE * 2**attempt * (0.5 + os.urandom(1)[0] / 256)
            try:
                answer = self._exchange(method, path, body, accept)
                if not (answer.status == _BUSY or answer.status in _FAILED):
                    return replace(answer, again=True) if attempt else answer
                if answer.status in _FAILED and len(self._servers) > 1:
                    self._turn_to_another()
                why, pause = f"it reports: {answer.reason}", max(pause, answer.pause)
                is_over = answer.status != _BUSY and not is_safe
            except _NotSent as e:
                why, is_over = str(e), self._is_slow(e)
                self._turn_to_another()
            except _NotAnswered as e:
                why, is_over = str(e), not is_safe or self._is_slow(e)
                self._turn_to_another()
            finally:
                budget.spend(time.monotonic() - begun)
            if is_over or attempt == _ATTEMPTS - 1 or pause >= budget.left():
                break
            time.sleep(pause)
            budget.spend(pause)
        raise Unreachable(f"{self.server} gives no answer to {method} {path.partition('?')[0]}: {why}; try again later")

    def _is_slow(self, error: Exception) -> bool:
        """Whether the only server did not answer in time: a second attempt would wait as long, or a busy server would
        get the request twice.  Without patience, only on a new connection: a firewall may have dropped another."""
        is_heard = bool(self._patience) or self._is_new
        cause = error.__cause__
        is_late = isinstance(cause, TimeoutError) and cause.errno != errno.ETIMEDOUT  # that is _DEAF's
        return is_late and is_heard and len(self._servers) == 1

    @property
    def server(self) -> str:
        return self._servers[self._at].geturl()

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def _turn_to_another(self) -> None:
        self.close()
        self._at = (self._at + 1) % len(self._servers)

    def _exchange(self, method: str, path: str, body: Json | None, accept: str) -> Answer:
        deadline = time.monotonic() + min(self._patience or _TIMEOUT, budget.left())
        fields = {"Accept": accept, "User-Agent": "hpn-cni", **self._headers()}
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        if data is not None:
            fields["Content-Type"] = _PATCH if method == "PATCH" else "application/json"
        connection = self._connected(deadline)
        try:
            connection.sock.settimeout(_left(deadline))
            _send(connection, method, self._servers[self._at].path.rstrip("/") + path, data, fields)
            answer = _read(connection, deadline)
        except (OSError, HTTPException) as e:
            self.close()
            raise tls.refusal(e, self.server, self._trust) or _NotAnswered(_words(e)) from e
        self._used = time.monotonic()
        return answer

    def _connected(self, deadline: float) -> HTTPConnection:
        if self._connection and (time.monotonic() - self._used > _IDLE or _has_ended(self._connection)):
            self.close()
        self._is_new = not self._connection
        if not self._connection:
            self._connection = self._connect(self._servers[self._at], deadline)
        return self._connection

    def _connect(self, server: SplitResult, deadline: float) -> HTTPConnection:
        """Raises _NotSent, BackendRefused."""
        host, port = server.hostname or "", server.port or (443 if server.scheme == "https" else 80)
        trusted = self._trust() if server.scheme == "https" else None
        secured = tls.context(trusted) if trusted else None
        connection = HTTPConnection(host, port)
        # Otherwise HTTPConnection reconnects by itself, without TLS, and sends the token.
        connection.auto_open = 0
        try:
            connection.sock = _connected_to(addresses(host, deadline), port, deadline)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_DEAF * 1000))
            if trusted and secured:
                connection.sock.settimeout(_left(deadline))
                name = trusted.server_name or host
                connection.sock = secured.wrap_socket(connection.sock, server_hostname=name)
        except (OSError, ValueError) as e:  # ValueError for an invalid host name (encodings.idna, ssl)
            connection.close()
            raise tls.refusal(e, self.server, self._trust) or _NotSent(_words(e)) from e
        return connection


class NotFound(OSError):
    """The name has no address, or its look-up took too long; the message gives the reason."""


def addresses(host: str, deadline: float) -> list[str]:
    """Return the host's addresses, in the order to try.  Raises NotFound.

    getaddrinfo can take half a minute and more without a name server, by /etc/resolv.conf and /etc/nsswitch.conf.  So
    it runs in a thread, and the wait ends at the deadline.
    """
    with suppress(ValueError):
        return [f"{ip_address(host)}"]
    from threading import Thread  # noqa: PLC0415  # rarely needed

    found = list[str | Exception]()
    thread = Thread(target=_look_up, args=(host, found), daemon=True)
    try:
        thread.start()
    except RuntimeError as e:
        raise NotFound(f"the name {host} could not be looked up: {e}; raise the limit of processes (pids)") from e
    thread.join(_left(deadline))
    known = [one for one in found if isinstance(one, str)]
    if not known:
        why = next((f": {getattr(one, 'strerror', None) or one}" for one in found), " in time")
        raise NotFound(f"the name {host} could not be looked up{why}")
    return list(dict.fromkeys(known))


def _look_up(host: str, found: list[str | Exception]) -> None:
    try:
        found += [str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as e:  # ValueError for an invalid host name (encodings.idna)
        found.append(e)


def _connected_to(found: Sequence[str], port: int, deadline: float) -> socket.socket:
    """Return a connection to the first address that accepts one; the addresses share the time.  Raises OSError."""
    for place, address in enumerate(found, start=1):
        try:
            return socket.create_connection((address, port), _left(deadline) / (len(found) - place + 1))
        except OSError:
            if place == len(found):
                raise
    raise OSError("there is no address")


def _send(connection: HTTPConnection, method: str, path: str, data: bytes | None, fields: Mapping[str, str]) -> None:
    """Raises OSError, HTTPException."""
    try:
        connection.request(method, path, data, fields)
    except (ConnectionError, ssl.SSLEOFError):
        # With TLS 1.3 the client sends before the server checked its certificate.  The alert with the reason is unread.
        connection.sock.recv(1)
        raise


def _has_ended(connection: HTTPConnection) -> bool:
    """Whether the server closed the connection, or sent something unrequested."""
    if connection.sock is None:
        return True
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _read(connection: HTTPConnection, deadline: float) -> Answer:
    connection.response_class = partial(_response, deadline)  # type: ignore[assignment]
    with closing(connection.getresponse()) as response:
        body = bytearray()
        while piece := response.read1(_PIECE):
            body += piece
            if len(body) > _MOST:
                raise HTTPException(f"its answer is longer than {_MOST} bytes")
        # read1 reports no error for an end before the announced length.
        if response.length:
            raise HTTPException(f"its answer ended {response.length} bytes too early")
        pause = response.headers.get("Retry-After", "")
        return Answer(
            response.status,
            bytes(body),
            _seconds(response.headers.get("Date", "")),
            float(pause) if pause.isascii() and pause.isdigit() else 0.0,
        )


def _seconds(date: str) -> float:
    """Return a server's date in seconds since 1970; 0 if invalid."""
    with suppress(ValueError, OverflowError):
        if found := parsedate_tz(date):
            return float(mktime_tz(found))
    return 0.0


class _Timed(io.RawIOBase):
    """Reads from a socket until the deadline.  A socket's own timeout begins anew with every byte."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        # This file keeps the socket open if the server ends the connection after this answer.
        self._sock, self._deadline, self._file = sock, deadline, sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        return self._file.readinto(into)

    def close(self) -> None:
        self._file.close()
        super().close()


def _response(deadline: float, sock: socket.socket, *args: Any, **more: Any) -> HTTPResponse:
    response = HTTPResponse(sock, *args, **more)
    response.fp.close()
    response.fp = io.BufferedReader(_Timed(sock, deadline))
    return response


def _left(deadline: float) -> float:
    """Return the seconds until then.  Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
