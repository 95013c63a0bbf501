"""Run every test, in several pytest processes at once.

    packaging/venv python tests/harness/side_by_side.py [-j JOBS] [--junitxml FILE]

Each tier is a process, and each test that boots a guest is one.  No process keeps a processor busy all the time, so
more run at once than there are processors, by the known share of each.  The longest come first, because the
processors would wait for them in the end.  The binary is built first, beside the tests that do not need it.  The
plain build and its part of the tests follow later.

A tier on this machine gets a mount namespace with empty directories in which hpn, libcni and `ip netns` keep shared
state.  So it neither sees nor disturbs another tier or the machine.  A guest leaves nothing visible to other tests,
and a cluster has its own namespaces.

Meanwhile the DRA driver's grpc-go client, Helm and Prometheus for the system tier, and the cluster's programs are
built, the first time for minutes.

The folders of the tiers unit, netns and attack are in memory, as a node's state is: otherwise most of their tests
wait for the disk.  The system tier's are on the disk, because some of its commands have little memory.  Afterwards
the folders are removed; those of a failed run move to the disk, under the same names.

The tiers print their lines at once, and their failures together.  A test with a guest prints one line, and its whole
report if it failed.  The last lines show the times, and name all failed tests, including those in guests.  An
interrupt ends all processes, and each removes what it made.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event, Lock
from xml.etree import ElementTree as ET

import drawn
from places_of_tests import in_common_places, in_memory, on_disk
from reported import Done, Processors, merged, suites, summary, times

ROOT = Path(__file__).parents[2]
# The files whose tests only boot guests.
BOOTING = ("tests/test_lab.py", "tests/test_power_cut.py")
# The boots of each run.  Of the others it draws half, because a boot takes minutes of a processor.
EACH_RUN = ("RDMA", "VFs")
# In starting order.  The files beside the tiers run with unit.
TIERS = ("netns", "unit", "system", "cluster", "attack")
IN_MEMORY = ("netns", "unit", "attack")
WITHOUT_BINARY = ("netns", "unit")
# Targets of make.
BINARY, PLAIN = "binary", "plain"
BUILDS = tuple(ROOT / "netns-fixtures" / name for name in ("gokubelet/build", "helm", "prometheus", "cluster/build"))
# Without a cache: one run would make it in the checkout while a test of another checks for new files there.
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
ENDING = 30.0
# How busy each keeps a processor, in per cent; the rest of its time it waits.
SHARES = {BINARY: 100, "netns": 40, "unit": 75, "system": 55, "cluster": 55, "attack": 60, PLAIN: 75, "lab": 85}
# The load for each processor.  The sum may exceed its capacity, because not all are busy at the same time.
_GIVEN = 130
# A guest takes 2 GiB, and its emulator some more.
_GUEST = 5 << 29


class Room:
    """The capacity for concurrent runs: shares up to this many per cent, or one run with a larger share."""

    def __init__(self, whole: int) -> None:
        self._free, self._inside, self._changed = whole, 0, Condition()

    def enter(self, share: int) -> None:
        """Wait until there is room."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside or share <= self._free)
            self._free -= share
            self._inside += 1

    def leave(self, share: int) -> None:
        with self._changed:
            self._free += share
            self._inside -= 1
            self._changed.notify_all()


@dataclass(frozen=True)
class Run:
    """One pytest process, or ``make`` with that target: its name in reports, its tier, and the folder of its tests.

    ``alone`` is the command that hides other runs' files in common places from it.
    """

    name: str
    tier: str
    words: tuple[str, ...]
    folder: Path
    shown_at_once: bool = False
    alone: tuple[str, ...] = ()
    make: str = ""
    needs_binary: bool = False

    def argv(self, report: Path) -> list[str]:
        """The command that writes this report."""
        told = (
            f"--basetemp={self.folder}",
            f"--junitxml={report}",
            f"--color={'yes' if sys.stdout.isatty() else 'no'}",
        )
        if self.make:
            return [*self.alone, "make", "--no-print-directory", self.make, f"PYTEST_ARGS={shlex.join(told)}"]
        return [*self.alone, *PYTEST, *self.words, *told]


