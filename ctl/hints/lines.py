"""What a program is told by its environment, as lines of a shell, of a file, or of a pod's YAML: pure."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.table import printable


@dataclass(frozen=True)
class Set:
    """A variable that should have the value."""

    name: str
    value: str


@dataclass(frozen=True)
class Unset:
    """A variable that should not be there, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Note:
    """A sentence for people."""

    text: str


Line = Set | Unset | Note

FORMS: Final = ("env", "conf", "yaml")


def write(lines: Sequence[Line], form: str) -> str:
    """The lines in one of FORMS: what a shell reads, KEY=VALUE as /etc/nccl.conf has it, or ``env`` of a container.

    What cannot be printed becomes an escape: a name with a newline in it must not begin a line of its own.
    """
    written = {"env": _env, "conf": _conf, "yaml": _yaml}[form]([_printable(line) for line in lines])
    return "".join(f"{line}\n" for line in written)


def _printable(line: Line) -> Line:
    match line:
        case Set(name, value):
            return Set(name, printable(value))
        case Unset(name, why):
            return Unset(name, printable(why))
        case Note(text):
            return Note(printable(text))


def _env(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        match line:
            case Set(name, value):
                yield f"export {name}={shlex.quote(value) if value else ''}"
            case Unset(name, why):
                yield f"unset {name}  # {why}"
            case Note(text):
                yield f"# {text}"


def _conf(lines: Sequence[Line]) -> Iterator[str]:
    """Such a file takes the rest of a line as it is, and knows a comment only at the beginning of one."""
    for line in lines:
        match line:
            case Set(name, value):
                yield f"{name}={value}"
            case _:
                yield _comment(line)


def _yaml(lines: Sequence[Line]) -> Iterator[str]:
    if any(isinstance(line, Set) for line in lines):
        yield "env:"
    for line in lines:
        match line:
            case Set(name, value):
                yield f"- name: {name}"
                yield f"  value: {json.dumps(value)}"
            case _:
                yield _comment(line)


def _comment(line: Unset | Note) -> str:
    return f"# {line.text}" if isinstance(line, Note) else f"# leave {line.name} out: {line.why}"
