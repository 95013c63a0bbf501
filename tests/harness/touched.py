"""The tests that a change touches, in the order of their value for their time.

packaging/venv python tests/harness/touched.py REPORT    # write seconds.txt from the report of make test JUNIT=REPORT
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from xml.etree import ElementTree as ET

import reach
import reported
from guarded import GUARDS, Guard, lines, read
from side_by_side import BOOTING

ROOT = Path(__file__).parents[2]
LINT = "tests/test_lint.py"
# Tests of the whole tree; each takes a second or less except the linters.
ALWAYS = (
    *(p for at in sorted(ROOT.glob("tests/test_*.py")) if (p := f"tests/{at.name}") not in (*BOOTING, LINT)),
    *(f"tests/unit/suite/test_{name}.py" for name in ("guards", "documented")),
)
# The tiers that run here.  Tests that need the binary, the lab or the cluster are only named.
HERE = ("tests/unit/", "tests/netns/", "tests/attack/")
# The duration of each test file alone; unlisted files take SHORT.
TABLE = ROOT / "tests/harness/seconds.txt"
SHORT, LISTED = 1.5, 3.0
# In a file that takes longer, a guard's tests run first, alone.
LONG = 10.0
_NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of an empty tree


@dataclass(frozen=True, order=True)
class Work:
    """A file's tests, or some of them: their distance from the change, and their duration."""

    near: int
    seconds: float
    file: str
    tests: tuple[str, ...]


def chosen(works: Iterable[Work], budget: float) -> tuple[list[Work], list[Work]]:
    """As many as fit the time, and the rest.  The change's own tests come first; each file of distance outweighs a
    factor of three in duration."""
    taken, left = list[Work](), list[Work]()
    for work in sorted(works, key=lambda work: (work.near > 0, work.seconds * 3**work.near, work)):
        fits = work.seconds <= budget
        (taken if fits else left).append(work)
        budget -= work.seconds if fits else 0
    return taken, left


def works(
    changed: Iterable[str], far: Mapping[str, int], guards: Iterable[Guard], seconds: Mapping[str, float]
) -> Iterator[Work]:
    """All tests of the tiers here that may notice.

    A guard's tests have distance 0, because they were seen to notice; so have changed tests and those named after a
    changed file.
    """
    changed = set(changed)
    named: dict[str, set[str]] = {}
    for guard in guards:
        if guard.file in changed:
            for test in guard.tests:
                named.setdefault(test.partition("::")[0], set()).add(test)
    after = {test for path in changed for test in called_after(path, far)}
    for test in sorted({*filter(reach.is_test, far), *named}):
        if test in (*ALWAYS, LINT) or not test.startswith(HERE):
            continue
        takes, near = seconds.get(test, SHORT), far.get(test, len(far))
        if test in named and (takes <= LONG or test in named[test]):
            near = 0
        elif test in named:
            yield Work(0, min(takes, SHORT * len(named[test])), test, tuple(sorted(named[test])))
        yield Work(min(near, 1) if test in after else near, takes, test, (test,))


def called_after(path: str, files: Iterable[str]) -> set[str]:
    """The tests named after a file.  A page has those of all pages, which run the commands in them."""
    tests = [file for file in files if reach.is_test(file)]
    pages = {t for t in tests if PurePath(t).name in ("test_pages.py", "test_pages_shown.py")}
    return reach.namesakes(path, tests) | (pages if path.endswith(".md") else set())


def distances(changed: Iterable[str]) -> dict[str, int]:
    """The distance of each test file that may reach a change.  A test named after it counts as an importer."""
    changed = list(changed)
    files = sorted({*reach.listed(ROOT), *changed})
    far = reach.distances(reach.graph(ROOT, files), changed)
    for path in changed:
        for test in called_after(path, files):
            far[test] = min(1, far.get(test, 1))
    return {path: distance for path, distance in far.items() if (ROOT / path).exists()}


def table(report: Path) -> str:
    """The slow test files of a report, with their seconds."""
    took = dict[str, float]()
    for case in ET.parse(report).getroot().iter("testcase"):
        path = reported.node_id(case).partition("::")[0]
        took[path] = took.get(path, 0) + float(case.get("time", 0))
    return "".join(
        f"{took[path]:6.1f} {path}\n" for path in sorted(took) if path.startswith(HERE) and took[path] >= LISTED
    )


def seconds() -> dict[str, float]:
    """The seconds in the table."""
    return {path: float(took) for took, path in map(str.split, TABLE.read_text().splitlines())}


def elsewhere(far: Mapping[str, int], boots: Mapping[str, tuple[object, tuple[str, ...]]]) -> list[str]:
    """The arguments of `make test` for tests of other tiers that changed, or that import a changed file."""
    near = [test for test, distance in sorted(far.items()) if distance <= 1 and reach.is_test(test)]
    found = dict.fromkeys(test for test in near if test.startswith(("tests/system/", "tests/cluster/", *BOOTING)))
    for test in near:
        inside = (f"tests/test_lab.py::test_in_the_lab[{boot}]" for boot, (_, words) in boots.items() if test in words)
        found |= dict.fromkeys(inside if test.startswith("tests/lab/") else ())
    return [*found]


def git(*words: str) -> str:
    """The output of git; empty after an error."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def base() -> str:
    """The base of comparison: the point where the change left main; on main the previous commit, if nothing is
    uncommitted."""
    if given := os.environ.get("BASE"):
        if not (known := git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")):
            raise SystemExit(f"BASE={given}: git knows no such commit")
        return known
    head = git("rev-parse", "HEAD")
    for main in ("@{upstream}", "origin/main", "main"):
        left = git("merge-base", "HEAD", main)
        if left and left != head:
            return left
    if git("status", "--porcelain"):
        return head
    return git("rev-parse", "--verify", "--quiet", "HEAD^") or _NOTHING


def changed(since: str) -> list[str]:
    """The files that differ, including untracked ones."""
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", since).splitlines(), *new.splitlines()})


def guards(since: str, files: Iterable[str]) -> list[Guard]:
    """The guards of the files, those in changed functions first; without the launcher's, as each needs a build."""
    near = in_changed_functions(since)
    both = [*near, *(guard for guard in GUARDS if guard.file in files and guard not in near)]
    return [guard for guard in both if guard.is_python and not guard.survives and (ROOT / guard.file).exists()]


def in_changed_functions(since: str) -> list[Guard]:
    """The guards in changed functions and in untracked files, and those whose rows changed."""
    functions, rows = dict[str, set[str]](), set[Guard]()
    for path in filter(lambda path: (ROOT / path).exists(), changed(since)):
        if path in {guard.file for guard in GUARDS}:
            of = lines.functions((ROOT / path).read_text(), is_python=path.endswith(".py"))
            functions[path] = {of[line - 1] for line in _lines(since, path)} or {*of}
        elif PurePath(path).match("tests/harness/guarded/*.toml"):
            rows |= {*read((ROOT / path).read_text())}
            with suppress(ValueError):  # of an older form
                rows -= {*read(git("show", f"{since}:{path}"))}
    return [guard for guard in GUARDS if guard in rows or guard.function in functions.get(guard.file, ())]


def _lines(since: str, path: str) -> list[int]:
    """The lines that differ, by their numbers in the present file."""
    found = re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", git("diff", "-U0", since, "--", path), re.MULTILINE)
    return [line for first, count in found for line in range(int(first), int(first) + max(1, int(count or 1)))]


if __name__ == "__main__":
    TABLE.write_text(table(Path(sys.argv[1])))
