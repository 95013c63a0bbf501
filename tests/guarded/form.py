"""A guard of the program, and how the tables of guards are written."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """``tests`` are those that should notice, the cheapest first; ``survives`` says why none can."""

    file: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def title(self) -> str:
        return f"{self.file}:{self.name}"

    def taken_out_of(self, text: str) -> str:
        """The file's text without it.  Raises LookupError where it is not there, or more than once."""
        if (number := text.count(self.old)) != 1:
            raise LookupError(f"{self.title}: its text is in the file {number} times, not once; see tests/guarded/")
        return text.replace(self.old, self.new)


def of(file: str, tests: str, *guards: tuple[str, ...]) -> list[Guard]:
    """The guards of a file: name, old text, new text; the tests below tests/ if they differ; why it survives."""
    return [
        Guard(file, name, old, new, _tests(more[0] if more else tests), *more[1:]) for name, old, new, *more in guards
    ]


def _tests(names: str) -> tuple[str, ...]:
    # A test's own name may have spaces in it.
    return tuple(f"tests/{name}" for name in re.split(r" (?=(?:unit|netns|attack|system)/)", names))