class Runs:
    """The runs under way, and the one terminal that all of them write to."""

    def __init__(self) -> None:
        self._running = set["subprocess.Popen[str]"]()
        self._terminal = Lock()
        self._ended = False
        self._binary, self._no_binary = Event(), 0

    def complete(self, run: Run, report: Path) -> Done:
        """Run it to its end, and show its output."""
        if run.needs_binary:
            self._binary.wait()
            if self._no_binary:
                self._show(f"--- {run.name}: not run, for there is no binary\n")
                return Done(run.name, run.tier, self._no_binary)
        began = time.monotonic()
        with self._terminal:
            if self._ended:
                return Done(run.name, run.tier, 130)
            # In its own session: an interrupt reaches it and its children once, from us.
            process = subprocess.Popen(
                run.argv(report), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        assert process.stdout
        kept, titles = list[str](), 0
        for said in process.stdout:
            line = said.removesuffix("\n") + "\n"  # an interrupted run ends in the middle of a line
            titles += "==========" in line  # of the session, then of the failures
            if run.shown_at_once and titles < 2:
                self._show(line)
            else:
                kept.append(line)
        process.stdout.close()
        spent, status = processor_time(process.pid), process.wait()
        self._running.discard(process)
        if run.make == BINARY:
            self._no_binary = status
            self._binary.set()
        if not status:  # then only the skips are of interest
            kept = [line for line in kept if "SKIPPED" in line]
        outcome, wall = f"exit status {status}" if status else "passed", time.monotonic() - began
        self._show(f"--- {run.name}: {outcome} after {wall:.0f} s\n", *kept)
        # pytest links to the newest folder of each name.
        out = {at.resolve() for at in run.folder.glob("*/junit.xml")}
        inside = [suite for at in sorted(out) for suite in suites(at, f"in the guest of {run.name}")]
        if not status:
            shutil.rmtree(run.folder, ignore_errors=True)
        return Done(run.name, run.tier, status, wall, spent, suites(report, run.name), inside)

    def _show(self, *lines: str) -> None:
        with self._terminal:
            print(*lines, sep="", end="", flush=True)

    def end(self) -> None:
        """Interrupt all runs, as a terminal does; kill those that have not ended then."""
        with self._terminal:
            self._ended = True
            self._binary.set()
        for sent, patience in ((signal.SIGINT, ENDING), (signal.SIGKILL, ENDING)):
            for process in [*self._running]:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            for process in [*self._running]:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)


def processor_time(pid: int) -> float:
    """Seconds of an ended child and all processes that it waited for.  Its status stays available."""
    with suppress(ChildProcessError, FileNotFoundError):  # an interrupt has ended it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]  # man 5 proc: utime to cstime
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def runs(memory: Path | None, disk: Path, alone: tuple[str, ...]) -> Iterator[Run]:
    """The binary and the runs that do not need it; then the longest runs first.

    The tests' folders are in memory or on the disk, with short names: tests make sockets there, and their paths have at
    most 107 bytes (man 7 unix).
    """
    yield Run(BINARY, BINARY, (), disk / "b", make=BINARY)
    elsewhere = [*BOOTING, *(f"tests/{tier}" for tier in TIERS if tier != "unit")]
    for tier in TIERS:
        words = ("tests", *(f"--ignore={path}" for path in elsewhere)) if tier == "unit" else (f"tests/{tier}",)
        folder = disk / tier[0]
        if tier in IN_MEMORY and memory:
            folder, words = memory / tier[0], (*words, "-o", "tmp_path_retention_policy=failed")
        if tier == "cluster":
            yield from clusters(disk)
        else:
            yield Run(tier, tier, words, folder, True, alone, needs_binary=tier not in WITHOUT_BINARY)
    yield Run(PLAIN, PLAIN, (), disk / "p", True, alone, make=PLAIN)
    for at, test in enumerate(todays(guests())):
        yield Run(test, "lab", (test,), disk / f"{at}", needs_binary=True)


def clusters(disk: Path) -> Iterator[Run]:
    """The cluster tier in halves, each with a cluster of its own, because its tests mostly wait."""
    files = sorted(f"{path.relative_to(ROOT)}" for path in (ROOT / "tests/cluster").rglob("test_*.py"))
    for number, some in enumerate((files[0::2], files[1::2]), 1):
        if some:
            yield Run(f"cluster {number}", "cluster", (*some,), disk / f"c{number}", True, needs_binary=True)


