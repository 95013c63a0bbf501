"""The soak: its parts, and the page with the last result."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from covered import Tree
from guarded import FLOORS
from sitting import Note, Part

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


def note(title: str, status: int = 0, draw: str = "2026-11-24,all", **counts: int) -> Note:
    return Note(title, "d" * 64, draw, "2026-11-25T01:02:03Z", 90, status, counts)


def test_what_is_too_old(tmp_path: Path) -> None:
    page, released = tmp_path / "page", "# Changelog\n\n## Unreleased\n\n## 1.0.0 ({})\n\n## 0.1.0 (2026-01-01)\n"
    page.write_text(f"# Soak\n\n{soak.BEGIN}None.\n{soak.END}\nmore\n")
    assert "(none) is older than 1.0.0 of 2026-11-25" in too_old(released.format("2026-11-25"), page.read_text())
    soak.write([note("netns: x", kills=12, tests=3), note("netns: y", kills=1_000)], "c" * 40, page)
    assert too_old(released.format("2026-11-25"), page.read_text()) == ""
    assert "is older than 1.0.0 of 2026-11-26" in too_old(released.format("2026-11-26"), page.read_text())
    assert "1.0.0 says no day" in too_old(released.format("soon"), page.read_text())
    assert "1.0.0 of 2026-11-26" in too_old("# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-11-26\n", "")
    assert too_old("# Changelog\n\n## [Unreleased]\n", "") == ""


def test_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(f"# Soak\n\n{soak.BEGIN}None.\n{soak.END}\nmore\n")
    noted = [
        note("netns: x", kills=12, tests=3),
        note("netns: y", 1),
        note("netns: y", 0, "2026-12-03,all", kills=1_000),
    ]
    for _ in range(2):
        soak.write(noted, "c" * 40, page)
    text = page.read_text()
    days = "every case by the days 2026-11-24 to 2026-12-03."
    assert f"Commit cccccccccccc, from 2026-11-25 to 2026-11-25, {days}" in text
    assert "| netns | 2 | 1,012 kills, 3 tests | 1 | 4 min |" in text
    assert (text.count("| netns |"), text[:6], text[-5:]) == (1, "# Soak", "more\n")


@pytest.fixture(scope="module")
def found() -> list[Part]:
    return [*soak.parts(Tree(soak.ROOT))]


def test_all_that_draws_has_a_part(found: list[Part]) -> None:
    """Each test that draws has a part; each part has its own title and names existing files."""
    titles = {part.title for part in found}
    assert len(titles) == len(found)
    assert {"netns: test_transaction", "netns: test_user_namespaces", "lab: kills", "system: test_long_life"} <= titles
    assert sum(part.tier == "histories" for part in found) == len({part.later for part in found}) == 50
    assert {part.every for part in found} == {True}
    named = {test for part in found if (test := part.words[-1].partition("::")[0])}
    assert [name for name in named if not (soak.ROOT / name).exists()] == []
    drawing = {path for path in (soak.ROOT / "tests").rglob("test_*.py") if "drawn.steps()" in path.read_text()}
    booted = {test for _, tests in soak.BOOTS.values() for test in tests}
    of_draws = {f"tests/unit/suite/test_{name}.py" for name in ("drawn", "sitting", "soak")}
    assert {f"{path.relative_to(soak.ROOT)}" for path in drawing} <= named | booted | of_draws
    assert {part.name for part in found if part.tier == "guards"} == {guard.file for guard in soak.GUARDS}


def test_what_parts_cover(found: list[Part]) -> None:
    """Each part covers its own file; a binary has the whole program, a guard only its file."""
    covers = {part.title: part.covers for part in found}
    assert {part.title for part in found if part.words[-1].partition("::")[0] not in part.covers} == set()
    assert "cni/kinds/child.py" in covers["netns: test_transaction"]
    assert "node/main.py" not in covers["netns: test_transaction"]
    for title in ("system: test_random", "histories: 7", "lab: kills", "cluster: test_chaos"):
        assert {"ctl/main.py", "packaging/hpn.spec", "netns-fixtures/setup", "Makefile"} <= covers[title]
        assert not {"CHANGELOG.md", "README.md", "bench/bench.py"} & covers[title]
    guards = covers["guards: cni/undo.py"]
    assert {"tests/netns/test_transaction.py", "tests/netns/conftest.py", "tests/harness/guards.py"} <= guards
    assert [path for path in guards if path.startswith(FLOORS)] == ["cni/undo.py"]
    assert "tests/lab/infiniband/test_vf.py" in covers["lab: InfiniBand"] - covers["lab: VFs"]


def test_what_a_guards_part_depends_on() -> None:
    """Each field of a guard's row counts, and no other file's row."""
    tree = Tree(soak.ROOT)
    guard = next(guard for guard in soak.GUARDS if guard.file == "cni/undo.py")
    fields = {"tests": ("tests/test_keys.py",), "survives": "no test can", "function": "another", "places": ()}
    assert {"file", "name", *fields} == {field.name for field in dataclasses.fields(guard)}
    others = [dataclasses.replace(guard, **{name: value}) for name, value in fields.items()]
    digests = set()
    for one in (guard, *others):
        part = soak.of_guards(tree, one.file, [one])
        digests.add(tree.digest(part.covers, *part.words, part.about))
    assert len(digests) == len(fields) + 1


def test_it_is_a_program(tmp_path: Path) -> None:
    argv = [sys.executable, soak.__file__, "--help"]
    shown = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, "soak.jsonl" in shown.stdout) == (0, True), shown.stderr


def test_the_page_names_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed tree is refused when its commit is to be written."""
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    for words in (("init", "-q"), commit):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert len(soak.checkout()) == 40
    (tmp_path / "new").touch()
    with pytest.raises(SystemExit, match="the tree differs from it: "):
        soak.checkout()
