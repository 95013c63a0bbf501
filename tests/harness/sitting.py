"""Long runs in parts, over several sittings: what is missing, how long it takes, and the notes of what ended.

A note holds a hash of the files that its part covers, so it is valid in any commit and work tree in which they are the
same.  The notes are outside the tree, which a checkout replaces.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from xml.etree import ElementTree as ET

import drawn
from covered import Tree
from reported import failure
from side_by_side import ENDING, PYTEST, ROOT

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "hpn-cni")
# In a part's words: its own folder, and its report in JUnit's form.
FOLDER, REPORT = "{folder}", "{report}"
SHOWN = 8
TESTS = (*PYTEST, "-q", f"--basetemp={FOLDER}/t", f"--junitxml={REPORT}")


@dataclass(frozen=True)
class Part:
    """One process: its command, the files that it covers, and other facts on which its result depends.

    It draws by the day of its sitting and so many days later, every case or a tenth.  ``apart`` is a part that uses no
    common place of the machine.  ``size`` compares the durations of a tier's parts.
    """

    tier: str
    name: str
    words: tuple[str, ...]
    covers: frozenset[str]
    about: str = ""
    later: int = 0
    every: bool = True
    apart: bool = False
    size: int = 1

    @property
    def title(self) -> str:
        return f"{self.tier}: {self.name}"


@dataclass(frozen=True)
class Note:
    """The outcome of a part: the hash of what it covers, and its draw."""

    title: str
    digest: str
    draw: str
    began: str
    seconds: float
    status: int
    counts: dict[str, int] = field(default_factory=dict)


class Book:
    """The parts of a run, and the notes of all sittings in a file: a line for each part that ended."""

    def __init__(self, file: Path, tree: Tree, parts: Iterable[Part]) -> None:
        self._file, self._tree, self._lock = file, tree, Lock()
        self.parts = list(parts)
        self._digests = {part.title: self.now(part) for part in self.parts}

    def now(self, part: Part) -> str:
        """The hash of what the part covers, at this moment."""
        return self._tree.digest(part.covers, *part.words, part.about)

    def changed(self, part: Part) -> bool:
        """Report whether what it covers has changed since this book was opened."""
        return self.now(part) != self._digests[part.title]

    def all_notes(self) -> list[Note]:
        """All notes of the file, in their order.  A line that is incomplete or of another version is skipped."""
        found = list[Note]()
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            with suppress(ValueError, TypeError):
                found.append(Note(**json.loads(line)))
        return found

    def notes(self) -> list[Note]:
        """The valid ones, including those of failures."""
        return [note for note in self.all_notes() if self._digests.get(note.title) == note.digest]

    def missing(self) -> list[Part]:
        """The parts without a valid note of success."""
        done = {note.title for note in self.notes() if note.status == 0}
        return [part for part in self.parts if part.title not in done]

    def draw(self, part: Part) -> str:
        """The part's draw: a failure is repeated with its own."""
        again = [note.draw for note in self.notes() if note.title == part.title]
        if again:
            return again[-1]
        return str(drawn.Draw(drawn.draw().day + timedelta(part.later), part.every))

    def add(self, part: Part, draw: str, began: str, seconds: float, status: int, counts: Mapping[str, int]) -> None:
        note = Note(part.title, self._digests[part.title], draw, began, seconds, status, dict(counts))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self._file.open("a") as file:
            file.write(json.dumps(asdict(note)) + "\n")

    def seconds(self, otherwise: Mapping[str, float]) -> dict[str, float]:
        """The expected seconds of each part: its last duration, else its tier's for that size, else ``otherwise``."""
        last = {note.title: note.seconds for note in sorted(self.all_notes(), key=lambda note: note.status == 0)}
        known = [part for part in self.parts if part.title in last]
        took, size = defaultdict[str, float](float), Counter[str]()
        for part in known:
            took[part.tier] += last[part.title]
            size[part.tier] += part.size
        each = {**otherwise, **{tier: took[tier] / size[tier] for tier in took}}
        return {part.title: last.get(part.title, each[part.tier] * part.size) for part in self.parts}


