"""What a peer may send at all, before h2 looks at it: frames of a bounded size, and not too many of them."""

import struct
from typing import Final

FRAME_MOST: Final = 1 << 14  # RFC 9113, 4.2: what every endpoint takes, and we announce no more
HEADERS_MOST: Final = 1 << 14  # bytes of one block of headers, of all its frames
FRAMES_MOST: Final = 20_000  # in one SPAN: ten times what kubelet sends if it starts 200 containers in each second
SPAN: Final = 10.0
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HEAD: Final = struct.Struct(">HBBBI")  # length in 16 + 8 bits, type, flags, stream
_LONG: Final = 1 << 10
_DATA: Final = 0
_HEADERS: Final = 1
_CONTINUATION: Final = 9


class Excess(Exception):
    """The peer sends more than it may; the message says of what."""


class Guard:
    """Follows the frames in a peer's bytes.

    h2 keeps a frame's bytes until all of them are there, and only then sees that it is too long.  It counts neither
    PING nor SETTINGS nor RST_STREAM, each of which costs us more than the peer.
    """

    def __init__(self, skipped: int) -> None:
        """``skipped``: how many bytes come before the first frame."""
        self._skip = skipped
        self._head = bytearray()
        self._block = 0
        self._count, self._since = 0, 0.0

    def admit(self, data: bytes, now: float) -> None:
        """Raises Excess."""
        if now - self._since >= SPAN:
            self._count, self._since = 0, now
        at = 0
        while True:
            step = min(self._skip, len(data) - at)
            at += step
            self._skip -= step
            if at == len(data):
                return
            piece = data[at : at + _HEAD.size - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == _HEAD.size:
                self._skip = self._look(*_HEAD.unpack(self._head))
                self._head.clear()

    def _look(self, high: int, low: int, kind: int, _flags: int, _stream: int) -> int:
        """The length of a frame that may come.  Raises Excess."""
        length = high << 8 | low
        if length > FRAME_MOST:  # guard: a-long-frame
            raise Excess(f"a frame of {length} bytes")
        # Long ones cost the peer as much as us.
        self._count += kind != _DATA or length < _LONG  # guard: long-data-is-free (length)
        if self._count > FRAMES_MOST:  # guard: many-frames
            raise Excess(f"more than {FRAMES_MOST} frames in {SPAN:.0f} s")
        self._block = length if kind == _HEADERS else self._block + length if kind == _CONTINUATION else 0
        if self._block > HEADERS_MOST:  # guard: long-headers
            raise Excess(f"more than {HEADERS_MOST} bytes of headers")
        return length
