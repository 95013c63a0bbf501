"""The control connection: messages of JSON over a socket, which only the holder of the token can write.

Both ends send a nonce, and derive the connection's key from these and the token, which is never sent.  Each message has
a code (HMAC-SHA256) over its direction, its number and its text.  So nothing can be forged, repeated, reordered or sent
back, and a wrong token is refused with the first message.  The texts are not secret: device names and measured values.
"""

import hmac
import json
import secrets
import socket
from contextlib import ExitStack
from typing import Final

from base.protocol.errors import DecodeFailure, IoFailure
from base.protocol.spec import Json

MAGIC: Final = b"hpn fabric 1\n"
NONCE: Final = 16
GREETING: Final = len(MAGIC) + NONCE  # octets that begin each direction
_LENGTH: Final = 4
_CODE: Final = 32
_HEADER: Final = _LENGTH + _CODE
MOST: Final = 1 << 20  # octets of a message
FIRST_MOST: Final = 256  # octets of a client's first message, before it has proved anything


def new_token() -> str:
    """128 random bits, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def greeting() -> bytes:
    return MAGIC + secrets.token_bytes(NONCE)


class Ended(IoFailure):
    """The connection has ended, or its messages are not those of the token's holder."""


class Codec:
    """The codes of one connection, by its key.  ``is_client`` is true for the end that connected."""

    def __init__(self, token: str, client: bytes, server: bytes, *, is_client: bool) -> None:
        self._key = hmac.digest(token.encode(), client + server, "sha256")
        self._directions = (b">", b"<") if is_client else (b"<", b">")
        self._sent, self._received = 0, 0

    def packed(self, body: Json) -> bytes:
        """The next message as octets."""
        text = json.dumps(body, separators=(",", ":")).encode()
        code = self._code(self._directions[0], self._sent, text)
        self._sent += 1
        return len(text).to_bytes(_LENGTH, "big") + code + text

    def opened(self, code: bytes, text: bytes) -> Json:
        """The next message.  Raises Ended if its code is wrong, DecodeFailure if it is not a JSON object."""
        if not hmac.compare_digest(code, self._code(self._directions[1], self._received, text)):
            raise Ended("the token is wrong, or the connection was tampered with")
        self._received += 1
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise DecodeFailure(f"a message is not JSON: {e}") from e
        if not isinstance(body, dict):
            raise DecodeFailure("a message is not an object")
        return body

    def _code(self, direction: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "big") + text, "sha256")


class Channel:
    """An open connection, whose ends know the same token.  ``most``: the octets of a message from the other end."""

    def __init__(self, sock: socket.socket, codec: Codec, most: int = MOST) -> None:
        sock.settimeout(0.0)
        self.sock, self.most, self._codec, self._data = sock, most, codec, bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, body: Json, seconds: float = 30.0) -> None:
        """Send a message.  Raises Ended."""
        try:
            self.sock.settimeout(seconds)
            self.sock.sendall(self._codec.packed(body))
        except TimeoutError:
            raise Ended(f"the other end took no data for {seconds:g} s") from None
        except OSError as e:
            raise Ended(f"the connection ended: {e.strerror}") from e
        finally:
            self.sock.settimeout(0.0)

    def take(self) -> Json | None:
        """A message if it has arrived whole; None if not.  Raises Ended, DecodeFailure."""
        while (body := self._opened()) is None:
            try:
                more = self.sock.recv(min(_HEADER + self.most, 65536))
            except BlockingIOError:
                return None
            except OSError as e:
                raise Ended(f"the connection ended: {e.strerror}") from e
            if not more:
                raise Ended("the other end closed the connection")
            self._data += more
        return body

    def close(self) -> None:
        self.sock.close()

    def _opened(self) -> Json | None:
        if len(self._data) < _HEADER:
            return None
        length = int.from_bytes(self._data[:_LENGTH], "big")
        if length > self.most:
            raise Ended(f"a message of {length} octets, the most is {self.most}")
        end = _HEADER + length
        if len(self._data) < end:
            return None
        code, text = bytes(self._data[_LENGTH:_HEADER]), bytes(self._data[_HEADER:end])
        del self._data[:end]
        return self._codec.opened(code, text)


def connect(address: tuple[str, int], token: str, first: Json, seconds: float) -> Channel:
    """Connect to a serving host, and send the first message.  That proves the token at once, because the host drops
    connections that do not.  Raises Ended."""
    try:
        sock = socket.create_connection(address, seconds)
    except OSError as e:
        raise Ended(f"no connection to {address[0]} port {address[1]}: {e.strerror or e}") from e
    with ExitStack() as undo:
        undo.callback(sock.close)
        ours = greeting()
        try:
            sock.sendall(ours)
            theirs = sock.recv(GREETING, socket.MSG_WAITALL)
            keep_alive(sock)
        except OSError as e:
            raise Ended(f"no greeting: {e.strerror or e}") from e
        if len(theirs) != GREETING or not theirs.startswith(MAGIC):
            raise Ended("what answers there is not hpn fabric serve of this version, or it is busy")
        made = Channel(sock, Codec(token, ours, theirs, is_client=True))
        made.send(first, seconds)
        undo.pop_all()
    return made


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice within a minute that the other host is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
