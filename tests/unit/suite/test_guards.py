"""Each mark of a guard has its tests and can be removed; only a person does that (tests/harness/guards.py)."""

import ast

import pytest
from guarded import GUARDS, ROOT, Guard, marks, sources, table
from guarded.mutants import Mutant, places

_APART = 20  # lines at most between marks of one name; farther apart they are two guards, removed together


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.title)
def test_it_can_be_taken_out(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text()
    without = guard.taken_out_of(text)
    if guard.file.endswith(".py"):
        # A file that does not compile fails every test, and proves nothing.
        compile(without, guard.file, "exec")
        assert ast.dump(ast.parse(without)) != ast.dump(ast.parse(text))
    else:
        assert without != text


@pytest.mark.parametrize("test", sorted({test for guard in GUARDS for test in guard.tests}))
def test_its_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()


def test_each_has_tests() -> None:
    assert [guard.title for guard in GUARDS if not guard.tests] == []


def test_each_row_has_its_mark() -> None:
    marked = {guard.title for guard in GUARDS}
    files = {guard.file for guard in GUARDS}
    rows = table()
    assert [file for file in rows if file not in files] == []
    assert [
        f"{file}:{name}" for file in rows for name in rows[file] if name != "tests" and f"{file}:{name}" not in marked
    ] == []


def test_each_has_a_name_of_its_own() -> None:
    apart = []
    for file, text in sources().items():
        for name in {mark.name for mark in marks.marks(text)}:
            lines = marks.lines(text, name)
            if max(lines) - min(lines) > _APART:
                apart.append(f"{file}:{name}")
    assert apart == []


def test_a_mutant_is_what_has_no_mark() -> None:
    file = "cni/undo.py"
    text = (ROOT / file).read_text()
    mutants = [Mutant(file, name, (), statement=at, part=part) for _, name, at, part in places(file, text)]
    assert len({mutant.title for mutant in mutants}) == len(mutants) > 100
    marked = {mark.line for mark in marks.marks(text)}
    assert not marked & {int(mutant.name.partition(" ")[0].partition(".")[0]) for mutant in mutants}
    whole = ast.dump(ast.parse(text))
    for mutant in mutants:
        without = mutant.taken_out_of(text)
        compile(without, file, "exec")
        assert ast.dump(ast.parse(without)) != whole, mutant.title
