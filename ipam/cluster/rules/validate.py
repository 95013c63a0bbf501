"""What a store answers, looked at before it is believed: what answers at its address may be anybody.  Pure."""

from typing import Final

from base.protocol.spec import Json

# Of a number in a document: JSON's are exact up to here.
MOST: Final = 1 << 53
_SHOWN: Final = 100  # characters of what is strange


def shown(value: object) -> str:
    """What is strange, for a message."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def text(found: Json, key: str) -> str:
    """The text of that key, which can be in a request or a path.  Raises ValueError, which says what it is."""
    value = found.get(key)
    if not isinstance(value, str) or "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
        raise ValueError(f"{key} is {shown(value)}, which is no text")
    return value


def items(body: Json, key: str) -> list[object]:
    value = body.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} is {shown(value)}, which is no list")
    return value


def truth(body: Json, key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}, which is neither true nor false")
    return value


def number(body: Json, key: str, least: int = 0) -> int:
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ValueError(f"{key} is {shown(value)}, which is no number from {least} to {MOST}")
    return value
