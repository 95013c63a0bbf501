"""Spares dataclasses the compiler: it writes the methods of a class as text, which record.py had compiled."""

import dataclasses
from marshal import loads

from recorded_dataclasses import TABLE


def execute(text: str, *where: dict[str, object]) -> None:
    """As exec() has it."""
    found = TABLE.get(text)
    exec(loads(found) if found else text, *where)  # noqa: S102, S302


dataclasses.exec = execute
