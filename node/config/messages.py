"""Messages for refused configuration files: the place, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from base.protocol.errors import combine
from base.yaml_document import SHOWN, Refused, shown

_MOST: Final = 10  # findings of one object
# The fault of a value and the remedy, by pydantic's type of error.
_TEXTS: Final = {
    "string_type": "is not text; write it in quotes",
    "list_type": "is not a list; write it in [ ]",
    "dict_type": "is not an object; write it in { }",
    "model_type": "is not an object; write it in { }",
    "int_type": "is not a whole number; write digits, without quotes",
    "int_from_float": "is not a whole number; write digits, without quotes",
    "bool_type": "is neither true nor false; write one of them, without quotes",
    "float_type": "is not a number; write digits, without quotes",
    "missing": "is missing; add it",
    "too_short": "is empty; add an entry",
}


def below(path: str, step: str | int) -> str:
    """The path of a member or entry: resourceList[2].selectors."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    key = step if step.isascii() and step.isprintable() and len(step) < SHOWN else shown(step)
    return f"{path}.{key}" if path else key


def meant(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' if one of the known words is similar; else empty."""
    folded = {one.lower(): one for one in known}
    close = get_close_matches(word.lower(), folded, n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def because(error: ValidationError, model: type[BaseModel], path: str) -> Refused:
    """pydantic's findings as one refusal: the first is the message, the others are its notes."""
    findings = error.errors(include_url=False, include_context=True)
    return combine([Refused(_finding(found, model, path)) for found in findings[:_MOST]])


def _finding(found: Any, model: type[BaseModel], path: str) -> str:
    for step in found["loc"]:
        path = below(path, step)
    kind, value = found["type"], "" if found["type"] == "missing" else f" {shown(found['input'])}"
    if kind == "extra_forbidden":
        name = str(found["loc"][-1])
        remedy = meant(name, model.model_fields) or "; correct it, or remove it"
        return f"{path}{value} is not a key that hpn knows{remedy}"
    if kind == "literal_error":
        words = found["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        given = found["input"] if isinstance(found["input"], str) else ""
        return f"{path}{value} is not one of {', '.join(words)}{meant(given, words) or '; write one of them'}"
    if kind in _TEXTS:
        return f"{path}{value} {_TEXTS[kind]}"
    if kind == "value_error":
        return f"{path}{value} {str(found['msg']).removeprefix('Value error, ')}"
    return f"{path}{value}: {str(found['msg']).replace('Input should be', 'it must be')}"
