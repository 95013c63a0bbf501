"""One HTTP/2 connection over a unix socket, on the loop: what is sent waits for both windows and for the socket.

The memory that it takes is bounded: of each stream it keeps what is on its way and one message more, of the socket
what h2 made for it meanwhile.  A peer that takes nothing for STALLED seconds is dropped.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from node.grpc.guard import HEADERS_MOST, PREFACE, Excess, Guard
from node.listener import receive
from node.loop import Alarm, Loop

Headers = Iterable[tuple[bytes, bytes]]

STALLED: Final = 60.0  # seconds
STREAMS_MOST: Final = 100  # at one time
_AHEAD: Final = 1 << 16  # bytes given to h2 before the socket has taken them
_UNSENT_MOST: Final = 1 << 18  # with all that h2 answers by itself
_UCRED: Final = struct.Struct("=iII")


class _H2(H2Connection):
    # It remembers this many closed streams, 100 bytes each.
    MAX_CLOSED_STREAMS = 1000


@dataclass
class _Outbox:
    """What a stream still has to send: the rest of a message, the message after it, then its trailers or its end."""

    piece: memoryview
    following: bytes | None = None
    trailers: Headers | None = None
    ends: bool = False


class Connection:
    """Tells ``heard`` of h2's events, and ``ended`` once of its end, with a reason if a person should know of it."""

    def __init__(
        self, loop: Loop, sock: socket.socket, *, is_client: bool, heard: Callable[[Event], None],
        ended: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._loop, self._sock, self._heard, self._on_end = loop, sock, heard, ended
        self._h2 = _new(is_client=is_client)
        self._guard = Guard(0 if is_client else len(PREFACE))
        self._outboxes = dict[int, _Outbox]()
        self._unsent = bytearray()
        self._progress = time.monotonic()
        self._watching_over: Alarm | None = None
        self._wants_writable = False
        self.is_open = True

    def start(self) -> None:
        """Begin to speak and to hear.  It may end at once."""
        self._h2.initiate_connection()
        self._loop.watch(self._sock.fileno(), self._read)
        self.flush()

    def next_stream(self) -> int:
        return int(self._h2.get_next_available_stream_id())

    def send_headers(self, stream: int, headers: Headers, *, ends: bool = False) -> None:
        with suppress(H2Error):  # the peer has closed the stream meanwhile
            self._h2.send_headers(stream, list(headers), end_stream=ends)

    def send_data(self, stream: int, data: bytes) -> None:
        """Send it after what the stream has begun to send, instead of what it has not begun to send."""
        box = self._outboxes.setdefault(stream, _Outbox(memoryview(b"")))
        if box.piece:
            box.following = data  # guard: the-newest-only = (box.following or b'') + data
        else:
            box.piece = memoryview(data)

    def finish(self, stream: int, trailers: Headers | None = None) -> None:
        """End the stream after all that."""
        box = self._outboxes.setdefault(stream, _Outbox(memoryview(b"")))
        box.trailers, box.ends = trailers, True

    def reset(self, stream: int, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        self._outboxes.pop(stream, None)
        with suppress(H2Error):
            self._h2.reset_stream(stream, code)

    def flush(self) -> None:
        """Send what the windows and the socket allow; the loop goes on with the rest."""
        if not self.is_open:
            return
        try:
            while self._fill() and self._write():
                pass
        except OSError:
            self.end()
            return
        if len(self._unsent) > _UNSENT_MOST:  # guard: unread-answers
            self.end("it asks for answers and does not read them")
            return
        self._watch(for_writable=bool(self._unsent))
        if (self._unsent or self._outboxes) and not self._watching_over:
            self._progress = time.monotonic()
            self._watching_over = self._loop.after(STALLED, self._look_after)

    def end(self, reason: str = "") -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._outboxes.clear()
        self._unsent.clear()
        if self._watching_over:
            self._watching_over.cancel()
        told, self._on_end, self._heard = self._on_end, _deaf, _deaf
        told(reason)

    def terminate(self) -> None:
        """Say goodbye to the peer, and end."""
        with suppress(H2Error):
            self._h2.close_connection()
        self.flush()
        self.end()

    def _read(self) -> None:
        data = receive(self._sock)
        if data is None:
            return
        if not data:
            self.end()
            return
        try:
            self._guard.admit(data, time.monotonic())
            events = self._h2.receive_data(data)
        except Excess as e:
            self.end(f"it sends {e}")
            return
        except Exception as e:  # noqa: BLE001  # also what h2 did not think of: one peer's bytes must not end the rest
            self.flush()  # h2 has made a GOAWAY
            self.end(f"it does not speak HTTP/2 ({type(e).__name__})")
            return
        for event in events:
            self._take(event)
        self.flush()

    def _take(self, event: Event) -> None:
        if not self.is_open:
            return
        if isinstance(event, StreamReset):
            self._outboxes.pop(event.stream_id, None)
        self._heard(event)
        if isinstance(event, DataReceived) and event.flow_controlled_length:
            with suppress(H2Error):
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if isinstance(event, ConnectionTerminated):
            self.end()

    def _fill(self) -> bool:
        """Let h2 make frames of what the windows allow; whether there is anything for the socket."""
        for stream, box in list(self._outboxes.items()):
            try:
                self._advance(stream, box)
            except H2Error:  # the stream, or the connection, is closed
                self._outboxes.pop(stream, None)
            self._unsent += self._h2.data_to_send()
        self._unsent += self._h2.data_to_send()
        return bool(self._unsent)

    def _advance(self, stream: int, box: _Outbox) -> None:
        room = _AHEAD - len(self._unsent)  # guard: not-too-far-ahead = 1 << 40
        while box.piece or box.following:
            if not box.piece:
                box.piece, box.following = memoryview(box.following or b""), None
            window = self._h2.local_flow_control_window(stream)
            size = min(len(box.piece), window, self._h2.max_outbound_frame_size, room)
            if size <= 0:
                return
            self._h2.send_data(stream, bytes(box.piece[:size]))
            box.piece = box.piece[size:]
            room -= size
            self._progress = time.monotonic()
        if box.trailers is not None:
            self._h2.send_headers(stream, list(box.trailers), end_stream=True)
        elif box.ends:
            self._h2.end_stream(stream)
        del self._outboxes[stream]

    def _write(self) -> bool:
        """Whether the socket took all."""
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return False
        del self._unsent[:sent]
        if not self._outboxes:
            self._progress = time.monotonic()
        return not self._unsent

    def _watch(self, *, for_writable: bool) -> None:
        if for_writable != self._wants_writable:
            self._wants_writable = for_writable
            self._loop.watch(self._sock.fileno(), self._read, self.flush if for_writable else None)

    def _look_after(self) -> None:
        """Only one alarm at a time, however often a peer makes us wait and go on."""
        self._watching_over = None
        if not self._unsent and not self._outboxes:
            return
        left = self._progress + STALLED - time.monotonic()
        if left <= 0:  # guard: stalled
            self.end(f"it took nothing for {STALLED:.0f} s")
        else:
            self._watching_over = self._loop.after(left, self._look_after)


def _deaf(_: object) -> None:
    """In the place of who was told of a connection, which would keep it, and be kept by it, after its end."""


def uid_of(sock: socket.socket) -> int:
    """The user that the peer was when it connected, or listened.  Raises OSError."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


def _new(*, is_client: bool) -> H2Connection:
    # Inbound headers are not validated: older kubelets send an :authority that is none.
    config = H2Configuration(
        client_side=is_client, header_encoding=None, validate_inbound_headers=False, validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )  # fmt: skip
    made = _H2(config)
    bounds = {SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MOST, SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_MOST}
    made.local_settings = Settings(client=is_client, initial_values=bounds)
    made.decoder.max_header_list_size = HEADERS_MOST
    return made
