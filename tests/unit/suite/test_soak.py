"""The soak: its parts, its continuation after an interrupt, and the page with the last result."""

import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from threading import Thread

import pytest
import soak
from support.topology import until

DAY = date(2026, 11, 24)
RELEASED = re.compile(r"^## \[?(\d+\.\d+\.\d+)(.*)$", re.MULTILINE)
SOAKED = re.compile(r"^Commit [0-9a-f]{12}, from \S+ to (\d{4}-\d\d-\d\d), every case", re.MULTILINE)


def too_old(changelog: str, page: str) -> str:
    """Return why the last whole soak is too old; empty before the first release."""
    released, soaked = RELEASED.search(changelog), SOAKED.search(page)
    if not released:
        return ""
    days = re.findall(r"\d{4}-\d\d-\d\d", released[2])
    if not days:
        return f"{released[1]} says no day of its release, as 2026-11-24"
    if not soaked or soaked[1] < days[0]:
        return f"the last whole soak ({soaked[1] if soaked else 'none'}) is older than {released[1]} of {days[0]}"
    return ""


def test_the_last_soak_is_not_older_than_the_last_release() -> None:
    assert too_old((soak.ROOT / "CHANGELOG.md").read_text(), soak.PAGE.read_text()) == ""


def note(title: str, status: int = 0, **counts: int) -> soak.Note:
    return soak.Note("c" * 40, f"{DAY}", title, "2026-11-25T01:02:03Z", 90, status, counts)


def test_what_is_too_old(tmp_path: Path) -> None:
    page, released = tmp_path / "page", "# Changelog\n\n## Unreleased\n\n## 1.0.0 ({})\n\n## 0.1.0 (2026-01-01)\n"
    page.write_text(f"# Soak\n\n{soak.BEGIN}None.\n{soak.END}\nmore\n")
    assert "(none) is older than 1.0.0 of 2026-11-25" in too_old(released.format("2026-11-25"), page.read_text())
    soak.write([note("netns: x", kills=12, tests=3), note("netns: y", 1), note("netns: y", kills=1_000)], page)
    assert too_old(released.format("2026-11-25"), page.read_text()) == ""
    assert "is older than 1.0.0 of 2026-11-26" in too_old(released.format("2026-11-26"), page.read_text())
    assert "1.0.0 says no day" in too_old(released.format("soon"), page.read_text())
    assert "1.0.0 of 2026-11-26" in too_old("# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-11-26\n", "")
    assert too_old("# Changelog\n\n## [Unreleased]\n", "") == ""


def test_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(f"# Soak\n\n{soak.BEGIN}None.\n{soak.END}\nmore\n")
    for _ in range(2):
        soak.write([note("netns: x", kills=12, tests=3), note("netns: y", 1), note("netns: y", kills=1_000)], page)
    text = page.read_text()
    assert "Commit cccccccccccc, from 2026-11-25 to 2026-11-25, every case by the day 2026-11-24." in text
    assert "| netns | 2 | 1,012 kills, 3 tests | 1 | 4 min |" in text
    assert (text.count("| netns |"), text[:6], text[-5:]) == (1, "# Soak", "more\n")


def test_all_that_draws_has_a_part() -> None:
    """Each test that draws has a part; each part has its own title and names existing files."""
    found = list(soak.parts(DAY))
    titles = {part.title for part in found}
    assert len(titles) == len(found)
    assert {"netns: test_transaction", "netns: test_user_namespaces", "lab: kills", "system: test_long_life"} <= titles
    assert sum(part.tier == "histories" for part in found) == len({part.draw for part in found}) == 50
    assert {part.draw.partition(",")[2] for part in found} == {"all"}
    named = {word.partition("::")[0] for part in found for word in part.words}
    assert [name for name in named if not (soak.ROOT / name).exists()] == []
    drawing = {path for path in (soak.ROOT / "tests").rglob("test_*.py") if "drawn.steps()" in path.read_text()}
    booted = {test for _, tests in soak.BOOTS.values() for test in tests}
    others = {"tests/unit/suite/test_drawn.py", "tests/unit/suite/test_soak.py"}
    assert {f"{path.relative_to(soak.ROOT)}" for path in drawing} <= named | booted | others


def test_it_is_a_program(tmp_path: Path) -> None:
    argv = [sys.executable, soak.__file__, "--help"]
    shown = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, "build/soak.jsonl" in shown.stdout) == (0, True), shown.stderr


def python(title: str, code: str) -> soak.Part:
    """Return a part that runs this code; a part of guards may be any program."""
    return soak.Part("guards", title, ("-c", code), f"{DAY},all")


def test_an_interrupt_and_what_is_missing_then(tmp_path: Path) -> None:
    file, begun = tmp_path / "soak.jsonl", tmp_path / "begun"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    todo = [
        python("passes", "import os; print('  1 s  x'); assert os.environ['HPN_DRAW'] == '2026-11-24,all'"),
        python("fails", "raise SystemExit(3)"),
        python("lasts", f"open({str(begun)!r}, 'w').close(); {child}"),
        python("is not begun", "raise SystemExit('it was')"),
    ]
    one = soak.Soak("c" * 40, DAY, file)
    lane = Thread(target=one.lane, args=(todo,))
    lane.start()
    until(begun.exists, seconds=60)
    one.end()
    lane.join(60)
    assert not lane.is_alive()
    with file.open("a") as half:
        half.write('{"commit": "cc')
    noted = soak.notes(file, "c" * 40)
    assert [(it.title, it.status, it.counts) for it in noted] == [
        ("guards: passes", 0, {"guards": 1}), ("guards: fails", 3, {"guards": 0})
    ]  # fmt: skip
    assert [part.name for part in soak.missing(todo, noted)] == ["fails", "lasts", "is not begun"]
    assert soak.notes(file, "d" * 40) == []


def test_what_a_part_took(tmp_path: Path) -> None:
    """The counts of a part come from the tests' own report."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import drawn\n\ndef test_it():\n    for step in drawn.steps():\n        if step == 30:\n            break\n"
        "\ndef test_fails():\n    drawn.count(7, 'damages')\n    raise SystemExit(1)\n"
    )
    options = ("-c", f"{soak.ROOT}/pyproject.toml", f"--rootdir={soak.ROOT}", "-p", "conftest", f"{test}")
    file = tmp_path / "soak.jsonl"
    soak.Soak("c" * 40, DAY, file).lane([soak.Part("unit", "it", options, f"{DAY},all")])
    (found,) = soak.notes(file, "c" * 40)
    assert (found.status, found.counts) == (1, {"tests": 2, "failed": 1, "kills": 30, "damages": 7})


def test_only_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed tree is refused, because a note in the file must belong to a commit."""
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    for words in (("init", "-q"), commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert len(soak.checkout()) == 40
    (tmp_path / "new").touch()
    with pytest.raises(SystemExit, match="the tree differs from it: "):
        soak.checkout()