def guests() -> list[str]:
    """The tests that boot a guest, the longest boots first."""
    words = [*PYTEST, "--collect-only", "-q", *BOOTING]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise SystemExit(listed.stdout + listed.stderr)
    return [line for line in listed.stdout.splitlines() if line.startswith(BOOTING)]


def todays(tests: Sequence[str]) -> list[str]:
    """Of the tests that boot a guest those of the draw.  Two days in a row have all, and each some long ones."""
    if drawn.draw().everything:
        return [*tests]
    boots = {test: test.partition("::test_in_the_lab[")[2].removesuffix("]") for test in tests}
    others = [test for test, boot in boots.items() if boot and boot not in EACH_RUN]
    left = others[drawn.seed() % 2 :: 2]
    print(*(f"{drawn.VARIABLE}: left to another day: {test}" for test in left), sep="\n", flush=True)
    return [test for test in tests if test not in left]


@contextmanager
def building() -> Iterator[None]:
    """Build what BUILDS names meanwhile.  A test that lacks one of them reports it."""
    if os.geteuid():
        yield
        return
    nowhere = subprocess.DEVNULL
    argv = ["sh", "-c", " & ".join(shlex.quote(f"{build}") for build in BUILDS)]
    with subprocess.Popen(argv, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True) as process:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def compile_all() -> None:
    """Compile the tree's bytecode.  A guest would compile for seconds in each boot, because it keeps no files.

    pytest compiles tests in its own way, and collects those of the lab if HPN_LAB is set.  Files that fail to compile
    here are compiled there, so the exit status is ignored.
    """
    folders = ("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "netns-fixtures", "tests")
    lab = sorted((ROOT / "tests/lab").rglob("test_*.py"))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for words in (
        (sys.executable, "-m", "compileall", "-q", *folders),
        (*PYTEST, "--collect-only", "-q", *map(str, lab)),
    ):
        subprocess.run(words, cwd=ROOT, env=environ | {"HPN_LAB": "/nowhere"}, capture_output=True, check=False)


def main() -> int:
    # SIGINT too: a background child of a shell ignores it, and so would all our children.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = len(os.sched_getaffinity(0))
    parser.add_argument("-j", dest="jobs", type=int, default=here, help=f"processors: {here}; 0: one after the other")
    parser.add_argument("--junitxml", type=Path, metavar="FILE", help="one JUnit report of all of them")
    words = parser.parse_args()
    print(f"{drawn.VARIABLE}={drawn.draw()}", flush=True)  # all children draw by this day
    guests = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _GUEST
    room = Room(min(words.jobs * _GIVEN, guests * SHARES["lab"]))
    under_way, bad, began, processors = Runs(), list[Done](), time.monotonic(), Processors()
    with (
        building(),
        tempfile.TemporaryDirectory(prefix="side-by-side-") as reports,
        on_disk(bad) as disk,
        in_memory(disk, bad) as memory,
        in_common_places() as alone,
        ThreadPoolExecutor(1 + words.jobs * _GIVEN // min(SHARES.values())) as threads,
    ):
        try:
            compile_all()
            started = list[Future[Done]]()
            for number, run in enumerate(runs(memory, disk, alone)):
                room.enter(share := SHARES[run.tier])
                started.append(threads.submit(under_way.complete, run, Path(reports, f"{number}.xml")))
                started[-1].add_done_callback(lambda _, share=share: room.leave(share))  # type: ignore[misc]
            done = [one.result() for one in started]
        except KeyboardInterrupt:
            threads.shutdown(wait=False, cancel_futures=True)
            under_way.end()
            print("interrupted")
            return 130
        bad += [run for run in done if run.status]
    if words.junitxml:
        ET.ElementTree(merged(done)).write(words.junitxml, encoding="utf-8", xml_declaration=True)
    took = f"{time.monotonic() - began:.0f} s, {drawn.VARIABLE}={drawn.draw()}"
    print(f"\n{times(done)}\n{processors}\n\n{summary(done)} in {took}")
    if bad:
        print("failed:", "; ".join(run.name for run in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
