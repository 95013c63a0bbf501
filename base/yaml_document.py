"""Decode a configuration file, JSON or YAML.

YAML follows version 1.2: 0101, on, off and 0000:03:00.2 are text.  Aliases, tags and a second document are refused.
Aliases could expand a few lines to a billion.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from json import JSONDecodeError
from typing import Any, Final

import yaml

from base.protocol.errors import InvalidConfig

# Deeper than any meaningful file, and far below the limit of Python's stack.
_DEPTH: Final = 32
_TAG: Final = "tag:yaml.org,2002:"
SHOWN: Final = 100  # characters of a value in a message


class BadFile(InvalidConfig):
    """An unusable configuration file.  The message names file, key, value and remedy."""


def shown(value: Any) -> str:
    """The value as JSON on one line, with a long one cut."""
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Document:
    """A file's content, its repeated keys, and a message if it is not UTF-8.  Of a repeated key the last one counts,
    and U+FFFD replaces bytes that are not UTF-8, as in Go."""

    value: Any
    twice: tuple[str, ...] = ()
    broken: str = ""


def parse(data: bytes, *, is_yaml: bool) -> Document:
    """Decode a file.  Raises BadFile, with the line if there is one."""
    text, broken = _text(data)
    if broken and is_yaml:
        raise BadFile(broken)
    if not text.strip():
        raise BadFile("it is empty; conf/devices.yaml is an example")
    try:
        document = Document(_from_yaml(text)) if is_yaml else replace(_from_json(text), broken=broken)
    except RecursionError as e:
        raise _too_deep() from e
    _refuse_depth(document.value)
    return document


def _text(data: bytes) -> tuple[str, str]:
    """The text, and a message if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        why = f"line {line}: it is not UTF-8 (byte 0x{data[e.start]:02x}); save it as UTF-8"
        return data.decode("utf-8-sig", "replace"), why


def _from_json(text: str) -> Document:
    twice = list[str]()

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            twice.extend(name for name in found if times[name] > 1)
        return found

    def constant(name: str) -> Any:
        raise BadFile(f"{name} is not JSON; write a number")

    try:
        return Document(json.loads(text, object_pairs_hook=members, parse_constant=constant), tuple(twice))
    except JSONDecodeError as e:
        raise BadFile(_why_not_json(text, e)) from e
    except ValueError as e:  # a number of thousands of digits
        raise BadFile(f"it has a number that is too long ({e}); shorten it") from e


def _why_not_json(text: str, error: JSONDecodeError) -> str:
    before, after = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    if after.startswith(","):
        before, after = f"{before},", after[1:].lstrip()
    if before.endswith(",") and after[:1] in ("]", "}"):
        comma = text.rindex(",", 0, error.pos + 1)
        return f"line {text.count(chr(10), 0, comma) + 1}: trailing comma before {after[0]}; remove the comma"
    if after[:1] in ("#", "/"):
        return f"line {error.lineno}: JSON has no comments; remove it, or name the file .yaml"
    return f"line {error.lineno}, column {error.colno}: it is not JSON ({error.msg}); correct it"


class _Loader(yaml.SafeLoader):
    """Accepts what JSON has too: text, numbers, true, false, null, lists and objects with text for keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own way to replace them

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise BadFile(f"line {line}: aliases are not supported; write the value out")
        if tag := getattr(event, "tag", None):
            raise BadFile(f"line {line}: the tag {shown(tag)} is not supported; remove it")
        return super().compose_node(parent, index)

    def construct_members(self, node: Any) -> dict[str, Any]:
        found = dict[str, Any]()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise BadFile(f"line {line}: a key must be text; correct it")
            if key.value in found:
                raise BadFile(f"line {line}: the key {shown(key.value)} is repeated; remove one")
            found[key.value] = self.construct_object(value, deep=True)
        return found


_Loader.add_constructor(f"{_TAG}map", _Loader.construct_members)
# YAML 1.1 has more.  There, 0101 is octal, 0000:03:00.2 a number of base 60, and on, off, yes and no are true or false.
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"0|-?[1-9][0-9]*", [*"-0123456789"]),
    ("float", r"-?(0|[1-9][0-9]*)\.[0-9]+", [*"-0123456789"]),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _from_yaml(text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadFile(f"{where}it is not YAML ({e.problem or e.context}); correct it") from e
    except (yaml.YAMLError, ValueError) as e:  # ValueError: a number of thousands of digits
        raise BadFile(f"it is not YAML ({' '.join(str(e).split())}); correct it") from e


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEPTH):
        lists = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [below for one in lists for below in one]
    if level:
        raise _too_deep()


def _too_deep() -> BadFile:
    return BadFile(f"its objects and lists are nested more than {_DEPTH} deep; correct it")
