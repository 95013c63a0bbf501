"""Run every test, in several pytest processes at once.

    packaging/venv python tests/side_by_side.py [-j JOBS] [--junitxml FILE]

Each tier is a process, and each test that boots a guest is one.  There are half as many again at once as there are
processors, for guests and the cluster wait for a third of their time.  What takes longest comes first: the system tier
and the cluster, which would otherwise be what the processors wait for in the end.

A tier that runs on this machine itself is in a mount namespace of its own, where nothing is in the places in which hpn,
libcni and `ip netns` keep what is common to a machine.  So it neither sees nor disturbs another tier, or what the
machine has.  A guest makes nothing here that another test could see, and the cluster is in namespaces of its own.

Prometheus, which the system tier asks for, is built meanwhile, the first time for minutes; and so is what the cluster
runs.

The folders of the tiers unit, netns and attack are in memory, as state on a node is: most of their tests wait for the
disk otherwise.  Those of the system tier are on the disk, for there are commands in it that may have little memory.
Afterwards the folders are gone; those of a run that failed are on the disk, under the same names.

The tiers are shown line by line as they go.  A test with a guest has one line, and its whole report if it failed.  The
last lines say where the time went, and name all tests that failed, those in guests as themselves.  An interrupt ends
all processes, and each takes down what it made.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from xml.etree import ElementTree as ET

import drawn
from reported import Done, Processors, merged, suites, summary, times

ROOT = Path(__file__).parents[1]
# The files whose tests boot guests, and make nothing else.
BOOTING = ("tests/test_lab.py", "tests/test_power_cut.py")
CLUSTER, SYSTEM = "tests/cluster", "tests/system"
# Those whose folders are in memory.  With unit goes what stands beside the tiers.
TIERS = {"netns": "tests/netns", "unit": "tests", "attack": "tests/attack"}
BUILDS = (ROOT / "netns-fixtures/prometheus", ROOT / "netns-fixtures/cluster/build")
# Without a cache, which one run makes in the checkout while a test of another looks at what came there.
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
ENDING = 30.0
# What is common to a machine: hpn's notes and locks, the namespaces with names, libcni's results.
COMMON = ("/run/hpn", "/run/netns", "/var/lib/cni")
# A guest takes 2 GiB, and what is around it some more.
_GUEST = 5 << 29


def _jobs() -> int:
    """How many at once: three for two processors, if there is memory for as many."""
    processors = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(processors + (processors + 1) // 2, memory // _GUEST))


@dataclass(frozen=True)
class Run:
    """One pytest process: what it is called in reports, its tier, what it is told, and where its tests' folders are.

    ``alone`` is what runs it where it sees nothing of what others keep in common places.
    """

    name: str
    tier: str
    words: tuple[str, ...]
    folder: Path
    shown_at_once: bool = False
    alone: tuple[str, ...] = ()


class Runs:
    """Those that are under way, and the one terminal that all of them write to."""

    def __init__(self) -> None:
        self._running = set["subprocess.Popen[str]"]()
        self._terminal = Lock()
        self._ended = False

    def complete(self, run: Run, report: Path) -> Done:
        """Run it to its end, and show its output."""
        words = [*run.alone, *PYTEST, *run.words, f"--basetemp={run.folder}", f"--junitxml={report}"]
        words.append(f"--color={'yes' if sys.stdout.isatty() else 'no'}")
        began = time.monotonic()
        with self._terminal:
            if self._ended:
                return Done(run.name, run.tier, 130)
            # In a session of its own: so an interrupt reaches it once, from us, and whatever it has started too.
            process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        assert process.stdout
        kept = list[str]()
        for said in process.stdout:
            line = said.removesuffix("\n") + "\n"  # one that is interrupted ends in the midst of a line
            if run.shown_at_once:
                self._show(line)
            else:
                kept.append(line)
        spent, status = processor_time(process.pid), process.wait()
        self._running.discard(process)
        if not status:  # then only what it lacked is of interest
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
        """Interrupt all of them, as a terminal does; kill what has not ended then."""
        with self._terminal:
            self._ended = True
        for sent, patience in ((signal.SIGINT, ENDING), (signal.SIGKILL, ENDING)):
            for process in [*self._running]:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            for process in [*self._running]:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)


def processor_time(pid: int) -> float:
    """Seconds that a child took with all that it waited for, once it has ended.  Its status is still to be had."""
    with suppress(ChildProcessError, FileNotFoundError):  # an interrupt has ended it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]  # man 5 proc: utime to cstime
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def runs(memory: Path | None, disk: Path, alone: tuple[str, ...]) -> Iterator[Run]:
    """What takes longest first.  The tests' folders are in one of the two, with short names: tests make sockets there,
    whose paths have 107 bytes at most (man 7 unix)."""
    yield Run("system", "system", (SYSTEM,), disk / "s", True, alone)
    yield Run("cluster", "cluster", (CLUSTER,), disk / "c", True)
    elsewhere = (*BOOTING, CLUSTER, SYSTEM, *(path for path in TIERS.values() if path != "tests"))
    for tier, path in TIERS.items():
        words = (path, "-o", "tmp_path_retention_policy=failed")
        words += tuple(f"--ignore={other}" for other in elsewhere) if path == "tests" else ()
        yield Run(tier, tier, words, (memory or disk) / tier[0], True, alone)
    listed = subprocess.run(
        [*PYTEST, "--collect-only", "-q", *BOOTING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise SystemExit(listed.stdout + listed.stderr)
    tests = [line for line in listed.stdout.splitlines() if line.startswith(BOOTING)]
    yield from (Run(test, "lab", (test,), disk / f"{number}") for number, test in enumerate(tests))


@contextmanager
def in_common_places() -> Iterator[tuple[str, ...]]:
    """What runs a command where the common places are its own, and empty.  Nothing where nobody may mount there."""
    script = 'for at in $COMMON; do mount -t tmpfs -o mode=755 hpn-tests "$at" || exit; done; exec "$@"'
    script = script.replace("$COMMON", " ".join(COMMON))
    words = ("unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh")
    places = {folder for at in map(Path, COMMON) for folder in (at, *at.parents) if not folder.exists()}
    made = sorted(places, key=lambda folder: len(folder.parts))
    if os.geteuid():
        yield ()
        return
    try:
        for folder in made:
            folder.mkdir()
        tried = subprocess.run([*words, "true"], capture_output=True, check=False)
        yield () if tried.returncode else words
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # something else has come there
                folder.rmdir()


@contextmanager
def building() -> Iterator[None]:
    """Meanwhile Prometheus is built, and what the cluster runs.  What they lack, the tests say that ask for it."""
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


@contextmanager
def on_disk(bad: list[Done]) -> Iterator[Path]:
    """A folder for the tests' own, which is there afterwards if any run was bad."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    try:
        yield folder
    finally:
        if bad:
            print(f"what failed left its files in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def in_memory(disk: Path, bad: list[Done]) -> Iterator[Path | None]:
    """A folder in memory, where we may mount one.  If any run was bad, its files are on the disk afterwards, under the
    same names."""
    folder, kept = disk / "m", disk / "kept"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "hpn-tests", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    disk.chmod(0o755)  # some tests are of users other than root
    try:
        yield folder
    finally:
        if bad:
            subprocess.run(["cp", "-a", folder, kept], check=False)
        subprocess.run(["umount", "--lazy", folder], check=True)
        if bad:
            folder.rmdir()
            kept.rename(folder)


def compile_all() -> None:
    """Have bytecode of the tree beside it.  A guest would compile for seconds, in each boot, for it keeps nothing.

    pytest compiles tests in a way of its own, and collects those of the lab where HPN_LAB is set.  What cannot be
    compiled here is compiled there, so this is not asked how it ended.
    """
    folders = ("cni", "ipam", "agent", "node", "ctl", "netns-fixtures", "tests")
    lab = sorted((ROOT / "tests/lab").rglob("test_*.py"))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for words in ((sys.executable, "-m", "compileall", "-q", *folders), (*PYTEST, "--collect-only", "-q", *lab)):
        subprocess.run(words, cwd=ROOT, env=environ | {"HPN_LAB": "/nowhere"}, capture_output=True, check=False)


def main() -> int:
    # SIGINT too: what a shell starts in the background ignores it, and so would all that we start.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", dest="jobs", type=int, default=_jobs(), help=f"how many at once: {_jobs()}")
    parser.add_argument("--junitxml", type=Path, metavar="FILE", help="one JUnit report of all of them")
    words = parser.parse_args()
    print(f"{drawn.VARIABLE}={drawn.draw()}", flush=True)  # all that starts from here draws by this day
    under_way, bad, began, processors = Runs(), list[Done](), time.monotonic(), Processors()
    with (
        building(),
        tempfile.TemporaryDirectory(prefix="side-by-side-") as reports,
        on_disk(bad) as disk,
        in_memory(disk, bad) as memory,
        in_common_places() as alone,
        ThreadPoolExecutor(words.jobs) as threads,
    ):
        try:
            compile_all()
            started = [
                threads.submit(under_way.complete, run, Path(reports, f"{number}.xml"))
                for number, run in enumerate(runs(memory, disk, alone))
            ]
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
