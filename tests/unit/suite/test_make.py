"""The Makefile: `make test` builds what the named tests need, and installs all needs before the first test."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import side_by_side
from conftest import require

ROOT = Path(__file__).parents[3]


def built(arguments: str | None) -> set[str]:
    """The builds that `make test` makes before the first test."""
    if not shutil.which("make"):
        require("unit", "make")
    environ = {name: value for name, value in os.environ.items() if not re.match("MAKE|PYTEST_ARGS|ARCH|JUNIT", name)}
    given = [] if arguments is None else [f"PYTEST_ARGS={arguments}"]
    words = ["make", "--dry-run", "--always-make", "test", *given]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    marks = {"binary": "packaging/venv pyinstaller ", "peers": "$(netns-fixtures/peers)"}
    return {name for name, mark in marks.items() if mark in done.stdout}


@pytest.mark.parametrize("tier", side_by_side.TIERS)
def test_builds_of_a_tier(tier: str) -> None:
    """A tier of WITHOUT_BINARY builds none; only the system tier has real plugins beside it."""
    binary = set() if tier in side_by_side.WITHOUT_BINARY else {"binary"}
    assert built(f"tests/{tier}") == binary | ({"peers"} if tier == "system" else set())


@pytest.mark.parametrize("file", side_by_side.BOOTING)
def test_builds_of_a_guest(file: str) -> None:
    """Some guests run the binary.  The name of a boot can have spaces."""
    assert built(shlex.quote(f"{file}::test_in_the_lab[hpn node]")) == {"binary"}


@pytest.mark.parametrize(
    ("arguments", "builds"),
    [
        pytest.param("-k 'spec or name' tests/unit/base tests/test_pages.py::test_links", set(), id="two of unit"),
        pytest.param("./tests/unit './tests/netns'", set(), id="by paths from here"),
        pytest.param("tests/netns tests/attack/test_hostile_pod.py", {"binary"}, id="of two tiers"),
        pytest.param("tests/unit tests/system", {"binary", "peers"}, id="of all three kinds"),
        pytest.param("-k mtu", {"binary", "peers"}, id="any tests"),
        pytest.param("tests", {"binary", "peers"}, id="all tests"),
        pytest.param(None, {"peers"}, id="side by side, which builds the binary itself"),
    ],
)
def test_builds(arguments: str | None, builds: set[str]) -> None:
    assert built(arguments) == builds


def test_all_needs_are_installed_first() -> None:
    """`make test` installs each need of netns-fixtures/setup, except those of other targets."""
    cases = (ROOT / "netns-fixtures" / "setup").read_text().partition("works() {")[2].partition("esac")[0]
    known = set(re.findall(r"^ {8}([a-z0-9-]+)\) ", cases, re.MULTILINE))
    found = re.search(r"^NEEDS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    others = {"make", "python", "net", "trace", "cross", "qemu-arm64"}  # earlier ones, benchmarks, ARCH=arm64
    assert known - others == set(found[1].split())
