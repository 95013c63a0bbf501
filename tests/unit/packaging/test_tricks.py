"""The build's tricks (packaging/tricks.py): each can be disabled, and has its row in docs/develop/packaging.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHOW = "import tricks; print(*tricks.TRICKS); print(*tricks.TRICKS.values()); print(*tricks.chosen())"


def show(without: str) -> tuple[list[str], list[str], list[str]]:
    """Return all tricks, the modules that they import, and the tricks of the build."""
    environ = {"HPN_WITHOUT": without, "PYTHONPATH": str(ROOT / "packaging")}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    every, modules, chosen = (line.split() for line in done.stdout.split("\n")[:3])
    return every, modules, chosen


def test_each_can_be_left_out() -> None:
    every, modules, chosen = show("")
    assert chosen == every
    assert sorted(modules) == sorted(
        path.stem for path in (ROOT / "packaging/startup").glob("*.py") if path.stem != "importer"
    )
    assert show("all")[2] == []
    for name in every:
        assert show(name)[2] == [other for other in every if other != name]
    assert show(f"{every[0]},{every[1]}")[2] == every[2:]


def test_what_is_no_trick() -> None:
    with pytest.raises(AssertionError, match="WITHOUT=luck: no such trick; there are: archive, "):
        show("re,luck")


def test_each_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "develop" / "packaging.md").read_text(), re.MULTILINE)
    assert rows == show("")[0]
