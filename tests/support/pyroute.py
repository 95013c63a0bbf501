"""Encode and decode messages with pyroute2, to verify everything that base/kernel packs by hand."""

import struct
from typing import Any


def plain(message: Any) -> Any:
    """Return pyroute2's attribute lists as plain lists of pairs."""
    return [
        (name, plain(value) if isinstance(value, dict) and "attrs" in value else value)
        for name, value in message["attrs"]
    ]


def decoded(kind: Any, body: bytes) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return the message's fixed fields, and its attributes in order, as pyroute2 reads them."""
    message = kind(struct.pack("=IHHII", 16 + len(body), 0, 0, 1, 0) + body)
    message.decode()
    return {name: message[name] for name, _ in kind.fields if name != "__align"}, plain(message)


def encoded(kind: Any, fields: dict[str, Any], attrs: list[Any]) -> bytes:
    """Return the body as pyroute2 writes it."""
    message = kind()
    message.update(fields)
    message["attrs"] = attrs
    message.encode()
    return bytes(message.data[16:])
