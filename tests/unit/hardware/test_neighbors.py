"""The file of neighbors: for one boot, and for this program's own values only."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.state import durable
from hardware import neighbors
from hardware.neighbors import Neighbor

ONE = Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1/1", "leaf1", vlan=7, ttl=120, speed=400, heard=1000)


def test_kept_for_one_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "neighbors.json"
    assert neighbors.read(file) == {}
    neighbors.write({"0000:3b:00.0": ONE}, file)
    assert neighbors.read(file) == {"0000:3b:00.0": ONE}
    monkeypatch.setattr(durable, "boot_id", lambda: "another")
    assert neighbors.read(file) == {}
    neighbors.forget(file)
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema":1,"sha256":"","body":{}}'])
def test_a_file_that_is_not_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / "neighbors.json").write_text(text)
    assert neighbors.read(tmp_path / "neighbors.json") == {}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"more": 1}, "other members"),
        ({"ttl": True}, "ttl is of another type"),
        ({"ttl": -1}, "ttl is out of its range"),
        ({"vlan": 65536}, "vlan is out of its range"),
        ({"heard": 1 << 41}, "heard is out of its range"),
        ({"name": 7}, "name is of another type"),
        ({"name": "x" * 256}, "name is too long"),
        ({"port": "a\nb"}, "port is too long, or not printable"),
    ],
)
def test_what_is_no_neighbor(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        neighbors.parsed(neighbors.document(ONE) | changed)
    with pytest.raises(ValueError, match="other members"):
        neighbors.parsed([])


def test_its_age() -> None:
    assert [ONE.is_current(now) for now in (1000, 1119, 1120, 900)] == [True, True, False, True]
    assert ONE.shown(1300) == {
        "leaf": "leaf1",
        "leafPort": "Eth1/1",
        "chassis": {"type": "mac", "value": "02:00:00:00:00:01", "name": "leaf1"},
        "port": {"type": "ifname", "value": "Eth1/1", "description": ""},
        "vlan": 7,
        "maxFrame": None,
        "speed": 400,
        "ttl": 120,
        "age": 300,
        "current": False,
    }
    assert replace(ONE, heard=5, ttl=1).essence == ONE.essence
