"""Places of the program without a mark, drawn by chance, to be taken out as guards are."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded import ROOT, marks, sources, table
from guarded.parts import parts, span

_WHOLE = (
    ast.If, ast.While, ast.With, ast.For, ast.ExceptHandler, ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise,
    ast.Continue, ast.Break, ast.Delete,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A statement, by its number in the file, and a part of it, by its number there; None for all of it."""

    file: str
    name: str
    statement: int
    part: int | None
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def title(self) -> str:
        return f"{self.file}:{self.name}"

    @property
    def runs(self) -> list[tuple[str, ...]]:
        """One by one: all of them may take longer than a run may."""
        return [(test,) for test in self.tests]

    def taken_out_of(self, text: str) -> str:
        tree = ast.parse(text)
        statement, first, _ = [*marks.statements(tree)][self.statement]
        part = None if self.part is None else parts(statement)[self.part]
        marks.take_out(tree, statement, part, marks.Mark(self.name, first))
        return ast.unparse(ast.fix_missing_locations(tree))


def drawn(number: int, seed: int) -> list[Mutant]:
    """Of all files with tests that are known to be theirs."""
    texts = {file: text for file, text in sources().items() if file.endswith(".py")}
    tests = _tests({file: ast.parse(text) for file, text in texts.items()})
    places = [place for file in texts if tests[file] for place in _places(file, texts[file])]
    return [
        Mutant(file, name, statement, part, tests[file])
        for file, name, statement, part in random.Random(seed).sample(places, number)
    ]


def _places(file: str, text: str) -> Iterator[tuple[str, str, int, int | None]]:
    tree, marked, lines = ast.parse(text), {mark.line for mark in marks.marks(text)}, text.split("\n")
    for number, (statement, first, last) in enumerate(marks.statements(tree)):
        if not marked.isdisjoint(range(first, last + 1)) or isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, _WHOLE) and not is_text:
            yield file, f"{first} {lines[first - 1].strip()}", number, None
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            types = [span(statement.annotation)] if isinstance(statement, ast.AnnAssign) else []
            for at, part in enumerate(parts(statement)):
                if any(begin <= part.begin < end for begin, end in types):
                    continue
                (line, begin), (below, end) = part.begin, part.end
                what = lines[line - 1].encode()[begin : end if line == below else None].decode()
                yield file, f"{first}.{at} {what}", number, at


def _tests(trees: dict[str, ast.Module]) -> dict[str, tuple[str, ...]]:
    """By file: the tests of its guards and those that import it; if there are none, those of what imports it."""
    rows, found, imported = table(), {}, {file: _imported(tree) for file, tree in trees.items()}
    importing = {f"{path.relative_to(ROOT)}": _imported(ast.parse(path.read_text())) for path in _unit_tests()}
    for file in trees:
        near, seen = [file], {file}
        while near and not found.get(file):
            own = [test for one in near for test in _of(rows.get(one, {}))]
            own += [test for test, names in importing.items() if any(_module(one) in names for one in near)]
            found[file] = tuple(dict.fromkeys(own))
            near = [one for one in trees if one not in seen and any(_module(n) in imported[one] for n in near)]
            seen.update(near)
    return found


def _unit_tests() -> list[Path]:
    return sorted((ROOT / "tests/unit").glob("test_*.py"))


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> set[str]:
    """The names of all modules that it imports, and of what may be one."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def _of(rows: dict[str, Any]) -> tuple[str, ...]:
    listed = [row if isinstance(row, list) else row.get("tests", []) for row in rows.values()]
    return tuple(dict.fromkeys(f"tests/{test}" for row in listed for test in row))
