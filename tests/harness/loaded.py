"""Run the whole suite several times beside eight busy loops, to find the tests that a load alone can fail.

    packaging/venv python tests/harness/loaded.py [--write] [RUNS]

It takes hours, in as many sittings as you like, as the soak does (sitting.py).  The loops run in a sitting only.  Each
run draws by another day.  A part is some files of a tier, and takes at most 40 minutes on two processors.

--write writes the result of whole runs into docs/develop/testing.md.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath

import soak
from covered import LAB, PROGRAM, Tree
from places_of_tests import in_common_places
from reach import is_test
from side_by_side import BOOTING, PLAIN, ROOT, TIERS, WITHOUT_BINARY, compile_all, guests
from sitting import CACHE, FOLDER, REPORT, TESTS, Book, Part, sit
from test_lab import BOOTS
from touched import seconds

NOTES = CACHE / "loaded.jsonl"
LOOPS = 8
BEGIN, END = "<!-- the last loaded runs -->\n", "<!-- end of these -->"
# On an idle machine: the most seconds of a part's files, and those of a file without a known duration, of a boot, and
# of the plain build with its tests.  Beside the loops everything takes some four times as long.
MOST, FILE, BOOT, BUILD = 240, {"system": 12, "cluster": 40}, 200, 240
IN_GUEST = f"{LAB}::test_in_the_lab["
# The tests of the whole tree, such as those of its pages.
WHOLE = "tree"
LOADED = 4.0


def parts(tree: Tree, runs: int) -> Iterator[Part]:
    """All parts of so many runs.  The longest come first."""
    # Each boot, and each other function of these files.
    booting = dict.fromkeys(test if test.startswith(IN_GUEST) else test.partition("[")[0] for test in guests())
    for number in range(runs):
        for test in booting:
            boot = test.removeprefix(IN_GUEST).removesuffix("]")
            inside = {word.partition("::")[0] for word in BOOTS.get(boot, ((), ()))[1] if not word.startswith("-")}
            covers = tree.reached({test.partition("::")[0], *inside}) | tree.below(*PROGRAM, "netns-fixtures")
            yield part("lab", number, boot, (*TESTS, test), covers, BOOT)
        plain = ("make", "--no-print-directory", PLAIN, f"PYTEST_ARGS=--basetemp={FOLDER}/t --junitxml={REPORT}")
        yield part(PLAIN, number, "all", plain, tree.below(*PROGRAM, "netns-fixtures", "tests"), BUILD)
        for tier in TIERS:
            files = [path for path in sorted(tree.files) if is_test(path) and path.startswith(f"tests/{tier}/")]
            for some, size in grouped(files, FILE.get(tier, 2)):
                covers = tree.reached(some)
                if tier not in WITHOUT_BINARY:
                    covers |= tree.below(*PROGRAM, "netns-fixtures")
                name = " to ".join(dict.fromkeys(PurePath(some[at]).stem for at in (0, -1)))
                yield part(tier, number, name, (*TESTS, *some), covers, size)
        whole = [path for path in sorted(tree.files) if PurePath(path).match("tests/test_*.py") and path not in BOOTING]
        yield part(WHOLE, number, "all", (*TESTS, *whole), tree.files, 60)


def part(tier: str, number: int, name: str, words: tuple[str, ...], covers: frozenset[str], size: int) -> Part:
    """A part of the run with that number, from 0."""
    title, apart = f"{name} (run {number + 1})", tier in soak.APART
    return Part(tier, title, words, covers, later=number, every=False, apart=apart, size=size)


def grouped(files: Sequence[str], otherwise: int) -> Iterator[tuple[list[str], int]]:
    """The files in groups that take MOST seconds or little more, each with its seconds."""
    took, group, size = seconds(), list[str](), 0.0
    for file in files:
        group.append(file)
        size += took.get(file, otherwise)
        if size >= MOST or file == files[-1]:
            yield group, round(size)
            group, size = [], 0.0


@contextmanager
def busy(loops: int = LOOPS) -> Iterator[None]:
    """Keep the processors busy, also if this process is killed: then the kernel ends the loops."""
    words = ["setpriv", "--pdeathsig=KILL", "sh", "-c", "while :; do :; done"]
    running = [subprocess.Popen(words) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write whole runs into {soak.PAGE.relative_to(ROOT)}")
    parser.add_argument("runs", type=int, nargs="?", default=1, help="how many whole runs: 1")
    words = parser.parse_args()
    commit = soak.checkout() if words.write else ""
    tree = Tree(ROOT)
    book = Book(NOTES, tree, parts(tree, words.runs))
    compile_all()
    with in_common_places() as alone, busy():
        status = sit(book, dict.fromkeys((*TIERS, "lab", PLAIN, WHOLE), LOADED), alone)
    print(soak.table(book.notes()))
    if commit and not status:
        began = sorted(note.began[:10] for note in book.notes())
        about = f"Commit {commit[:12]}, {words.runs} runs beside {LOOPS} busy loops, from {began[0]} to {began[-1]}."
        head, _, rest = soak.PAGE.read_text().partition(BEGIN)
        soak.PAGE.write_text(f"{head}{BEGIN}{about}\n\n{soak.table(book.notes())}\n{END}{rest.partition(END)[2]}")
    return status


if __name__ == "__main__":
    sys.exit(main())
