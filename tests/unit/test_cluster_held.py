"""The file of a node's blocks: read back as it was written, and refused where it is damaged."""

import json
from pathlib import Path

import pytest

from cni.protocol.errors import RecordUnreadable
from cni.state import durable
from ipam.cluster import held
from ipam.cluster.held import Claim, Held, HeldBlock

SOME = Held("net", "etcd", "cluster-1", "node1", "uid-1", 16, ("10.0.0.0/16", "fd00::/64"))


def test_nothing_was_ever_written(tmp_path: Path) -> None:
    assert held.read(tmp_path / "none") is None


def test_read_back(tmp_path: Path) -> None:
    blocks = (
        HeldBlock(3, "u3", "node1"),
        HeldBlock(4, "u4", "old", held.LOST),
        HeldBlock(2**49, "u5", "node1", held.RETURNING, taken=True, tried=frozenset({"10.0.0.1", "fd00::1"}), idle=7),
    )
    whole = SOME.having(*blocks)
    for one in (
        SOME,
        whole,
        Held(
            **{
                **vars(whole),
                "claim": Claim(5, "n"),
                "looked": 9,
                "host": "h",
                "boot": "b",
                "revision": 2**63,
                "restored": 8,
            }
        ),
    ):
        held.write(tmp_path / "net", one)
        assert held.read(tmp_path / "net") == one


def test_what_is_given_from() -> None:
    some = SOME.having(
        HeldBlock(9, "", "node1"),
        HeldBlock(1, "", "node1"),
        HeldBlock(2, "", "node1", held.RETURNING),
        HeldBlock(3, "", "node1", held.LOST),
        HeldBlock(4, "", "node0"),
        HeldBlock(5, "", "node0", held.LOST),
    )
    assert (some.giving, some.draining) == ((1, 9), (4,))
    assert some.having(HeldBlock(1, "new", "node1", held.LOST)).giving == (9,)
    assert some.without(1, 4, 7).giving == (9,)
    assert some.without(4).draining == ()


def test_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held.write(tmp_path, SOME)
    assert SOME.is_ours
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "copy"}))
    read = held.read(tmp_path)
    assert read is not None
    assert not read.is_ours


@pytest.mark.parametrize(
    "change",
    [
        {"blockSize": "many"},
        {"blocks": [{"index": 1}]},
        {"blocks": [{"index": 1, "uid": "u", "node": "n", "state": "borrowed"}]},
        {"blocks": 3},
        {"claim": 7},
    ],
)
def test_of_another_version(tmp_path: Path, change: dict[str, object]) -> None:
    durable.write(tmp_path / held.FILE, SOME.as_json() | change)
    with pytest.raises(RecordUnreadable, match=r"blocks is not what this version writes"):
        held.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "no JSON", json.dumps({"schema": 1, "sha256": "0", "body": {}})])
def test_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / held.FILE).write_text(text)
    with pytest.raises(RecordUnreadable, match=r"/blocks "):
        held.read(tmp_path)
