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
disk otherwise.  Afterwards they are gone; where a run failed, they are on the disk, under the same names.  Those of the
system tier are on the disk, for there are commands in it that may have little memory.

The tiers are shown line by line as they go.  A test with a guest has one line, and its whole report if it failed.  The
last lines name all tests that failed.  An interrupt ends all processes, and each takes down what it made.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from xml.etree import ElementTree as ET

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
    """One pytest process: what it is called in reports, what it is told, and where its JUnit report goes.

    ``alone`` is what runs it where it sees nothing of what others keep in common places.
    """

    name: str
    words: tuple[str, ...]
    report: Path
    shown_at_once: bool = False
    alone: tuple[str, ...] = ()


class Runs:
    """Those that are under way, and the one terminal that all of them write to."""

    def __init__(self) -> None:
        self._running = set["subprocess.Popen[str]"]()
        self._terminal = Lock()
        self._ended = False

    def complete(self, run: Run) -> int:
        """Run it to its end, and show its output; its exit status."""
        words = [
            *run.alone,
            *PYTEST,
            *run.words,
            f"--junitxml={run.report}",
            f"--color={'yes' if sys.stdout.isatty() else 'no'}",
        ]
        began = time.monotonic()
        with self._terminal:
            if self._ended:
                return 130
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
        status = process.wait()
        self._running.discard(process)
        if not status:  # then only what it lacked is of interest
            kept = [line for line in kept if "SKIPPED" in line]
        outcome = f"exit status {status}" if status else "passed"
        self._show(f"--- {run.name}: {outcome} after {time.monotonic() - began:.0f} s\n", *kept)
        return status

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


def runs(reports: Path, folders: Path | None, alone: tuple[str, ...]) -> Iterator[Run]:
    """What takes longest first.  ``folders`` is where the tiers' tests have theirs, if it is in memory."""
    yield Run("system", (SYSTEM,), reports / "system.xml", True, alone)
    yield Run("cluster", (CLUSTER,), reports / "cluster.xml", True)
    elsewhere = (*BOOTING, CLUSTER, SYSTEM, *(path for path in TIERS.values() if path != "tests"))
    others = tuple(f"--ignore={path}" for path in elsewhere)
    for tier, path in TIERS.items():
        # One letter: tests make sockets in these folders, and a socket's path has 107 bytes at most (man 7 unix).
        where = (f"--basetemp={folders}/{tier[0]}", "-o", "tmp_path_retention_policy=failed") if folders else ()
        words = (path, *where, *(others if path == "tests" else ()))
        yield Run(tier, words, reports / f"{tier}.xml", True, alone)
    listed = subprocess.run(
        [*PYTEST, "--collect-only", "-q", *BOOTING], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise SystemExit(listed.stdout + listed.stderr)
    tests = [line for line in listed.stdout.splitlines() if line.startswith(BOOTING)]
    yield from (Run(test, (test,), reports / f"{number}.xml") for number, test in enumerate(tests))


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
def in_memory(bad: list[Run]) -> Iterator[Path | None]:
    """A folder in memory, where we may mount one.  It is on the disk afterwards if any run was bad, else nowhere."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    kept = folder.with_suffix(".kept")
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "hpn-tests", folder]  # some tests are of users other than root
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        if bad:
            subprocess.run(["cp", "-a", folder, kept], check=False)
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()
        if bad:
            kept.rename(folder)
            print(f"what failed left its files in {folder}")


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


def merged(done: list[Run]) -> ET.Element:
    """All their reports as one: a suite for each."""
    suites = ET.Element("testsuites")
    for run in done:
        if run.report.exists():
            for suite in ET.parse(run.report).getroot().iter("testsuite"):
                suite.set("name", run.name)
                suites.append(suite)
    return suites


def node_id(case: ET.Element) -> str:
    """The name that pytest takes to run the test again: in tests.unit.test_x.TestY the file is test_x."""
    found = re.fullmatch(r"((?:\w+\.)*?test_\w+)((?:\.\w+)*)", case.get("classname", ""))
    if found:
        return f"{found[1].replace('.', '/')}.py{found[2].replace('.', '::')}::{case.get('name')}"
    return str(case.get("name"))  # a file that could not be collected


def summary(suites: ET.Element) -> str:
    """What failed, by name, and how many there were."""
    lines, count = list[str](), dict.fromkeys(("passed", "failed", "skipped"), 0)
    for case in suites.iter("testcase"):
        said = {element.tag: element.get("message", "") for element in case}
        failed = said.get("failure", said.get("error"))
        if failed is not None:
            lines.append(f"FAILED {node_id(case)}: {''.join(failed.splitlines()[:1])}")
        count["failed" if failed is not None else "skipped" if "skipped" in said else "passed"] += 1
    return "\n".join([*lines, ", ".join(f"{number} {what}" for what, number in count.items() if number)])


def main() -> int:
    # SIGINT too: what a shell starts in the background ignores it, and so would all that we start.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", dest="jobs", type=int, default=_jobs(), help=f"how many at once: {_jobs()}")
    parser.add_argument("--junitxml", type=Path, metavar="FILE", help="one JUnit report of all of them")
    words = parser.parse_args()
    under_way, bad, began = Runs(), list[Run](), time.monotonic()
    with (
        building(),
        tempfile.TemporaryDirectory(prefix="side-by-side-") as reports,
        in_memory(bad) as folders,
        in_common_places() as alone,
        ThreadPoolExecutor(words.jobs) as threads,
    ):
        try:
            compile_all()
            todo = list(runs(Path(reports), folders, alone))
            started = {threads.submit(under_way.complete, run): run for run in todo}
            bad += [started[done] for done in as_completed(started) if done.result()]
        except KeyboardInterrupt:
            threads.shutdown(wait=False, cancel_futures=True)
            under_way.end()
            print("interrupted")
            return 130
        suites = merged(todo)
    if words.junitxml:
        ET.ElementTree(suites).write(words.junitxml, encoding="utf-8", xml_declaration=True)
    print(f"\n{summary(suites)} in {time.monotonic() - began:.0f} s")
    if bad:
        print("failed:", "; ".join(run.name for run in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
