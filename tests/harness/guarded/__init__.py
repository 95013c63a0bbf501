"""The guards of the program.  The tables here name their lines and the tests that notice each loss.

A table covers one folder of the program.  A row is named after its guard's function and its guard:

    sweep.sweep-dead = { line = "if is_dead:", edit = "= True", tests = ["netns/test_dead.py"] }

In ``sweep``, without that line or after the edit (edits.py), these tests fail.  Outside of functions a row has only the
guard's name.  ``nth`` counts lines with the same code in one function; ``and`` is a second line of the function, which
goes too.  A file's own ``tests``, cheapest first, apply to its rows without tests; ``survives`` gives the reason why no
test can notice.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded.edits import Place, without

ROOT = Path(__file__).parents[3]
FLOORS = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "packaging/launcher")


@dataclass(frozen=True)
class Guard:
    """``tests`` are the tests that should notice, cheapest first; ``survives`` is the reason why no test can."""

    file: str
    name: str
    tests: tuple[str, ...]
    survives: str = ""
    function: str = ""
    places: tuple[Place, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def runs(self) -> list[tuple[str, ...]]:
        """The tests in the groups in which they run, until one notices."""
        return [self.tests]

    def lines(self, text: str) -> list[int]:
        """The numbers of its lines in the file's text, counted from 1.  Raises LookupError if one is not there."""
        return [place.number(text, self.function, is_python=self.is_python) for place in self.places]

    def taken_out_of(self, text: str) -> str:
        """The file's text without the guard.  Raises LookupError if the guard cannot be removed."""
        try:
            return without(text, self.function, self.places, is_python=self.is_python)
        except LookupError as e:
            row = f"{self.file}: {self.function}.{self.name}".replace(" .", " ")
            raise LookupError(
                f"{row}: {e}; update this row in tests/harness/guarded, or delete it if the guard has gone"
            ) from e


def sources() -> dict[str, str]:
    """The text of each file of the program."""
    return {
        f"{path.relative_to(ROOT)}": path.read_text()
        for floor in FLOORS
        for path in sorted((ROOT / floor).rglob("*.[chp]*"))
        if path.suffix in (".c", ".h", ".py") and not path.stem.endswith("_pb2")
    }


def read(table: str) -> Iterator[Guard]:
    """The guards of a table.  Raises ValueError for what is no table of guards."""
    for file, rows in tomllib.loads(table).items():
        default = rows.pop("tests", [])
        for function, name, row in _rows(rows):
            tests = tuple(f"tests/{test}" for test in row.get("tests", default))
            yield Guard(file, name, tests, row.get("survives", ""), function, tuple(_places(row)))


def _rows(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The function, name and members of each row."""
    for name, one in found.items():
        if not isinstance(one, dict):
            raise ValueError(f"{above}.{name} = {one!r} is no row of a guard")
        if isinstance(one.get("line"), str):
            yield above, name, one
        else:
            yield from _rows(one, f"{above}.{name}".lstrip("."))


def _places(row: dict[str, Any]) -> Iterator[Place]:
    yield Place(row["line"], row.get("edit", ""), row.get("nth", 0))
    if "and" in row:
        yield from _places(row["and"])


GUARDS = [guard for path in sorted(Path(__file__).parent.glob("*.toml")) for guard in read(path.read_text())]
