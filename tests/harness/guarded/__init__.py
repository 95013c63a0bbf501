"""The guards of the program: marks.py finds them in the source, and the tables here name the tests that notice each
loss.

A table covers one folder of the program.  In it, a file's ``tests`` apply to all its guards, cheapest first, except
guards with a row of their own; ``survives`` gives the reason why no test can notice.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded import marks

ROOT = Path(__file__).parents[3]
FLOORS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "packaging/launcher")


@dataclass(frozen=True)
class Guard:
    """``tests`` are the tests that should notice, cheapest first; ``survives`` is the reason why no test can."""

    file: str
    name: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def title(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def runs(self) -> list[tuple[str, ...]]:
        """The tests in the groups in which they run, until one notices."""
        return [self.tests]

    def taken_out_of(self, text: str) -> str:
        """The file's text without the guard.  Raises LookupError if the guard cannot be removed."""
        try:
            return marks.without(text, self.name, is_python=self.file.endswith(".py"))
        except LookupError as e:
            raise LookupError(f"{self.file}: {e}; see tests/harness/guarded/marks.py") from e


def sources() -> dict[str, str]:
    """The text of each file of the program."""
    return {
        f"{path.relative_to(ROOT)}": path.read_text()
        for floor in FLOORS
        for path in sorted((ROOT / floor).rglob("*.[cp]*"))
        if path.suffix in (".c", ".py") and not path.stem.endswith("_pb2")
    }


def table() -> dict[str, dict[str, Any]]:
    """For each file and name of a guard: a list of tests below tests/, or a table of ``tests`` and ``survives``."""
    return {
        file: rows
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for file, rows in tomllib.loads(path.read_text()).items()
    }


def _all() -> Iterator[Guard]:
    rows = table()
    for file, text in sources().items():
        for name in dict.fromkeys(mark.name for mark in marks.marks(text)):
            of_file = rows.get(file, {})
            row = of_file.get(name, {})
            row = {"tests": row} if isinstance(row, list) else row
            tests = row.get("tests", of_file.get("tests", []))
            yield Guard(file, name, tuple(f"tests/{test}" for test in tests), row.get("survives", ""))


GUARDS = [*_all()]
