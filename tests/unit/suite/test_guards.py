"""Each guard has its line and its tests, and can be removed; only a person does that (tests/harness/guards.py)."""

import ast
import re

import pytest
from guarded import FLOORS, GUARDS, ROOT, Guard, Place, lines, read, sources
from guarded.mutants import Mutant, places

_MARK = re.compile(rb"(#|//|/\*) *guard( below)?:")
_APART = 20  # lines at most between the two of a guard; farther apart they are two guards, removed together


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.title)
def test_it_can_be_taken_out(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text()
    without = guard.taken_out_of(text)
    if guard.is_python:
        # A file that does not compile fails every test, and proves nothing.
        compile(without, guard.file, "exec")
        assert ast.dump(ast.parse(without)) != ast.dump(ast.parse(text))
    else:
        assert without != text
    assert max(guard.lines(text)) - min(guard.lines(text)) <= _APART


@pytest.mark.parametrize("test", sorted({test for guard in GUARDS for test in guard.tests}))
def test_its_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()


def test_each_has_tests() -> None:
    assert [guard.title for guard in GUARDS if not guard.tests] == []


def test_each_has_a_name_of_its_own() -> None:
    titles = [guard.title for guard in GUARDS]
    assert [title for title in titles if titles.count(title) > 1] == []


def test_the_program_does_not_mention_them() -> None:
    """The tables hold the guards, so that a reader of the program meets only the program."""
    assert all(map(_MARK.search, (b"if x:  # guard: a-name", b"/* guard below: a-name */")))
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*") if path.is_file()]
    assert {ROOT / file for file in sources()} <= {*files}
    assert [f"{path}" for path in files if _MARK.search(path.read_bytes())] == []


PYTHON = """\
import os

LIMIT = os.O_RDWR | os.O_EXCL  # why


class Store:
    limit = 1

    @cache
    def put(self, one: str) -> None:
        if "#" in one:  # why
            return
        log(one)

        def put() -> None:
            if "#" in one:
                return
            log(one)
            log(one)

        put()


def put(one: str) -> None:
    if "#" in one:
        return
    if (
        one
        and LIMIT
    ):
        return
"""
C = """\
#define LIMIT 2

/* Takes it. */
static int put(const char *one)
{
    if (!one)  /* why */
        return -1;
    return LIMIT;
}

struct at { int x; };
int next(void)
{
    if (!one)
        return -1;
    return 0;
}
"""


def test_lines_belong_to_the_innermost_function() -> None:
    of = dict(zip(range(1, 99), lines.functions(PYTHON), strict=False))
    assert [of[n] for n in (1, 3, 6, 7, 9, 10, 13, 15, 18, 19, 20, 23)] == [
        "", "", "Store", "Store", "Store.put", "Store.put", "Store.put", "Store.put.put", "Store.put.put",
        "Store.put.put", "Store.put", "",
    ]  # fmt: skip
    assert lines.numbers(PYTHON, "Store.put", 'if "#" in one:') == [11]
    assert lines.numbers(PYTHON, "Store.put.put", 'if "#" in one:') == [16]
    assert lines.numbers(PYTHON, "put", 'if "#" in one:') == [25]
    assert lines.numbers(PYTHON, "Store.put.put", "log(one)") == [18, 19]
    assert lines.numbers(PYTHON, "", "LIMIT = os.O_RDWR | os.O_EXCL") == [3]
    assert lines.numbers(C, "put", "if (!one)", is_python=False) == [6]
    assert lines.numbers(C, "next", "if (!one)", is_python=False) == [14]
    assert lines.numbers(C, "", "#define LIMIT 2", is_python=False) == [1]


@pytest.mark.parametrize(
    ("file", "row", "number", "instead"),
    [
        ("a.py", """Store.put.a = { line = 'if "#" in one:' }""", 11, "if False:"),
        ("a.py", """Store.put.put.a = { line = 'if "#" in one:' }""", 16, "if False:"),
        ("a.py", """put.a = { line = 'if "#" in one:', edit = "= one" }""", 25, "if one:"),
        ("a.py", """Store.put.put.a = { line = "log(one)", nth = 1 }""", 18, "pass"),
        ("a.py", """Store.put.put.a = { line = "log(one)", nth = 2 }""", 19, "pass"),
        ("a.py", """Store.a = { line = "limit = 1", edit = "= 2" }""", 7, "limit = 2"),
        ("a.py", """put.a = { line = "and LIMIT" }""", 29, ""),
        ("a.py", """a = { line = "LIMIT = os.O_RDWR | os.O_EXCL", edit = "(O_EXCL)" }""", 3, "LIMIT = os.O_RDWR"),
        ("a.c", """put.a = { line = "if (!one)" }""", 6, "if (0)  /* why */"),
        ("a.c", """put.a = { line = "return LIMIT;" }""", 8, ";"),
        ("a.c", """next.a = { line = "return 0;", edit = "(0 -> 1)" }""", 16, "return 1;"),
        ("a.c", """a = { line = "#define LIMIT 2", edit = "(2 -> 3)" }""", 1, "#define LIMIT 3"),
    ],
)
def test_a_row_takes_out_its_line(file: str, row: str, number: int, instead: str) -> None:
    guard, text = one_of(file, row), C if file == "a.c" else PYTHON
    assert guard.lines(text) == [number]
    source = text.split("\n")
    source[number - 1] = re.sub(r"\S.*", lambda _: instead, source[number - 1])
    got, wanted = guard.taken_out_of(text), "\n".join(source)
    assert got == wanted if file == "a.c" else ast.dump(ast.parse(got)) == ast.dump(ast.parse(wanted))


@pytest.mark.parametrize(
    ("file", "row", "why"),
    [
        ("a.py", """put.a = { line = "if gone:" }""", "0 lines of put are 'if gone:'"),
        ("a.py", """gone.a = { line = "limit = 1" }""", "0 lines of gone are"),
        ("a.py", """a = { line = "limit = 1" }""", "0 lines of the module are"),
        ("a.py", """Store.put.put.a = { line = "log(one)" }""", "2 lines of Store.put.put are 'log(one)', not one"),
        ("a.py", """Store.put.put.a = { line = "log(one)", nth = 3 }""", "number 3 is wanted"),
        ("a.py", """put.a = { line = "one", and = { line = "if gone:" } }""", "0 lines of put are 'if gone:'"),
        ("a.py", """Store.put.a = { line = "log(one)", edit = "(two)" }""", "0 parts of the statement contain 'two'"),
        ("a.py", """Store.put.a = { line = "log(one)", edit = "(two -> 2)" }""", "'two' is in the statement 0 times"),
        ("a.py", """Store.put.a = { line = "log(one)", edit = "two" }""", "'two' is no edit"),
        ("a.c", """put.a = { line = "if (!gone)" }""", "0 lines of put are"),
        ("a.c", """put.a = { line = "return LIMIT;", edit = "(0 -> 1)" }""", "'0' is in the line 0 times"),
    ],
)
def test_a_row_without_its_line(file: str, row: str, why: str) -> None:
    guard = one_of(file, row)
    with pytest.raises(LookupError) as failure:
        guard.taken_out_of(C if file == "a.c" else PYTHON)
    said = str(failure.value)
    assert why in said
    assert said.startswith(f"{file}: {row.partition(' = ')[0]}: ")
    assert said.endswith("; update this row in tests/harness/guarded, or delete it if the guard has gone")


def test_a_table() -> None:
    table = """\
["cni/a.py"]
tests = ["unit/test_a.py"]
C.f.one = { line = "x()", edit = "= 1", nth = 2, and = { line = "y()" } }
two = { line = "z()", tests = ["unit/test_b.py"], survives = "why" }
"""
    assert [*read(table)] == [
        Guard("cni/a.py", "one", ("tests/unit/test_a.py",), "", "C.f", (Place("x()", "= 1", 2), Place("y()"))),
        Guard("cni/a.py", "two", ("tests/unit/test_b.py",), "why", "", (Place("z()"),)),
    ]


def one_of(file: str, row: str) -> Guard:
    (guard,) = read(f'["{file}"]\n{row}\n')
    return guard


def test_a_mutant_is_a_place_without_a_guard() -> None:
    file = "cni/undo.py"
    text = (ROOT / file).read_text()
    mutants = [Mutant(file, name, (), statement=at, part=part) for _, name, at, part in places(file, text)]
    assert len({mutant.title for mutant in mutants}) == len(mutants) > 100
    guarded = {line for guard in GUARDS if guard.file == file for line in guard.lines(text)}
    assert not guarded & {int(mutant.name.partition(" ")[0].partition(".")[0]) for mutant in mutants}
    whole = ast.dump(ast.parse(text))
    for mutant in mutants:
        without = mutant.taken_out_of(text)
        compile(without, file, "exec")
        assert ast.dump(ast.parse(without)) != whole, mutant.title
