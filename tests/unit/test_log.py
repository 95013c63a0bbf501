"""The log a configuration may ask for."""

from pathlib import Path
from typing import Any

import pytest

from cni.log import kept
from cni.spec import Request

REQUEST = Request({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0"}, b'{"name":"rail0"}')


def run(conf: dict[str, Any], *, fails: bool = False) -> list[str]:
    """One command with a warning; what is left for stderr."""
    lines = ["undid something"]
    with kept(REQUEST, {"name": "rail0", **conf}, lines):
        if fails:
            raise ValueError("no")
    return lines


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        (None, ["warning", "info"]),
        ("debug", ["debug", "warning", "info"]),
        ("warning", ["warning"]),
        ("error", []),
    ],
)
def test_levels(tmp_path: Path, level: str | None, levels: list[str]) -> None:
    log = tmp_path / "log"
    run({"logFile": str(log)} | ({"logLevel": level} if level else {}))
    lines = log.read_text().splitlines() if log.exists() else []
    assert [line.split()[1] for line in lines] == levels
    assert all("ADD rail0/c1:hpn0: " in line for line in lines)


def test_a_failure_is_an_error_and_passes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ValueError, match="no"):
        run({"logFile": str(log), "logLevel": "error"}, fails=True)
    (line,) = log.read_text().splitlines()
    assert " error ADD rail0/c1:hpn0: ValueError('no')" in line


def test_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        run({"logFile": str(log), "logLevel": "info"})
    assert len(log.read_text().splitlines()) == 6


def test_one_that_cannot_be_written_is_not_in_the_way(tmp_path: Path) -> None:
    path = str(tmp_path / "absent" / "log")
    assert run({"logFile": path})[1:] == [f"logFile {path!r} cannot be written: No such file or directory"]


@pytest.mark.parametrize("path", ["log", 7, None])
def test_no_log(path: object) -> None:
    assert run({"logFile": path}) == ["undid something"]
