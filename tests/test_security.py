"""docs/security.md names a test for each promise: every test and file that it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"`(test_\w+|tests/[\w/.]+)`", (ROOT / "docs" / "security.md").read_text())))
TEXTS = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
TESTS = {name for text in TEXTS for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_it_names_some() -> None:
    assert "tests/attack/test_hostile_pod.py" in NAMED
    assert len(NAMED) > 50


@pytest.mark.parametrize("name", NAMED)
def test_what_it_names_is_there(name: str) -> None:
    assert name in TESTS or (ROOT / name).exists()
