"""Take guards out of the program, one at a time, and check that a test notices.

    packaging/venv python tests/harness/guards.py [-j JOBS] [--changed [BASE]] [--done FILE] [NAME...]
    packaging/venv python tests/harness/guards.py [-j JOBS] [--done FILE] --mutants NUMBER [--seed SEED]

A name selects every guard with a file or name that begins with it ("cni/undo.py", "agent/server.py:uid"); without
names, all.  The program changes a copy of the tree.  guarded/edits.py defines what goes.  Run it as root, or
the netns tier notices nothing.  The launcher's guards need a binary (make binary), HPN_PEERS, and a quiet machine, as
the system tier does.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from guarded import GUARDS, ROOT, Guard
from guarded.mutants import drawn
from reach import listed
from touched import in_changed_functions

TIMEOUT = 60.0  # seconds: an endless wait without its guard is noticed after this time
ENDING = 10.0
PASSING = set[str]()  # tests that passed with all guards in place
RUNNING = set["subprocess.Popen[bytes]"]()


@dataclass(frozen=True)
class Verdict:
    """The test that noticed, empty if none did; ``sound`` if that test passes with the guard in place."""

    noticed: str
    seconds: float
    sound: bool = True

    @property
    def text(self) -> str:
        if not self.noticed:
            return "SURVIVED"
        return self.noticed if self.sound else f"FAILS WITHOUT IT TOO: {self.noticed}"


class Copy:
    """A copy of the checkout's tree, for changes."""

    def __init__(self, folder: Path) -> None:
        self.root, self.scratch, self._time = folder / "tree", folder / "t", int(time.time())
        for name in listed(ROOT):
            if (ROOT / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)

    def without(self, guard: Guard) -> Verdict:
        """Run the tests that should notice, until one does."""
        started, noticed = time.monotonic(), ""
        for tests in guard.runs:
            if failed := self._failing_without(guard, tests):
                noticed = failed[0]
                # A test that also fails with the guard in place, or because the machine is busy, has noticed nothing.
                again = tests if noticed.startswith("(") else failed
                if noticed in PASSING or not self._failing(guard, again):
                    if again is failed:
                        PASSING.add(noticed)
                    return Verdict(noticed, time.monotonic() - started)
        return Verdict(noticed, time.monotonic() - started, sound=not noticed)

    def _failing_without(self, guard: Guard, tests: Sequence[str]) -> list[str]:
        file = self.root / guard.file
        whole = file.read_text()
        self._write(file, guard.taken_out_of(whole))
        try:
            return self._failing(guard, tests)
        finally:
            self._write(file, whole)

    def _write(self, file: Path, text: str) -> None:
        """Write the file with a new time: Python identifies compiled code by time and size."""
        file.write_text(text)
        self._time += 1
        os.utime(file, (self._time, self._time))

    def _failing(self, guard: Guard, tests: Sequence[str]) -> list[str]:
        """The first of the tests that fails, by its pytest id; an empty list if none does."""
        # All cases of one day: no verdict depends on the day.  10,000 damages take longer than TIMEOUT.
        every = "" if any("damaged_leases" in test for test in tests) else ",all"
        environ = {**os.environ, "HPN_DRAW": f"2026-11-24{every}"}
        if guard.file.startswith("packaging/launcher/"):
            if not self._built():
                return ["(the build's own test)"]
            environ["HPN_BINARY"] = str(self.root / "dist/hpn")
        cache = self.root / ".pytest_cache"
        shutil.rmtree(cache, ignore_errors=True)
        options = ["-x", "-q", f"--basetemp={self.scratch}", "-o", f"cache_dir={cache}"]
        output = self.root.parent / "output"
        with (
            output.open("w") as out,
            subprocess.Popen(
                [Path(sys.executable).with_name("pytest"), *options, *tests],
                cwd=self.root,
                env=environ,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as run,
        ):
            RUNNING.add(run)
            try:
                failed = _failed_of(run, cache / "v/cache/lastfailed")
            finally:
                RUNNING.remove(run)
                _end(run)
                self._tidy(run.pid)
        if not failed and run.returncode not in (0, None):
            return [f"(pytest: {(output.read_text().splitlines() or ['']).pop()})"]
        return failed

    def _built(self) -> bool:
        """Build a binary from this tree's launcher and the checkout's program; return whether it prints its version."""
        program = self.root / "build/program"
        if not program.exists():
            shutil.copytree(ROOT / "build/program", program, symlinks=True)
            taken = (ROOT / "build/taken.json").read_text()
            program.with_name("taken.json").write_text(taken.replace(f"{ROOT}/", f"{self.root}/"))
            # The tools, except the one that would freeze the program again.
            (self.root / "packaging/venv").write_text(
                f'#!/bin/sh\n[ "$1" = pyinstaller ] || {{ shift; exec {sys.executable} "$@"; }}\n'
            )
        (self.root / "dist/hpn").unlink(missing_ok=True)
        made = subprocess.run(["make", "dist/hpn"], cwd=self.root, capture_output=True, text=True, check=False)
        if not (self.root / "dist/hpn").exists():
            raise SystemExit(f"make dist/hpn: {made.stdout}{made.stderr}")
        return made.returncode == 0

    def _tidy(self, pid: int) -> None:
        """Remove the namespaces and mounts that its tests left because a guard was missing."""
        for namespace in Path("/run/netns").glob(f"hpn-test-{pid}-*"):
            subprocess.run(["ip", "netns", "delete", namespace.name], check=False)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in [m for m in reversed(mounts) if Path(m).is_relative_to(self.scratch)]:
            subprocess.run(["umount", "--lazy", mount], check=False)


def _failed_of(run: "subprocess.Popen[bytes]", noted: Path) -> list[str]:
    """The failed tests that pytest notes before it ends; a thread of a failed test may keep it from ending."""
    deadline = time.monotonic() + TIMEOUT
    while run.poll() is None and not noted.exists():
        if time.monotonic() > deadline:
            return [f"(not done in {TIMEOUT:g} s)"]
        # time: the pace of a loop with a deadline
        time.sleep(0.1)
    if noted.exists():
        with suppress(subprocess.TimeoutExpired):
            # time: then it is killed
            run.wait(ENDING)
        return list(json.loads(noted.read_text()))[:1]
    return [f"(pytest ended by {signal.Signals(-run.returncode).name})"] if run.returncode < 0 else []


def _end(run: "subprocess.Popen[bytes]") -> None:
    """End the run's remaining processes; its fixtures may tidy up first."""
    if run.poll() is None:
        run.terminate()
        with suppress(subprocess.TimeoutExpired):
            # time: then it is killed
            run.wait(ENDING)
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def verdicts(guards: Sequence[Guard], jobs: int) -> Iterator[tuple[Guard, Verdict]]:
    """Each guard's verdict, as soon as it is known and in the order of the table."""
    with tempfile.TemporaryDirectory(prefix="guards-") as folder, ThreadPoolExecutor(jobs) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder, str(number))))

        def one(guard: Guard) -> Verdict:
            copy = copies.get()
            try:
                return copy.without(guard)
            finally:
                copies.put(copy)

        try:
            yield from zip(guards, threads.map(one, guards), strict=True)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for run in [*RUNNING]:
                run.terminate()
            raise


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", dest="jobs", type=int, default=1, help="how many at once")
    parser.add_argument(
        "--changed", nargs="?", const="HEAD", metavar="BASE", help="those in functions that differ from it"
    )
    parser.add_argument(
        "--done", type=Path, metavar="FILE", help="lists those that were noticed; they are not tried again"
    )
    parser.add_argument("--mutants", type=int, metavar="NUMBER", help="so many places without a guard, drawn by chance")
    parser.add_argument("--seed", type=int, default=1, help="of that chance")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file, or file:name; the beginning is enough")
    words = parser.parse_args()
    chosen: Sequence[Guard] = (
        drawn(words.mutants, words.seed)
        if words.mutants
        else [g for g in GUARDS if not words.names or any(g.title.startswith(name) for name in words.names)]
    )
    if words.changed:
        changed = set(in_changed_functions(words.changed))
        chosen = [g for g in chosen if g in changed]
    if words.done and words.done.exists():
        done = set(words.done.read_text().splitlines())
        chosen = [g for g in chosen if g.title not in done]
    for guard in chosen:
        guard.taken_out_of((ROOT / guard.file).read_text())
    survived = 0
    for guard, verdict in verdicts(chosen, words.jobs):
        explained = f" ({guard.survives})" if guard.survives and not verdict.noticed else ""
        print(f"{verdict.seconds:5.0f} s  {guard.title:60}  {verdict.text}{explained}", flush=True)
        if explained or (verdict.noticed and verdict.sound):
            if words.done:
                with words.done.open("a") as file:
                    file.write(f"{guard.title}\n")
        else:
            survived += 1
    print(f"{len(chosen)} {'mutants' if words.mutants else 'guards'}, {survived} survived unexplained")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
