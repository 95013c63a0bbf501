"""gRPC's messages in a stream of bytes: a flag, a length, and that many bytes."""

import struct
from typing import Final

from node.grpc.status import Code, Failed

_PREFIX: Final = struct.Struct(">BI")


def framed(message: bytes) -> bytes:
    """The message as it goes into a stream, not compressed."""
    return _PREFIX.pack(0, len(message)) + message


class Inbox:
    """The one message of a stream that is still coming in; never more than ``most`` bytes of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        """Raises Failed as soon as it cannot become one message that we take."""
        self._data += data
        if len(self._data) < _PREFIX.size:
            return
        flag, length = _PREFIX.unpack_from(self._data)
        if flag:  # guard: compressed
            raise Failed(Code.UNIMPLEMENTED, "compressed messages are not understood here; send them as they are")
        if length > self._most:  # guard: length
            raise Failed(Code.RESOURCE_EXHAUSTED, f"a message of {length} bytes; {self._most} are the most here")
        if len(self._data) > _PREFIX.size + length:  # guard: one-message
            raise Failed(Code.UNIMPLEMENTED, "more than one message in a stream that has one")

    def message(self) -> bytes:
        """The message, when the stream has ended.  Raises Failed if that was too early."""
        if len(self._data) < _PREFIX.size or len(self._data) < _PREFIX.size + _PREFIX.unpack_from(self._data)[1]:
            raise Failed(Code.INTERNAL, "the stream ended before its message was whole")
        return bytes(self._data[_PREFIX.size :])
