"""Random places of the program without a guard, removed as guards are."""

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import reach

from guarded import GUARDS, ROOT, Guard, edits, sources
from guarded.parts import parts, span

_WHOLE = (
    ast.If, ast.While, ast.With, ast.For, ast.ExceptHandler, ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise,
    ast.Continue, ast.Break, ast.Delete,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant(Guard):
    """A statement and a part of it, each by its number; the part is None for the whole statement."""

    statement: int
    part: int | None

    @property
    def runs(self) -> list[tuple[str, ...]]:
        """One test file per run: all together may exceed the time of a run."""
        return [(test,) for test in self.tests]

    def taken_out_of(self, text: str) -> str:
        tree = ast.parse(text)
        statement = [*edits.statements(tree)][self.statement][0]
        part = None if self.part is None else parts(statement)[self.part]
        edits.take_out(tree, statement, part, edits.Place(""))
        return ast.unparse(ast.fix_missing_locations(tree))


def drawn(number: int, seed: int) -> list[Mutant]:
    """Random mutants from all files that have known tests."""
    texts = {file: text for file, text in sources().items() if file.endswith(".py")}
    tests = _tests(texts)
    population = [place for file in texts if tests[file] for place in places(file, texts[file])]
    return [
        Mutant(file, name, tests[file], statement=statement, part=part)
        for file, name, statement, part in random.Random(seed).sample(population, number)
    ]


def places(file: str, text: str) -> Iterator[tuple[str, str, int, int | None]]:
    """The removable places of a file in statements without a guard, as Mutant's file, name, statement and part."""
    tree, lines = ast.parse(text), text.split("\n")
    guarded = {line for guard in GUARDS if guard.file == file for line in guard.lines(text)}
    for number, (statement, first, last) in enumerate(edits.statements(tree)):
        if not guarded.isdisjoint(range(first, last + 1)) or isinstance(statement, ast.Import | ast.ImportFrom):
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


def _tests(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """For each file: the tests of its guards and the unit tests that use it; without any, the tests of its users."""
    named, found = dict[str, list[str]](), {}
    for guard in GUARDS:
        named.setdefault(guard.file, []).extend(guard.tests)
    uses = reach.graph(ROOT, reach.listed(ROOT))
    for file in files:
        far = reach.distances(uses, [file])
        for near in range(1, max(far.values()) + 2):
            own = [test for one, at in far.items() if at == near - 1 for test in named.get(one, ())]
            own += [one for one, at in sorted(far.items()) if at == near and is_of_unit(one)]
            found[file] = tuple(dict.fromkeys(own))
            if own:
                break
    return found


def is_of_unit(path: str) -> bool:
    return path.startswith("tests/unit/") and reach.is_test(path)
