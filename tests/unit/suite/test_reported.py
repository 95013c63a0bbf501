"""The final report of a run of all tests: its failures and its time."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import reported
import side_by_side
from reported import Done


def suite(*cases: str, name: str = "it") -> ET.Element:
    return ET.fromstring(f"<testsuite name={name!r}>{''.join(cases)}</testsuite>")


def case(name: str, time: float, within: str = "") -> str:
    classname, _, test = name.rpartition(".")
    return f'<testcase classname="{classname}" name="{test}" time="{time}">{within}</testcase>'


def test_a_file_that_cannot_be_collected_has_a_name() -> None:
    broken = suite('<testcase classname="" name="tests.unit.test_x"><error message=""/></testcase>')
    assert reported.summary([Done("unit", "unit", 1, suites=[broken])]) == "FAILED tests.unit.test_x: \n1 failed"


@pytest.mark.parametrize(
    ("classname", "expected"),
    [("tests.test_lint", "tests/test_lint.py::x"), ("tests.unit.test_a.TestB", "tests/unit/test_a.py::TestB::x")],
)
def test_a_name_is_one_that_pytest_takes(classname: str, expected: str) -> None:
    assert reported.node_id(ET.Element("testcase", classname=classname, name="x")) == expected


def test_each_tier_has_a_budget() -> None:
    """Each tier has a budget in the table of docs/develop/testing.md, which the report reads."""
    tiers = {run.tier for run in side_by_side.runs(None, Path("/nowhere"), ())}
    assert (reported.budgets().keys(), min(reported.budgets().values()) > 0) == (tiers, True)
    assert side_by_side.SHARES.keys() == tiers


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest's tests count as themselves; the test that booted the guest counts the remaining time."""
    monkeypatch.setattr(reported, "budgets", lambda: {"unit": 2, "lab": 1})
    unit = suite(case("tests.unit.test_a.x", 40), case("tests.unit.test_a.y", 30), case("tests.unit.test_b.z", 50))
    boot, inside = (
        suite(case("tests.test_lab.b", 100)),
        suite(case("tests.lab.test_c.u", 60), case("tests.lab.test_c.v", 9)),
    )
    done = [
        Done("unit", "unit", 0, wall=240, processor=120, suites=[unit]),
        Done("b", "lab", 0, wall=120, processor=40, suites=[boot], inside=[inside]),
        Done("another", "lab", 0, wall=30, processor=21),
    ]
    assert reported.times(done).splitlines() == [
        "minutes of a processor, their budget, minutes from begin to end:",
        "     2.0     2     4.0  unit",
        "     1.0     1     2.5  lab is over its budget",
        "seconds of the 20 longest files:",
        "    70.0  tests/unit/test_a.py",
        "    69.0  tests/lab/test_c.py",
        "    50.0  tests/unit/test_b.py",
        "    31.0  tests/test_lab.py",
        "seconds of the 20 longest tests:",
        "    60.0  tests/lab/test_c.py::u in the guest of b",
        "    50.0  tests/unit/test_b.py::z",
        "    40.0  tests/unit/test_a.py::x",
        "    31.0  tests/test_lab.py::b",
        "    30.0  tests/unit/test_a.py::y",
        "     9.0  tests/lab/test_c.py::v in the guest of b",
    ]


def test_what_was_cut_off_is_no_report(tmp_path: Path) -> None:
    """The file of a run that was killed while it wrote counts as no report."""
    (tmp_path / "cut.xml").write_text("<testsuites><testsuite")
    assert (reported.suites(tmp_path / "cut.xml", "x"), reported.suites(tmp_path / "none.xml", "x")) == ([], [])


def test_the_time_of_a_process_is_that_of_all_that_it_waited_for() -> None:
    """The time includes awaited children, and the exit status stays available."""
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    words = (
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}]); sys.exit(3)",
    )
    with subprocess.Popen(words) as process:
        assert side_by_side.processor_time(process.pid) >= 0.5
        assert process.wait() == 3
    assert side_by_side.processor_time(process.pid) == 0, "somebody else has waited for it"


def test_what_the_processors_did() -> None:
    """The tests' share is the time of the processes that were awaited."""
    processors = reported.Processors()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 2: pass"], check=True)
    words = str(processors).split()
    shares = [int(word.removesuffix("%")) for word in words if word.endswith("%")]
    assert len(shares) == 3
    assert shares[0] > 0
    assert sum(shares) in (99, 100, 101)