class Sitting:
    """The running parts of a book.

    ``alone`` is the command that hides other runs' files in common places from a part that is not apart.
    """

    def __init__(self, book: Book, alone: tuple[str, ...] = ()) -> None:
        self._book, self._alone = book, alone
        self.over = Event()
        self._lock = Lock()
        self._running = set["subprocess.Popen[str]"]()

    def lane(self, todo: Sequence[Part]) -> None:
        """Run these parts in sequence."""
        for part in todo:
            if self.over.is_set():
                return
            self._do(part)

    def _do(self, part: Part) -> None:
        began, clock, draw = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic(), self._book.draw(part)
        # With a short name: tests make sockets in it, and their paths have at most 107 bytes (man 7 unix).
        with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)  # some tests run as users other than root
            report = Path(folder, "report.xml")
            own = [word.replace(FOLDER, folder).replace(REPORT, f"{report}") for word in part.words]
            with self._lock:
                if self.over.is_set():
                    return
                # In its own session: an interrupt reaches it and its children once, from us.
                process = subprocess.Popen(
                    [*(() if part.apart else self._alone), *own], cwd=ROOT, env={**os.environ, drawn.VARIABLE: draw},
                    text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                self._running.add(process)
            said, _ = process.communicate()
            self._running.discard(process)
            counts = counted(report, said)
        if self.over.is_set():
            return
        seconds, status = round(time.monotonic() - clock, 1), process.returncode
        shown = f"{part.title}: {'failed' if status else 'passed'} after {seconds:.0f} s, {told(counts)}"
        if self._book.changed(part):
            shown += "; not noted, because its files changed meanwhile"
        else:
            self._book.add(part, draw, began, seconds, status, counts)
        print(f"{said if status else ''}{shown}", flush=True)

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


def sit(book: Book, otherwise: Mapping[str, float], alone: tuple[str, ...] = ()) -> int:
    """Run the missing parts, in lanes beside each other, until all ended or an interrupt.

    Print how much is missing before, and what is missing afterwards.  Return 0 if nothing is, 1 after a failure, 130
    after an interrupt.
    """
    # SIGINT too: a background child of a shell ignores it, and so would all our children.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    todo, sitting = book.missing(), Sitting(book, alone)
    print(said(book, otherwise).partition("\n")[0], flush=True)
    threads = [Thread(target=sitting.lane, args=(lane,)) for lane in lanes(todo)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sitting.end()
    print(f"\n{said(book, otherwise)}", flush=True)
    return 0 if not book.missing() else 130 if sitting.over.is_set() else 1


def lanes(todo: Iterable[Part]) -> list[list[Part]]:
    """The parts that run in sequence: a tier's if they are apart, else those of this machine; two runs at once."""
    found = defaultdict[tuple[str, int], list[Part]](list)
    for part in todo:
        found[part.tier if part.apart else "", part.later % 2].append(part)
    return [*found.values()]


def said(book: Book, otherwise: Mapping[str, float]) -> str:
    """The missing parts of each tier, and how long they take."""
    todo, takes = book.missing(), book.seconds(otherwise)
    whole = max((sum(takes[part.title] for part in lane) for lane in lanes(todo)), default=0)
    failed = {note.title for note in book.notes()}
    lines = [f"{len(todo)} of {len(book.parts)} parts are missing{f': about {span(whole)}' if todo else ''}"]
    for tier in dict.fromkeys(part.tier for part in todo):
        own = [part for part in todo if part.tier == tier]
        names = [f"{part.name} (failed)" for part in own if part.title in failed]
        names += [part.name for part in own if part.title not in failed]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        took = span(sum(takes[part.title] for part in own))
        lines.append(f"  {len(own)} {tier}, {took}: {', '.join(names[:SHOWN])}{more}")
    return "\n".join(lines)


def span(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def counted(report: Path, output: str) -> Counter[str]:
    """Count the tests of a report and the drawn cases that they took; without a report, the guards in the output."""
    if not report.exists():
        return Counter(guards=len(re.findall(r"^ *\d+ s  ", output, re.MULTILINE)))
    counts = Counter[str]()
    for case in ET.parse(report).getroot().iter("testcase"):
        counts["tests"] += 1
        counts["failed"] += failure(case) is not None
        counts["skipped"] += case.find("skipped") is not None
        for one in case.iter("property"):
            counts[str(one.get("name"))] += int(one.get("value", "0"))
    return +counts


def told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())
