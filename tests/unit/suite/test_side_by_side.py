"""The runs of one `make test` go side by side, and count as one: none is lost, and one failure fails all."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from textwrap import dedent
from threading import Thread
from xml.etree import ElementTree as ET

import drawn
import places_of_tests
import pytest
import reported
import side_by_side
from reported import Done
from test_lab import BOOTS

LAB = '''
    import os, pytest
    INSIDE = """<testsuites><testsuite name="pytest">
        <testcase classname="tests.lab.test_sriov" name="test_a" time="1000.0"/>
        <testcase classname="tests.lab.test_sriov" name="test_b" time="500.0"><failure message="no VF"/></testcase>
    </testsuite></testsuites>"""
    @pytest.mark.parametrize("boot", ["VFs", "no namespaces"])
    def test_in_the_lab(tmp_path, boot):
        print("booted", boot, "drew by", os.environ["HPN_DRAW"])
        if boot != "VFs":
            (tmp_path / "junit.xml").write_text(INSIDE)
        assert boot == "VFs", "of two\\nlines"
'''
OTHERS = """
    import pytest
    def test_passes(): pass
    def test_skipped(): pytest.skip("for want of it")
"""
CLUSTER = """
    import os
    def test_is_up(): assert os.path.exists("begun") or os.geteuid()
"""
PASSES = "def test_passes(): pass"
MAKEFILE = """
.PHONY: binary plain
binary: ; @sleep 2 && touch frozen
plain: ; @{python} -m pytest plain $(PYTEST_ARGS)
"""
*FIRST, BUILD = (build.relative_to(side_by_side.ROOT) for build in side_by_side.BUILDS)
ON_DISK = """
    import os
    def test_on_disk(tmp_path): assert tmp_path.stat().st_dev == os.stat(".").st_dev
"""
TIERS = {
    "tests/netns": PASSES,
    "tests/unit": PASSES,
    "tests/system": ON_DISK,
    "tests/cluster": CLUSTER,
    "tests/attack": PASSES,
    "plain": PASSES,
}
KILLED = """
    import os
    def test_a_cut(): os.kill(os.getpid(), 9)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder, text in TIERS.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"test_{Path(folder).name}.py").write_text(dedent(text))
    for build in (*FIRST, BUILD):
        (tmp_path / build).parent.mkdir(parents=True, exist_ok=True)
    for build in FIRST:
        (tmp_path / build).write_text("#!/bin/sh\nexit 1\n")  # the last build runs anyway
    (tmp_path / BUILD).write_text("#!/bin/sh\ntouch begun\nexec sleep 3600\n")
    for build in (*FIRST, BUILD):
        (tmp_path / build).chmod(0o755)
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    (tmp_path / "tests/harness").mkdir()
    for module in (side_by_side, reported, drawn, places_of_tests):
        shutil.copy(module.__file__, tmp_path / "tests/harness")
    page = tmp_path / "docs" / "develop" / reported.TIERS.name
    page.parent.mkdir(parents=True)
    shutil.copy(reported.TIERS, page)
    for file, text in zip(side_by_side.BOOTING, (LAB, KILLED), strict=True):
        (tmp_path / file).write_text(dedent(text))
    (tmp_path / "tests/test_others.py").write_text(dedent(OTHERS))
    return tmp_path


