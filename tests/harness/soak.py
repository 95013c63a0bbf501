"""Run every case that a test run draws a tenth of, 50 histories of the checker, and each guard's removal.

    packaging/venv python tests/harness/soak.py [--missing] [--write]

It takes hours, in as many sittings and commits as you like: a part's result is valid until a file that it covers
changes.  ~/.cache/hpn-cni/soak.jsonl gets a line when a part ends.  After an interrupt, which ends all parts, the next
soak runs the missing parts.  A failed part counts as missing.  --missing only prints them, and how long they take.

The parts on this machine run in sequence.  Beside them run those in guests, those of the cluster, and two histories
at once.  --write writes the result of a whole soak into docs/develop/testing.md.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from covered import LAB, PROGRAM, Tree
from guarded import GUARDS, Guard
from places_of_tests import in_common_places
from side_by_side import ROOT, WITHOUT_BINARY, compile_all
from sitting import CACHE, TESTS, Book, Note, Part, said, sit, span, told

sys.path.extend((str(ROOT), str(ROOT / "tests")))  # tests import the program

from test_lab import BOOTS

NOTES, PAGE = CACHE / "soak.jsonl", ROOT / "docs/develop/testing.md"
BEGIN, END = "<!-- the last whole soak -->\n", "<!-- end -->"
CHECKER, GUARDS_TOOL = "tests/cluster/test_checker.py", "tests/harness/guards.py"
HISTORIES = 50
# These have their processes and links in guests, and in their own namespaces.
APART = ("lab", "cluster", "histories")
# A file with tests that draw.
DRAWS = re.compile(r"^import drawn$|\brecovered\(|\.test_killed_at_every_step\(", re.MULTILINE)
# Seconds of a part of each tier, or of a guard, until one is known.
SECONDS = {
    "unit": 120,
    "netns": 180,
    "attack": 240,
    "system": 300,
    "cluster": 300,
    "lab": 900,
    "histories": 180,
    "guards": 10,
}


def parts(tree: Tree) -> Iterator[Part]:
    """All parts.  Guards come last, because they take longest."""
    for tier in ("unit", "netns", "attack", "system", "cluster"):
        for path in sorted((ROOT / "tests" / tier).rglob("test_*.py")):
            name = f"{path.relative_to(ROOT)}"
            if draws(path) and name != CHECKER and not name.startswith("tests/unit/suite/"):
                yield of_tests(tree, tier, path.stem, name)
    for boot, (_, words) in BOOTS.items():
        tests = {word.partition("::")[0] for word in words if not word.startswith("-")}
        if any(draws(ROOT / test) for test in tests):
            yield of_tests(tree, "lab", boot, f"{LAB}::test_in_the_lab[{boot}]", tests)
    for test in ("test_lab.py::test_power_failures", "test_lab.py::test_under_load", "test_power_cut.py"):
        yield of_tests(tree, "lab", test, f"tests/{test}")
    for number in range(HISTORIES):
        yield of_tests(tree, "histories", f"{number + 1}", CHECKER, later=number)
    for file, own in groupby(sorted(GUARDS, key=lambda guard: guard.file), key=lambda guard: guard.file):
        yield of_guards(tree, file, [*own])


def of_tests(tree: Tree, tier: str, name: str, word: str, inside: Iterable[str] = (), later: int = 0) -> Part:
    """A part for a test, and those inside its guest.  A tier with the frozen binary covers the whole program."""
    covers = tree.reached({word.partition("::")[0], *inside})
    if tier not in WITHOUT_BINARY:
        covers |= tree.below(*PROGRAM, "netns-fixtures")
    return Part(tier, name, (*TESTS, word), covers, later=later, apart=tier in APART)


def of_guards(tree: Tree, file: str, guards: Sequence[Guard]) -> Part:
    """A part for the guards of a file.  It covers that file, their tests, and the rest of tests/ that these use."""
    tests = {test.partition("::")[0] for guard in guards for test in guard.tests}
    tools = {path for path in tree.below("tests/harness/guarded") if path.endswith(".py")}
    covers = tree.reached(tests, within="tests/") | {file, GUARDS_TOOL, *tools}
    about = "\n".join(map(repr, guards))  # their rows, which say what is taken out
    return Part("guards", file, (sys.executable, GUARDS_TOOL, file), covers, about, size=len(guards))


def draws(path: Path) -> bool:
    return bool(DRAWS.search(path.read_text()))


def checkout() -> str:
    """The commit, which must match the tree."""
    changed = git("status", "--porcelain")
    if changed:
        raise SystemExit(f"the page names the commit of the soak, and the tree differs from it: {changed}")
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def table(noted: Sequence[Note]) -> str:
    """The passed tests of each tier, as the page shows them."""
    rows = ["| | parts | what they took | failed before they passed | processes' time |", "|---|---|---|---|---|"]
    for tier in dict.fromkeys(note.title.partition(":")[0] for note in noted):
        own = [note for note in noted if note.title.startswith(f"{tier}:")]
        passed = {note.title: note for note in own if note.status == 0}
        counts = sum((Counter(note.counts) for note in passed.values()), Counter[str]())
        failed, took = sum(note.status != 0 for note in own), span(sum(note.seconds for note in own))
        rows.append(f"| {tier} | {len(passed)} | {told(counts)} | {failed} | {took} |")
    return "\n".join(rows)


def write(noted: Sequence[Note], commit: str, page: Path) -> None:
    """Replace the page's table by that of a complete soak."""
    text = page.read_text()
    head, tail = text.partition(BEGIN)[0], text.partition(BEGIN)[2].partition(END)[2]
    began, days = sorted(note.began[:10] for note in noted), sorted(note.draw[:10] for note in noted)
    about = f"Commit {commit[:12]}, from {began[0]} to {began[-1]}, every case by the days {days[0]} to {days[-1]}."
    page.write_text(f"{head}{BEGIN}{about}\n\n{table(noted)}\n{END}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write a whole soak into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--missing", action="store_true", help="print what is missing, and run nothing")
    words = parser.parse_args()
    commit = checkout() if words.write else ""
    tree = Tree(ROOT)
    book = Book(NOTES, tree, parts(tree))
    if words.missing:
        print(said(book, SECONDS))
        return 0
    with in_common_places() as alone:
        compile_all()
        status = sit(book, SECONDS, alone)
    print(table(book.notes()))
    if commit and not status:
        write(book.notes(), commit, PAGE)
    return status


if __name__ == "__main__":
    sys.exit(main())
