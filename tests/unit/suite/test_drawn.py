"""A run draws a tenth of the cases; ten runs on ten consecutive days draw everything."""

import itertools
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import drawn
import pytest

DAYS = [f"{date(2026, 12, 28) + timedelta(n)}" for n in range(10)]
SIZES = range(1, 501)


def on(monkeypatch: pytest.MonkeyPatch, value: str, test: str = "tests/x.py::test_y (call)") -> None:
    monkeypatch.setenv(drawn.VARIABLE, value)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", test)


def test_ten_days_draw_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten days draw every step of any number, unknown beforehand; each day draws the first step and few others."""
    of_days = []
    for day in DAYS:
        on(monkeypatch, day)
        of_days.append(list(itertools.takewhile(lambda step: step < max(SIZES), drawn.steps())))
    for size in SIZES:
        lists = [[step for step in of_one if step < size] for of_one in of_days]
        assert set().union(*lists) == set(range(size)), size
        assert all(0 in steps and len(steps) <= 2 + size // 10 for steps in lists), size


@pytest.mark.parametrize("family", ["one", "another"])
def test_ten_days_draw_each_case(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    for size in SIZES:
        lists = []
        for day in DAYS:
            on(monkeypatch, day)
            lists.append(drawn.share(range(size), family))
        assert set().union(*lists) == set(range(size)), size
        assert {len(cases) for cases in lists} <= {max(1, size // 10), -(-size // 10)}, size


def test_tests_draw_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests draw different steps, so on most days some of them draw a boundary that many share."""
    of_tests = set[tuple[int, ...]]()
    for number in range(20):
        on(monkeypatch, DAYS[0], f"tests/x.py::test_y[{number} and more] (call)")
        of_tests.add(tuple(itertools.islice(drawn.steps(1), 5)))
    assert len(of_tests) == 20
    assert {steps[0] for steps in of_tests} == {1}


def test_all(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, f"{DAYS[0]},all")
    assert list(itertools.islice(drawn.steps(1), 99)) == list(range(1, 100))
    assert drawn.share("abc", "family") == ["a", "b", "c"]
    assert (drawn.count(200, "cuts"), drawn.seed()) == (200, date.fromisoformat(DAYS[0]).toordinal())


def test_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, DAYS[0])
    assert [drawn.count(whole, "cuts") for whole in (1, 9, 10, 200)] == [1, 1, 1, 20]
    before = drawn.turn()
    on(monkeypatch, f"{date.fromisoformat(DAYS[0]) + timedelta(10)}")
    assert drawn.turn() == before + 1


@pytest.mark.parametrize("value", [None, "", "all"])
def test_a_run_keeps_its_day(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """A run passes its day to the processes that it starts."""
    monkeypatch.delenv(drawn.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(drawn.VARIABLE, value)
    found = drawn.draw()
    assert found.everything == (value == "all")
    assert os.environ[drawn.VARIABLE] == str(found)
    assert str(found).startswith(f"{found.day}")


def test_pytest_shows_it(tmp_path: Path) -> None:
    """pytest prints the day in its first lines, and again at a failed test."""
    root = Path(__file__).parents[3]
    (tmp_path / "test_it.py").write_text("def test_it() -> None:\n    assert False\n")
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", root / "pyproject.toml"]
    argv += ["--rootdir", root, "-p", "conftest", tmp_path / "test_it.py"]
    path = ":".join(str(root / folder) for folder in (".", "tests", "tests/harness"))
    environ = {**os.environ, "PYTHONPATH": path, drawn.VARIABLE: DAYS[0]}
    said = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ).stdout.splitlines()
    (first, last) = [number for number, line in enumerate(said) if f"HPN_DRAW={DAYS[0]}" in line]
    failures = next(number for number, line in enumerate(said) if "FAILURES" in line)
    assert first < failures < last


def test_an_unknown_word(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "tomorrow")
    with pytest.raises(ValueError, match="tomorrow"):
        drawn.draw()
