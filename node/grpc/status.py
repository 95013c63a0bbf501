"""How a call ended: gRPC's status codes, and the message beside one."""

import re
from enum import IntEnum
from typing import Final

_LONGEST: Final = 1000  # bytes of a message: peers refuse long headers


class Code(IntEnum):
    """Those that we send or act upon (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Failed(Exception):
    """A call that has no answer.  A method raises it to choose what its peer is told.  ``code`` may be one that
    ``Code`` does not have."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def encode(message: str) -> bytes:
    """The header grpc-message: percent-encoded, of printable ASCII, and not too long for a header."""
    encoded = b"".join(_escape(byte) for byte in message.encode(errors="replace"))[:_LONGEST]
    return re.sub(rb"%.?$", b"", encoded)


def decode(header: bytes) -> str:
    """What a peer's grpc-message says, on one line."""
    plain = re.sub(rb"%([0-9a-fA-F]{2})", lambda found: bytes.fromhex(found[1].decode()), header)
    return " ".join(plain.decode(errors="replace").split())


def _escape(byte: int) -> bytes:
    return b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