def started(tree: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "tests/harness/side_by_side.py", *words]
    quickly = {**os.environ, drawn.VARIABLE: "all", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(tree)}
    quickly.pop("PYTEST_DEBUG_TEMPROOT", None)  # set by the outer run
    with ignored(signal.SIGINT):
        return subprocess.Popen(
            command, cwd=tree, env=quickly, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal, as a shell does for a background command; its children inherit that."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_what_fails_anywhere_is_said_at_the_end(tree: Path) -> None:
    with started(tree, "-j", "2", "--junitxml=junit.xml") as run:
        output, _ = run.communicate()
    assert run.returncode == 1
    assert "booted no namespaces" in output
    assert "booted VFs" not in output, "what passed has nothing to say"
    inside, failed, count, runs = output.splitlines()[-4:]
    boot = "tests/test_lab.py::test_in_the_lab[no namespaces]"
    assert inside == f"FAILED tests/lab/test_sriov.py::test_b in the guest of {boot}: no VF"
    assert failed.startswith(f"FAILED {boot}: AssertionError: of two")
    assert count.startswith("9 passed, 2 failed, 1 skipped in ")
    # All processes of the run draw by one day.
    assert output.startswith(count.rpartition(", ")[2] + "\n")
    assert f"drew by {count.rpartition('=')[2]}" in output
    # This includes a test without a report.
    assert set(runs.removeprefix("failed: ").split("; ")) == {
        *("tests/test_lab.py::test_in_the_lab[no namespaces]", "tests/test_power_cut.py::test_a_cut")
    }
    cases = {case.get("name") for case in ET.parse(tree / "junit.xml").getroot().iter("testcase")}
    assert cases == {
        "test_a",
        "test_b",
        "test_in_the_lab[VFs]",
        "test_in_the_lab[no namespaces]",
        "test_passes",
        "test_skipped",
        "test_is_up",
        "test_on_disk",
    }


AT_ONCE = """
    import pathlib, time
    def test_it():
        assert "{tier}" in ("netns", "unit", "plain") or pathlib.Path("frozen").exists()
        for name in {common}:
            assert not list(pathlib.Path(name).iterdir()), name
            pathlib.Path(name, "hpn-side-by-side").touch()
        pathlib.Path("begun-{tier}").touch()
        until = time.monotonic() + 60
        while len(list(pathlib.Path().glob("begun-*"))) < 6:
            assert time.monotonic() < until, "the others have not begun"
            time.sleep(0.05)
        for name in {common}: assert len(list(pathlib.Path(name).iterdir())) == 1, name
"""


def test_each_file_of_the_cluster_is_in_one_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a folder too, as pytest would collect it."""
    (tmp_path / "tests/cluster/nodes").mkdir(parents=True)
    files = [f"tests/cluster/{name}.py" for name in ("nodes/test_d", "test_a", "test_b", "test_c")]
    for file in files:
        (tmp_path / file).touch()
    monkeypatch.setattr(side_by_side, "ROOT", tmp_path)
    halves = [run.words for run in side_by_side.clusters(tmp_path)]
    assert sorted(file for half in halves for file in half) == files
    assert [len(half) for half in halves] == [2, 2]


def test_two_days_boot_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run boots some guests, and tests the lab itself."""
    tests = [f"tests/test_lab.py::test_in_the_lab[{boot}]" for boot in BOOTS] + ["tests/test_lab.py::test_the_limit[]"]
    always = {f"tests/test_lab.py::test_in_the_lab[{boot}]" for boot in side_by_side.EACH_RUN} | {tests[-1]}
    of_days = []
    for day in ("2026-12-31", "2027-01-01"):
        monkeypatch.setenv(drawn.VARIABLE, day)
        of_days.append(side_by_side.todays(tests))
    assert set(of_days[0]) & set(of_days[1]) == always <= {*tests}
    assert set(of_days[0]) | set(of_days[1]) == {*tests}
    assert abs(len(of_days[0]) - len(of_days[1])) <= 1
    assert [one for one in tests if one in of_days[0]] == of_days[0]
    monkeypatch.setenv(drawn.VARIABLE, f"{day},all")
    assert side_by_side.todays(tests) == tests


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_tiers_go_side_by_side_and_do_not_see_each_other(tree: Path) -> None:
    """The tiers run at once, and hide common places from each other and from this machine.

    The cluster's folders are not in common places.  A tier that needs the binary begins when it is built.
    """
    before = [Path(place).exists() for place in places_of_tests.COMMON]
    for folder, tier in ((folder, Path(folder).name) for folder in TIERS):
        common = () if tier == "cluster" else places_of_tests.COMMON
        (tree / folder / f"test_{tier}.py").write_text(dedent(AT_ONCE).format(tier=tier, common=common))
    with started(tree, "-j", "7") as run:
        output, _ = run.communicate()
    # One failure is a test that boots a guest, the other a test in that guest.
    assert "passed, 2 failed" in output, output
    assert not [place for place in places_of_tests.COMMON if Path(place, "hpn-side-by-side").exists()]
    assert [Path(place).exists() for place in places_of_tests.COMMON] == before


FOLDERS = """
    import subprocess
    def test_passes(tmp_path): (tmp_path / "written").write_text("it passed")
    def test_fails(tmp_path):
        with (tmp_path / "written").open("w") as file:
            subprocess.run(["stat", "-f", "-c", "%T", tmp_path], stdout=file)
        raise AssertionError(f"in {tmp_path}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_folders_are_in_memory_and_what_failed_is_kept(tree: Path) -> None:
    """A failed test's folder is kept under the name in the report."""
    (tree / "tests/test_others.py").write_text(dedent(FOLDERS))
    with started(tree) as run:
        output, _ = run.communicate()
    start = "FAILED tests/test_others.py::test_fails: AssertionError: in "
    (folder,) = (Path(line.removeprefix(start)) for line in output.splitlines() if line.startswith(start))
    kept = folder.parents[2]
    assert f"what failed left its files in {kept}" in output.splitlines()
    assert {path.name for path in kept.iterdir()} >= {"m"}
    assert not [*kept.glob("*/test_on_disk*")], "of what passed nothing is left"
    assert (folder / "written").read_text() == "tmpfs\n"
    # The mounts do not lengthen the paths of sockets.
    assert len(str(folder.parent.relative_to(tree))) <= len("pytest-of-root/pytest-0")
    assert not [*folder.parent.glob("test_passes*")]
    assert str(tree) not in Path("/proc/mounts").read_text()


def test_what_needs_no_binary_waits_for_none(tmp_path: Path) -> None:
    """Without a build, as in `make check`, tests do not wait for a binary."""
    it, done = side_by_side.Run("it", "", ("--version",), tmp_path / "folder"), list[Done]()
    thread = Thread(target=lambda: done.append(side_by_side.Runs().complete(it, tmp_path / "it.xml")), daemon=True)
    thread.start()
    thread.join(60)
    assert [one.status for one in done] == [0]


def test_without_a_binary(tree: Path) -> None:
    """If the build fails, tests that need the binary fail without a run or a wait."""
    (tree / "Makefile").write_text(".PHONY: plain\nbinary plain: ; @echo no compiler; exit 1\n")
    with started(tree, "-j", "1") as run:
        output, _ = run.communicate()
    assert run.returncode == 1
    assert "no compiler" in output.splitlines()
    failed = {"binary", "plain", "system", "cluster 1", "attack"}
    assert set(output.splitlines()[-1].removeprefix("failed: ").split("; ")) > failed
    assert "3 passed, 1 skipped in " in output.splitlines()[-2]


IN_THE_END = """
    import pathlib, time
    def pytest_terminal_summary(terminalreporter):
        if terminalreporter.config.option.collectonly: return
        terminalreporter.section("what failed")
        terminalreporter.write_line("first of two")
        until = time.monotonic() + 60
        while not pathlib.Path("unit-ended").exists() and time.monotonic() < until: time.sleep(0.05)
        time.sleep(1)
        terminalreporter.write_line("second of two")
"""
ENDS = """
    import pathlib
    def test_ends(): pathlib.Path("unit-ended").touch()
"""


def test_what_failed_in_a_tier_is_shown_together(tree: Path) -> None:
    (tree / "tests/netns/conftest.py").write_text(dedent(IN_THE_END))
    (tree / "tests/netns/test_netns.py").write_text("def test_fails(): raise AssertionError")
    (tree / "tests/unit/test_unit.py").write_text(dedent(ENDS))
    with started(tree, "-j", "3") as run:
        output, _ = run.communicate()
    assert "first of two\nsecond of two\n" in output


def test_what_there_is_room_for_goes_beside() -> None:
    """A run starts if its share fits; a run larger than the whole room goes alone."""
    room, entered = side_by_side.Room(100), Queue[int]()

    def follow(share: int) -> None:
        room.enter(share)
        entered.put(share)

    room.enter(70)
    room.enter(30)
    Thread(target=follow, args=(150,), daemon=True).start()
    room.leave(30)
    with pytest.raises(Empty):
        entered.get(timeout=0.2)  # time: nothing is to come
    room.leave(70)
    assert entered.get(timeout=60) == 150
    Thread(target=follow, args=(1,), daemon=True).start()
    with pytest.raises(Empty):
        entered.get(timeout=0.2)  # time: nothing is to come
    room.leave(150)
    assert entered.get(timeout=60) == 1


def test_a_file_that_cannot_be_read_is_a_failure(tree: Path) -> None:
    (tree / "tests/test_lab.py").write_text("import no_such_module")
    with started(tree) as run:
        output, _ = run.communicate()
    assert run.returncode == 1
    assert "no_such_module" in output


def test_an_end_ends_all_and_what_they_started(tree: Path) -> None:
    """A signal of CI, or ^C of a person, ends all runs and the processes that they started."""
    os.mkfifo(tree / "living")
    waits = "import subprocess\ndef test_it(): subprocess.run('echo; exec sleep 3600 >living', shell=True, check=True)"
    # The last output has no line end.
    waits += "\nimport atexit, os\natexit.register(os.write, 1, b'cut of')"
    for file in (*side_by_side.BOOTING, "tests/test_others.py"):
        (tree / file).write_text(waits)
    os.mkfifo(tree / "building")
    (tree / BUILD).write_text("#!/bin/sh\nexec sleep 3600 >building\n")
    with started(tree, "-j", "2") as run, ExitStack() as stack:
        # Only root builds.
        names = ("living",) if os.geteuid() else ("building", "living")
        pipes = [stack.enter_context((tree / name).open()) for name in names]
        run.terminate()
        assert {pipe.read() for pipe in pipes} == {""}, "every one that could write has ended"
        output, _ = run.communicate()
    assert run.returncode == 130
    lines = output.splitlines()
    assert lines[-1] == "interrupted"
    assert {line for line in lines if "cut of" in line} <= {"cut of"}
