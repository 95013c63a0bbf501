"""The table of tests/guards.py applies to the tree; the guards themselves are taken out by hand only."""

import ast

import pytest
from guarded import GUARDS, Guard
from guards import ROOT


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.title)
def test_it_can_be_taken_out(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text()
    without = guard.taken_out_of(text)
    assert without != text
    if guard.file.endswith(".py"):
        ast.parse(without)  # what no longer compiles would be noticed by everybody, and show nothing


@pytest.mark.parametrize("test", sorted({test for guard in GUARDS for test in guard.tests}))
def test_its_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()


def test_each_has_a_name() -> None:
    titles = [guard.title for guard in GUARDS]
    assert len(set(titles)) == len(titles)
