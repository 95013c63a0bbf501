"""Fixtures of all tiers: which tiers must run, and the check that a test leaves nothing behind."""

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import drawn
import pytest

from base.state import policy, remembered


def require(tier: str, missing: str) -> None:
    """Skip the test because something is missing; fail it if HPN_REQUIRE names the tier, as in CI."""
    if tier in os.environ.get("HPN_REQUIRE", "").split(","):
        pytest.fail(f"tier {tier} must run here and cannot: {missing}", pytrace=False)
    pytest.skip(missing)


def pytest_configure() -> None:
    """Let SIGTERM end a run as Ctrl-C does: fixtures then remove their files and namespaces."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # In any other language argparse searches for translations, in 32 files for each parser: half of a parser's time.
    os.environ["LANGUAGE"] = "C"
    drawn.draw()
    # The process has one descriptor for it from now to its end.
    remembered._FEW = 0
    remembered.files(f"{Path(__file__).parent}", lambda _: None)


def pytest_report_header() -> str:
    return f"{drawn.VARIABLE}={drawn.draw()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a failure, print how to draw the same cases again."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"to draw the same cases again: {drawn.VARIABLE}={drawn.draw()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note in the report how many drawn cases the test took."""
    drawn.TAKEN.clear()
    try:
        yield
    finally:
        item.user_properties += drawn.TAKEN.items()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start no other test after HPN_UNTIL (tests/harness/check.py)."""
    if time.monotonic() > float(os.environ.get("HPN_UNTIL", "inf")):
        item.session.shouldstop = "there is no more time"


def pytest_collection_finish() -> None:
    """Exclude imported objects from the garbage collector, which would otherwise check all of them each time."""
    gc.freeze()


@pytest.fixture
def node_file(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The policy file, which lets configurations name paths in the test's own directory."""
    file = tmp_path_factory.mktemp("node") / "hpn.json"
    file.write_text(json.dumps({"allowedPaths": {key: [str(tmp_path)] for key in policy.DEFAULTS}}))
    monkeypatch.setattr(policy, "FILE", str(file))
    return file


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test: no additional file descriptor, thread, child process or namespace."""
    before = _belongings()
    yield
    # Collect garbage first, which reports its open files in a ResourceWarning.  Without leftovers there is no need: a
    # collection after every test took a quarter of the unit tier's time.
    if _more(before):
        gc.collect()
    # The kernel removes a link some time after our answer (base/kernel/rtnl.py).
    deadline = time.monotonic() + 60
    while (left := _more(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"left behind: {left}"


def _more(before: dict[str, set[str]]) -> dict[str, set[str]]:
    return {what: new for what, now in _belongings().items() if (new := now - before[what])}


def _belongings() -> dict[str, set[str]]:
    # Another run of tests on this machine has another number in its names.
    pid = os.getpid()
    return {
        "file descriptors": {f"{fd} -> {target}" for fd, target in _descriptors()},
        "threads": set(os.listdir("/proc/self/task")),
        "children": set(Path(f"/proc/self/task/{pid}/children").read_text().split()),
        "namespaces": {name for name in _names("/run/netns") if name.startswith(f"hpn-test-{pid}")},
    }


def _names(directory: str) -> list[str]:
    """The names in a directory, if it exists; another user's directory has none of ours."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, PermissionError):
        return []


def _descriptors() -> Iterator[tuple[str, str]]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the descriptor that listed this directory
            continue
        if not target.startswith(("/dev/pts", "pipe:")):  # pytest's own capturing
            yield fd, target
