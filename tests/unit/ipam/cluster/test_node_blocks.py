"""The file of a node's blocks: read back as written, and refused if damaged."""

import json
from pathlib import Path

import pytest

from base.protocol.errors import RecordUnreadable
from base.state import durable
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import Exhausted, NodeBlocks, OwnedBlock, PendingClaim

SOME = NodeBlocks("net", "etcd", "cluster-1", "node1", "uid-1", 16, ("10.0.0.0/16", "fd00::/64"))


def test_nothing_was_ever_written(tmp_path: Path) -> None:
    assert node_blocks.read(tmp_path / "none") is None


def test_read_back(tmp_path: Path) -> None:
    blocks = (
        OwnedBlock(3, "u3", "node1"),
        OwnedBlock(4, "u4", "old", node_blocks.LOST),
        OwnedBlock(
            2**49, "u5", "node1", node_blocks.RETURNING, taken=True, tried=frozenset({"10.0.0.1", "fd00::1"}), idle=7
        ),
    )
    whole = SOME.having(*blocks)
    for one in (
        SOME,
        whole,
        NodeBlocks(
            **{
                **vars(whole),
                "claim": PendingClaim(5, "n"),
                "looked": 9,
                "host": "h",
                "boot": "b",
                "revision": 2**63,
                "restored": 8,
                "exhausted": Exhausted("digest", "2 nodes own all 16 blocks", 10, 40),
            }
        ),
    ):
        node_blocks.write(tmp_path / "net", one)
        assert node_blocks.read(tmp_path / "net") == one


def test_what_is_given_from() -> None:
    some = SOME.having(
        OwnedBlock(9, "", "node1"),
        OwnedBlock(1, "", "node1"),
        OwnedBlock(2, "", "node1", node_blocks.RETURNING),
        OwnedBlock(3, "", "node1", node_blocks.LOST),
        OwnedBlock(4, "", "node0"),
        OwnedBlock(5, "", "node0", node_blocks.LOST),
    )
    assert (some.giving, some.draining) == ((1, 9), (4,))
    assert some.having(OwnedBlock(1, "new", "node1", node_blocks.LOST)).giving == (9,)
    assert some.without(1, 4, 7).giving == (9,)
    assert some.without(4).draining == ()


def test_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node_blocks.write(tmp_path, SOME)
    assert SOME.is_ours
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "copy"}))
    read = node_blocks.read(tmp_path)
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
    durable.write(tmp_path / node_blocks.FILE, SOME.to_json() | change)
    with pytest.raises(RecordUnreadable, match=r"blocks is not what this version writes"):
        node_blocks.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "no JSON", json.dumps({"schema": 1, "sha256": "0", "body": {}})])
def test_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / node_blocks.FILE).write_text(text)
    with pytest.raises(RecordUnreadable, match=r"/blocks "):
        node_blocks.read(tmp_path)


def test_the_former_name_of_the_backend(tmp_path: Path) -> None:
    """A file of a build that called it ``store``."""
    mine = NodeBlocks("net", "etcd", "cluster-1", "node1", "uid", 16)
    body = mine.to_json()
    durable.write(f"{tmp_path}/{node_blocks.FILE}", {"store": body.pop("backend"), **body})
    assert node_blocks.read(tmp_path) == mine


def test_the_former_record_of_an_exhausted_pool(tmp_path: Path) -> None:
    """A file with counts in place of the reason: the node asks the backend once more."""
    mine = NodeBlocks("net", "etcd", "cluster-1", "node1", "uid", 16)
    counts = {"wanted": "digest", "blocks": 16, "nodes": 2, "at": 10, "until": 40, "suspected": 1, "available": 90}
    durable.write(f"{tmp_path}/{node_blocks.FILE}", mine.to_json() | {"exhausted": counts})
    assert node_blocks.read(tmp_path) == mine
