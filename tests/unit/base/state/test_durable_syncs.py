"""The order in which state files reach the disk, because the power may fail in between."""

import os
from pathlib import Path
from typing import Any

import pytest

from base.state import durable

BODY: dict[str, Any] = {"key": {"container_id": "c1"}, "name": "é", "n": [1, 2.5, None, True], "empty": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The calls that a power cut could undo, in order; paths are below tmp_path."""
    seen = list[str]()

    def note(name: str) -> None:
        call = getattr(os, name)

        def noting(*args: Any, **more: Any) -> Any:
            paths = [Path(f"/proc/self/fd/{a}").readlink() if isinstance(a, int) else Path(a) for a in args]
            seen.append(" ".join([name, *(str(p.relative_to(tmp_path)) for p in paths if p.is_absolute())]))
            return call(*args, **more)

        monkeypatch.setattr(os, name, noting)

    for name in ("fsync", "replace", "unlink"):
        note(name)
    return seen


def test_a_file_is_on_disk_before_it_has_its_name(file: Path, steps: list[str]) -> None:
    """And its name is on disk before the caller continues."""
    durable.write(file, BODY)
    assert steps == ["fsync record.json.tmp", "replace record.json.tmp record.json", "fsync ."]


def test_a_removal_is_on_disk(file: Path, steps: list[str]) -> None:
    durable.write(file, BODY)
    steps.clear()
    durable.remove(file)
    assert steps == ["unlink record.json.tmp", "unlink record.json", "fsync ."]


def test_a_directory_is_on_disk(tmp_path: Path, steps: list[str]) -> None:
    durable.directory(tmp_path / "a" / "b")
    assert steps == ["fsync .", "fsync a"]


def test_what_is_set_aside_is_on_disk_in_both_directories(file: Path, steps: list[str]) -> None:
    durable.write(file, BODY)
    to = durable.directory(file.parent / "q")
    steps.clear()
    durable.set_aside(file, to)
    assert steps == ["replace record.json q/record.json.0", "fsync q", "fsync ."]


def test_what_is_replaced_is_on_disk_before_its_place_is_taken(file: Path, steps: list[str]) -> None:
    to = durable.directory(file.parent / "q")
    file.write_text("unreadable")
    steps.clear()
    aside = durable.replace_unreadable(file, to, lambda kept: {"kept": str(kept)})
    assert steps == ["fsync q", "fsync record.json.tmp", "replace record.json.tmp record.json", "fsync ."]
    assert (aside.read_text(), durable.read(file)) == ("unreadable", {"kept": str(aside)})
