"""The imports of features, by command and configuration."""

import subprocess
import sys
from pathlib import Path

import pytest

from cni import features

ROOT = Path(__file__).parents[3]
RARE = ["program", "expected", "routing", "rxe", "steering", "tuning"]


def imported(code: str) -> set[str]:
    """Return the modules of cni/features that a process has imported after this code."""
    shown = (
        "import sys; print(*(m.removeprefix('cni.features.') for m in sys.modules if m.startswith('cni.features.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{shown}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_a_start_imports_no_feature_that_few_need() -> None:
    start = imported("import cni.main, cni.commands, cni.collect, cni.kinds.macvlan, cni.kinds.sriov")
    assert "addressing" in start
    assert start.isdisjoint(RARE)


def test_a_version_imports_none() -> None:
    assert imported("import cni.main") == set()


@pytest.mark.parametrize("name", RARE)
def test_imported_when_it_is_used(name: str) -> None:
    assert name in imported(f"from cni import features; features.{name}.__doc__")


def test_no_such_feature() -> None:
    with pytest.raises(AttributeError, match="tunning"):
        features.tunning  # noqa: B018


def test_a_soft_roce_device_has_a_name_that_ucx_takes() -> None:
    """UCX truncates a longer one, and then finds no such device."""
    names = {features.rxe.name() for _ in range(100)}
    assert (len(names), {len(name) <= 15 for name in names}) == (100, {True})
