"""The loaded runs: their parts, and the busy loops beside them."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import loaded
import soak
from covered import Tree
from reach import is_test
from support.topology import until

HARNESS = Path(loaded.__file__).parent


def test_each_run_has_the_whole_suite() -> None:
    """Each test file here is in one part of each run, and each test that boots a guest is one."""
    tree = Tree(loaded.ROOT)
    found = list(loaded.parts(tree, 2))
    assert len({part.title for part in found}) == len(found)
    named = Counter(word.partition("::")[0] for part in found for word in part.words if word.startswith("tests/"))
    in_guests = {path for path in tree.files if path.startswith("tests/lab/")}
    assert set(named) == {path for path in tree.files if is_test(path)} - in_guests
    assert {path for path, times in named.items() if times != 2} <= set(loaded.BOOTING)
    booted = {word for part in found if part.tier == "lab" for word in part.words}
    assert {test for test in loaded.guests() if not {test, test.partition("[")[0]} & booted} == set()
    assert {f"{loaded.IN_GUEST}{boot}]" for boot in soak.BOOTS} <= booted
    assert {part.later for part in found} == {0, 1}
    assert all(named <= part.covers for part in found if (named := set(part.words) & tree.files))


def test_groups_of_files() -> None:
    """A group ends as soon as it takes long enough, and the last one with the last file."""
    found = list(loaded.grouped([f"tests/system/test_{n}.py" for n in range(50)], 12))
    assert [(len(files), size) for files, size in found] == [(20, 240), (20, 240), (10, 120)]


def loops(pid: int) -> set[int]:
    """The shells that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "sh\n"}


def test_the_loops_end_with_the_sitting() -> None:
    before = loops(os.getpid())
    with loaded.busy(2):
        until(lambda: len(loops(os.getpid()) - before) == 2)
    assert loops(os.getpid()) == before


def test_the_loops_end_with_a_killed_program() -> None:
    code = "import loaded, signal\nwith loaded.busy(2): signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=HARNESS) as process:
        found = until(lambda: both if len(both := loops(process.pid)) == 2 else set[int]())
        process.send_signal(signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in found))


def test_the_page_has_a_place() -> None:
    text = soak.PAGE.read_text()
    assert text.count(loaded.BEGIN) == text.count(loaded.END) == 1
