"""What a store answers, looked at before it is believed: what answers at its address may be anybody.  Pure."""

from typing import Final

from cni.protocol.spec import Json

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
