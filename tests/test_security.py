"""Each promise of docs/user/security.md and each failure of docs/user/cluster-addresses.md names an existing test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"`(test_\w+|tests/[\w/.]+)`")
SHARED = (ROOT / "docs" / "user" / "cluster-addresses.md").read_text().partition("## When something fails")[2]
FAILURES = [row for row in SHARED.partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]
NAMED = sorted(
    {*_NAME.findall((ROOT / "docs" / "user" / "security.md").read_text()), *_NAME.findall("\n".join(FAILURES))}
)
TEXTS = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
TESTS = {name for text in TEXTS for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_it_names_some() -> None:
    assert "tests/attack/test_hostile_pod.py" in NAMED
    assert len(NAMED) > 50


def test_each_failure_names_a_test() -> None:
    assert len(FAILURES) > 15
    assert [row for row in FAILURES if not _NAME.search(row.rpartition(" | ")[2])] == []


@pytest.mark.parametrize("name", NAMED)
def test_what_it_names_is_there(name: str) -> None:
    assert name in TESTS or (ROOT / name).exists()
