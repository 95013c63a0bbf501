"""Messages as pyroute2 writes and reads them: the witness of all that base/kernel packs by hand."""

import struct
from typing import Any


def plain(message: Any) -> Any:
    """pyroute2's attribute lists as lists of pairs and nothing else."""
    return [
        (name, plain(value) if isinstance(value, dict) and "attrs" in value else value)
        for name, value in message["attrs"]
    ]


def decoded(kind: Any, body: bytes) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The message's fixed fields and its attributes in order, as pyroute2 reads them."""
    message = kind(struct.pack("=IHHII", 16 + len(body), 0, 0, 1, 0) + body)
    message.decode()
    return {name: message[name] for name, _ in kind.fields if name != "__align"}, plain(message)


def encoded(kind: Any, fields: dict[str, Any], attrs: list[Any]) -> bytes:
    """The body as pyroute2 writes it."""
    message = kind()
    message.update(fields)
    message["attrs"] = attrs
    message.encode()
    return bytes(message.data[16:])
