"""Places of the program without a mark, drawn by chance, to be taken out as guards are."""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guarded import marks, sources, table
from guarded.parts import parts

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

    def taken_out_of(self, text: str) -> str:
        tree = ast.parse(text)
        statement, first, _ = [*marks.statements(tree)][self.statement]
        part = None if self.part is None else parts(statement)[self.part]
        marks.take_out(tree, statement, part, marks.Mark(self.name, first))
        return ast.unparse(ast.fix_missing_locations(tree))


def drawn(number: int, seed: int) -> list[Mutant]:
    texts = sources()
    places = [place for file, text in texts.items() if file.endswith(".py") for place in _places(file, text)]
    return [
        Mutant(file, name, statement, part, _tests(file, texts))
        for file, name, statement, part in random.Random(seed).sample(places, number)
    ]


def _places(file: str, text: str) -> Iterator[tuple[str, str, int, int | None]]:
    tree, marked = ast.parse(text), {mark.line for mark in marks.marks(text)}
    for number, (statement, first, last) in enumerate(marks.statements(tree)):
        if not marked.isdisjoint(range(first, last + 1)) or isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, _WHOLE) and not is_text:
            yield file, f"{first}", number, None
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for at, part in enumerate(parts(statement)):
                yield file, f"{first}:{part.begin[0]}.{part.begin[1]}.{at}", number, at


def _tests(file: str, texts: dict[str, str]) -> tuple[str, ...]:
    """Those of the file's guards; where it has none, those of the guards of what imports it."""
    rows = table()
    if file in rows:
        return _of(rows[file])
    path = Path(file).with_suffix("")
    module = path.parent if path.name == "__init__" else path
    above, own = re.escape(".".join(module.parts[:-1])), re.escape(module.name)
    imported = re.compile(
        rf"^ *(?:from {above}\.{own} import|import {above}\.{own}\b|from {above} import .*\b{own}\b)", re.MULTILINE
    )
    return tuple(
        dict.fromkeys(t for f, text in texts.items() if f in rows and imported.search(text) for t in _of(rows[f]))
    )


def _of(rows: dict) -> tuple[str, ...]:
    listed = [row if isinstance(row, list) else row.get("tests", []) for row in rows.values()]
    return tuple(dict.fromkeys(f"tests/{test}" for row in listed for test in row))
