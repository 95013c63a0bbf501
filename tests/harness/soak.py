"""Run every case that a test run draws a tenth of, 50 histories of the checker, and each guard's removal.

    packaging/venv python tests/harness/soak.py [--write]

It takes hours.  build/soak.jsonl gets a line when a part ends.  After an interrupt, which ends all parts, the next
soak of the same commit runs the missing parts.  A failed part counts as missing.

The parts on this machine run in sequence.  Beside them run those in guests, and those of the cluster, in sequence
too.  --write writes the result of a whole soak into docs/develop/testing.md.
"""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from xml.etree import ElementTree as ET

import drawn
from guarded import GUARDS
from reported import failure
from side_by_side import ENDING, PYTEST, ROOT, compile_all, in_common_places

sys.path.extend((str(ROOT), str(ROOT / "tests")))  # tests import the program

from test_lab import BOOTS

NOTES, PAGE = ROOT / "build/soak.jsonl", ROOT / "docs/develop/testing.md"
BEGIN, END = "<!-- the last whole soak -->\n", "<!-- end -->"
CHECKER, GUARDS_TOOL = "tests/cluster/test_checker.py", "tests/harness/guards.py"
HISTORIES = 50
# These have their processes and links in guests, and in their own namespaces.
APART = ("lab", "cluster", "histories")
# A file with tests that draw.
DRAWS = re.compile(r"^import drawn$|\brecovered\(|\.test_killed_at_every_step\(", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """One process: a file of a tier, a boot, a history by a day, or the guards of a folder."""

    tier: str
    name: str
    words: tuple[str, ...]
    draw: str

    @property
    def title(self) -> str:
        return f"{self.tier}: {self.name}"


@dataclass(frozen=True)
class Note:
    """The outcome of a part: its commit, and the first day of its soak."""

    commit: str
    day: str
    title: str
    began: str
    seconds: float
    status: int
    counts: dict[str, int] = field(default_factory=dict)


def parts(day: date) -> Iterator[Part]:
    """All parts.  Guards come last, because they take longest."""
    every = f"{day},all"
    for tier in ("unit", "netns", "attack", "system", "cluster"):
        for path in sorted((ROOT / "tests" / tier).rglob("test_*.py")):
            name = f"{path.relative_to(ROOT)}"
            if draws(path) and name not in (
                CHECKER,
                "tests/unit/suite/test_drawn.py",
                "tests/unit/suite/test_side_by_side.py",
            ):
                yield Part(tier, path.stem, (name,), every)
    for boot, (_, tests) in BOOTS.items():
        if any(draws(ROOT / test) for test in {test.partition("::")[0] for test in tests if not test.startswith("-")}):
            yield Part("lab", boot, (f"tests/test_lab.py::test_in_the_lab[{boot}]",), every)
    for test in ("test_lab.py::test_power_failures", "test_lab.py::test_under_load", "test_power_cut.py"):
        yield Part("lab", test, (f"tests/{test}",), every)
    for number in range(HISTORIES):
        of = day + timedelta(number)
        yield Part("histories", f"{of}", (CHECKER,), f"{of},all")
    files = sorted({(f"{Path(guard.file).parent}", guard.file) for guard in GUARDS})
    for folder, own in itertools.groupby(files, key=lambda both: both[0]):
        yield Part("guards", folder, (GUARDS_TOOL, *(file for _, file in own)), every)


def draws(path: Path) -> bool:
    return bool(DRAWS.search(path.read_text()))


def checkout() -> str:
    """The commit, which must match the tree."""
    changed = git("status", "--porcelain")
    if changed:
        raise SystemExit(f"the soak is of a commit, and the tree differs from it: {changed}")
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def notes(file: Path, commit: str) -> list[Note]:
    """The notes of the commit.  An incomplete line is skipped."""
    found = list[Note]()
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError, TypeError):
            found.append(Note(**json.loads(line)))
    return [note for note in found if note.commit == commit]


def missing(all_of_it: Sequence[Part], noted: Sequence[Note]) -> list[Part]:
    done = {note.title for note in noted if note.status == 0}
    return [part for part in all_of_it if part.title not in done]


