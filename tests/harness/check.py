"""Lint, and the tests that a change touches, in five minutes: the check before each commit.

    packaging/venv python tests/harness/check.py            # make check; BASE=COMMIT sets the base of comparison

A change is the difference from the point where it left main, committed or not.  The tests nearest to it run first
(touched.py), the shortest of equally near ones before others.  When the time is over, the remaining tests are
named.  Then guards of the changed files are removed (guards.py) while time is left, those of changed functions first.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import guarded
import pytest
import side_by_side as beside
import touched
from places_of_tests import in_common_places, in_memory, on_disk
from reported import Done, summary
from side_by_side import Run, Runs

sys.path += [str(beside.ROOT), str(beside.ROOT / "tests")]
from test_lab import BOOTS

PROCESSORS = len(os.sched_getaffinity(0))
LIMIT = 300.0
PATIENCE = 15.0  # until a test that does not end is interrupted
# A run that ends early by itself, one that is not started any more, one that is killed.
CUT = (LATE := int(pytest.ExitCode.INTERRUPTED), 130, -signal.SIGINT, -signal.SIGKILL)
SHOWN = 8
KEPT = ("-o", "tmp_path_retention_policy=failed")
AT_ONCE = 2 * PROCESSORS  # guards: a minute, or less
GUARDS = 90.0  # of that for guards, if the files have any
BATCH = 30.0  # pytest takes two seconds to start
JOBS = PROCESSORS + (PROCESSORS + 1) // 2  # tests wait for a third of their time


def batches(works: Iterable[touched.Work]) -> Iterator[tuple[str, ...]]:
    """Batches in their order; the first are short, so that a test that notices a mistake reports it soon."""
    batch, took, most = list[str](), 0.0, BATCH / 4
    for work in works:
        if batch and took + work.seconds > most:
            yield tuple(batch)
            batch, took, most = [], 0.0, min(BATCH, most * 1.5)
        batch += work.tests
        took += work.seconds
    if batch:
        yield tuple(batch)


def tests(runs: Sequence[Run], until: float) -> list[Done]:
    """Run them, several at once, until the time is over."""
    under_way = Runs()
    os.environ["HPN_UNTIL"] = f"{until}"  # each ends by itself after its current test
    clock = Timer(until + PATIENCE - time.monotonic(), under_way.end)
    clock.start()
    threads = ThreadPoolExecutor(JOBS)
    try:
        return [*threads.map(lambda run: ended(run, under_way, until), runs)]
    except KeyboardInterrupt:
        threads.shutdown(wait=False, cancel_futures=True)
        under_way.end()
        raise
    finally:
        clock.cancel()
        threads.shutdown()
        del os.environ["HPN_UNTIL"]


def ended(run: Run, under_way: Runs, until: float) -> Done:
    if time.monotonic() > until:
        return Done(run.name, run.tier, LATE)
    return under_way.complete(run, run.folder.with_suffix(".xml"))


def guards(names: Sequence[str], alone: tuple[str, ...], until: float) -> tuple[int, int]:
    """Remove guards, several at once, while time is left; return the numbers of removed and of unnoticed guards."""
    taken = unnoticed = 0
    while taken < len(names) and time.monotonic() < until:
        some = names[taken : taken + AT_ONCE]
        words = [*alone, sys.executable, "tests/harness/guards.py", "-j", f"{PROCESSORS}", *some]
        with subprocess.Popen(
            words, cwd=beside.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout
            try:
                lines = [line.rstrip() for line in run.stdout if " s  " in line]
            except KeyboardInterrupt:
                run.terminate()
                raise
        print(*lines, sep="\n", flush=True)
        bad = sum(line.endswith("SURVIVED") or "FAILS WITHOUT IT TOO" in line for line in lines)
        if len(lines) < len(some) or run.returncode != (bad > 0):
            raise SystemExit(f"{' '.join(words)} failed")
        taken, unnoticed = taken + len(some), unnoticed + bad
    return taken, unnoticed


def unfinished(run: Run, done: Done) -> list[str]:
    """The files of an interrupted run from its current one on."""
    files = [word.partition("::")[0] for word in run.words if word.startswith("tests/")]
    seen = {name.partition("::")[0] for name, _, _ in done.cases()}
    return files[max((number for number, file in enumerate(files) if file in seen), default=0) :]


def shortened(files: Iterable[str]) -> str:
    first, more = sorted(files)[:SHOWN], sorted(files)[SHOWN:]
    return ", ".join(first) + (f" and {len(more)} more" if more else "")


def named(batch: tuple[str, ...]) -> str:
    return batch[0] + (f" and {len(batch) - 1} more" if len(batch) > 1 else "")


def main() -> int:
    for sent in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sent, signal.default_int_handler)
    began = time.monotonic()
    since = touched.base()
    files = touched.changed(since)
    far = touched.distances(files)
    todo = [] if os.geteuid() else [guard.title for guard in touched.guards(since, files)]
    for_tests = LIMIT - PATIENCE - beside.ENDING - (GUARDS if todo else 0)
    until = began + for_tests
    works = [*touched.works(files, far, guarded.GUARDS, touched.seconds())]
    chosen, left = touched.chosen(works, (for_tests - BATCH) * JOBS)
    late = {work.file for work in left} - {work.file for work in chosen}
    print(f"{len(files)} files differ from {touched.git('log', '-1', '--format=%h (%s)', since) or 'nothing'}")
    print(f"{len({work.file for work in works})} test files may notice; no time for {len(late)} of them", flush=True)
    bad = list[Done]()
    with on_disk(bad) as disk, in_memory(disk, bad) as memory, in_common_places() as alone:
        runs = [
            Run(named(batch), "", (*batch, *KEPT), (memory or disk) / f"{number}", alone=alone)
            for number, batch in enumerate([(touched.LINT,), touched.ALWAYS, *batches(chosen)])
        ]
        try:
            done = tests(runs, until)
            over = time.monotonic() > until
            cut = [(run, one) for run, one in zip(runs, done, strict=True) if over and one.status in CUT]
            bad += [one for one in done if one.status and one not in [late for _, late in cut]]
            taken, unnoticed = guards(todo, alone, began + LIMIT - PATIENCE - beside.ENDING)
        except KeyboardInterrupt:
            print("interrupted")
            return 130
    late |= {file for run, one in cut for file in unfinished(run, one)}
    said = summary(done)
    print(f"\n{said} in {time.monotonic() - began:.0f} s")
    if todo:
        print(f"{taken} of {len(todo)} guards of these files taken out, {unnoticed} unnoticed")
    if late:
        print(
            f"no time for {len(late)} of {len({w.file for w in works})} test files: {shortened(late)}; all: make test"
        )
    for name in touched.elsewhere(far, BOOTS):
        print(f"not run here: make test PYTEST_ARGS='{name}'")
    return 1 if bad or unnoticed or "FAILED " in said else 0


if __name__ == "__main__":
    sys.exit(main())
