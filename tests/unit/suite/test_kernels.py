"""docs/user/install.md lists the kernel features that the program uses, existing tests, and every version in code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctl.doctor.checks import devices

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "user" / "install.md").read_text().partition("\n## Kernels\n")[2].partition("\n## ")[0]
FILES = [
    *(
        path
        for folder in ("base", "hardware", "cni", "ipam", "agent", "node", "ctl")
        for path in (ROOT / folder).rglob("*.py")
    ),
    *(ROOT / "packaging/launcher").glob("*.c"),
]
CODE = "\n".join(path.read_text() for path in FILES)
_QUOTED = re.compile(r"`([^`]+)`")


def rows() -> Iterator[tuple[str, str, str]]:
    """Return for each row the feature, its first version, and the test."""
    for line in PAGE.splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| feature ")):
            feature, since, _, test = line.strip("|").split("|")
            yield feature, since, test


ROWS = list(rows())


@pytest.mark.parametrize(("feature", "since", "test"), ROWS, ids=[feature.strip()[:40] for feature, _, _ in ROWS])
def test_a_row(feature: str, since: str, test: str) -> None:
    names = _QUOTED.findall(feature)
    assert names
    assert [name for name in names if name not in CODE] == []
    assert re.search(r"\b[3-9]\.\d+\b", since)
    path, _, name = _QUOTED.findall(test)[0].partition("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"


def test_every_kernel_that_the_code_names_is_on_the_page() -> None:
    named = set(re.findall(r"Linux (\d+\.\d+)", CODE))
    assert {"5.14", "6.15"} <= named
    assert named - set(re.findall(r"\b\d+\.\d+\b", PAGE)) == set()


def test_the_oldest_that_is_advised_is_the_doctors() -> None:
    advised = re.search(r"Take Linux (\d+)\.(\d+) or later", PAGE)
    assert advised
    assert tuple(map(int, advised.groups())) == devices._OLDEST