class Soak:
    """The soak of a commit: its running parts, and the file with a line for each part.

    ``alone`` is the command that hides other runs' files in common places from a part that is not apart.
    """

    def __init__(self, commit: str, day: date, file: Path, alone: tuple[str, ...] = ()) -> None:
        self.commit, self.day, self.file, self.alone = commit, day, file, alone
        self.over = Event()
        self._lock = Lock()
        self._running = set["subprocess.Popen[str]"]()

    def lane(self, todo: Sequence[Part]) -> None:
        for part in todo:
            if self.over.is_set():
                return
            self._do(part)

    def _do(self, part: Part) -> None:
        began, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
        # With a short name: tests make sockets in it, and their paths have at most 107 bytes (man 7 unix).
        with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)  # some tests run as users other than root
            report = Path(folder, "report.xml")
            program: tuple[str, ...] = (sys.executable,)
            if part.tier != "guards":
                program = (*PYTEST, "-q", f"--basetemp={folder}/t", f"--junitxml={report}")
            words = (*(() if part.tier in APART else self.alone), *program)
            with self._lock:
                if self.over.is_set():
                    return
                # In its own session: an interrupt reaches it and its children once, from us.
                process = subprocess.Popen(
                    [*words, *part.words], cwd=ROOT, env={**os.environ, drawn.VARIABLE: part.draw}, text=True,
                    errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
                self._running.add(process)
            said = process.communicate()[0]
            self._running.discard(process)
            if self.over.is_set():
                return
            counts = (
                counted(report)
                if report.exists()
                else Counter(guards=len(re.findall(r"^ *\d+ s  ", said, re.MULTILINE)))
            )
        seconds = round(time.monotonic() - clock, 1)
        self._note(Note(self.commit, f"{self.day}", part.title, began, seconds, process.returncode, dict(counts)))
        shown = f"{part.title}: {'failed' if process.returncode else 'passed'} after {seconds:.0f} s, {told(counts)}"
        print(f"{said if process.returncode else ''}{shown}", flush=True)

    def _note(self, note: Note) -> None:
        with self._lock, self.file.open("a") as file:
            file.write(json.dumps(asdict(note)) + "\n")

    def end(self) -> None:
        """Interrupt all running parts, as a terminal does; kill those that have not ended then."""
        with self._lock:
            self.over.set()
        for sent in (signal.SIGINT, signal.SIGKILL):
            for process in [*self._running]:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            deadline = time.monotonic() + ENDING
            while any(process.poll() is None for process in [*self._running]) and time.monotonic() < deadline:
                # time: the pace of a loop with a deadline
                time.sleep(0.1)


def counted(report: Path) -> Counter[str]:
    """Count the tests of a report, and the drawn cases that they took."""
    counts, root = Counter[str](), ET.parse(report).getroot()
    for case in root.iter("testcase"):
        counts["tests"] += 1
        counts["failed"] += failure(case) is not None
        counts["skipped"] += case.find("skipped") is not None
        for one in case.iter("property"):
            counts[str(one.get("name"))] += int(one.get("value", "0"))
    return +counts


def told(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())


def table(noted: Sequence[Note]) -> str:
    """The passed tests of each tier, as the page shows them."""
    rows = ["| | parts | what they took | failed before they passed | processes' time |", "|---|---|---|---|---|"]
    for tier in dict.fromkeys(note.title.partition(":")[0] for note in noted):
        own = [note for note in noted if note.title.startswith(f"{tier}:")]
        passed = [note for note in own if note.status == 0]
        counts = sum((Counter(note.counts) for note in passed), Counter[str]())
        minutes = sum(note.seconds for note in own) / 60
        rows.append(f"| {tier} | {len(passed)} | {told(counts)} | {len(own) - len(passed)} | {minutes:.0f} min |")
    return "\n".join(rows)


def write(noted: Sequence[Note], page: Path) -> None:
    """Replace the page's table by that of a complete soak."""
    text = page.read_text()
    head, tail = text.partition(BEGIN)[0], text.partition(BEGIN)[2].partition(END)[2]
    last = max(noted, key=lambda note: note.began)
    about = (
        f"Commit {last.commit[:12]}, from {noted[0].began[:10]} to {last.began[:10]}, every case by the day {last.day}."
    )
    page.write_text(f"{head}{BEGIN}{about}\n\n{table(noted)}\n{END}{tail}")


def main() -> int:
    # SIGINT too: a background child of a shell ignores it, and so would all our children.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write a whole soak into {PAGE.relative_to(ROOT)}")
    words = parser.parse_args()
    commit = checkout()
    NOTES.parent.mkdir(exist_ok=True)
    before = notes(NOTES, commit)
    day = date.fromisoformat(before[0].day) if before else drawn.draw().day
    all_of_it = list(parts(day))
    todo = missing(all_of_it, before)
    print(f"{commit[:12]}, {day}: {len(todo)} of {len(all_of_it)} parts are to be done", flush=True)
    lanes = [[part for part in todo if (part.tier in APART) == apart] for apart in (False, True)]
    with in_common_places() as alone:
        soak = Soak(commit, day, NOTES, alone)
        threads = [Thread(target=soak.lane, args=(lane,)) for lane in lanes]
        try:
            compile_all()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            soak.end()
    after = notes(NOTES, commit)
    left = missing(all_of_it, after)
    print(f"\n{table(after)}\n{len(left)} parts are missing", *(part.title for part in left), sep="\n")
    if left:
        return 130 if soak.over.is_set() else 1
    if words.write:
        write(after, PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
