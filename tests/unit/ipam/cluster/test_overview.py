"""The overview of each network in the backend."""

from typing import Any

import pytest

from base.protocol.spec import Json
from ipam.cluster import BLOCK, POOL, Document
from ipam.cluster.rules.documents import Block, PoolLayout
from ipam.cluster.rules.overview import Overview, blocks_in, named, overviews, spans_in

SUBNETS = ("10.1.0.0/24", "fd00:1::/64")


def block(index: int, node: str = "node1", **more: Any) -> Block:
    return Block("net", index, 16, node, f"uid-{node}", "nonce", **more)


def stored(kind: str, name: str, body: Json) -> Document:
    return Document(kind, name, body, "uid", "1")


def layout(network: str = "net", subnets: tuple[str, ...] = SUBNETS) -> Document:
    one = PoolLayout(network, 16, subnets)
    return stored(POOL, network, one.to_json())


def held(*blocks: Block) -> list[Document]:
    return [stored(BLOCK, one.name, one.to_json()) for one in blocks]


def survey(*blocks: Block) -> Overview:
    (one,) = overviews([layout()], held(*blocks))
    return one


def words(subnet: str, *indexes: int) -> list[str]:
    return [str(span) for span in spans_in(subnet, [block(index) for index in indexes])]


def test_networks_by_name() -> None:
    other = Block("other", 3, 8, "node9", "", "nonce")
    found = overviews([layout(), layout("empty")], held(block(2), block(0), other))
    assert [(one.network, [b.index for b in one.blocks], one.count) for one in found] == [
        ("empty", [], 16),
        ("net", [0, 2], 16),
        ("other", [3], None),
    ]
    assert named(found, "net") == found[1]
    assert named(found, "ne") is None


def test_by_node() -> None:
    found = survey(block(5), block(1, "node2", suspect=1000), block(0))
    assert {node: [b.index for b in blocks] for node, blocks in found.nodes.items()} == {"node1": [0, 5], "node2": [1]}
    assert [b.index for b in found.suspects] == [1]


@pytest.mark.parametrize(
    ("subnet", "size", "count"),
    [("10.0.0.0/24", 16, 16), ("10.0.0.0/24", 100, 3), ("10.0.0.0/30", 16, 1), ("fd00::/64", 16, 2**60)],
)
def test_how_many_there_are(subnet: str, size: int, count: int) -> None:
    assert blocks_in(subnet, size) == count


def test_addresses_of_blocks() -> None:
    assert words("10.1.0.0/24", 0) == ["10.1.0.0-10.1.0.15"]
    assert words("10.1.0.0/24", 3, 0, 1) == ["10.1.0.0-10.1.0.31", "10.1.0.48-10.1.0.63"]
    assert words("fd00:1::/64", 2) == ["fd00:1::20-fd00:1::2f"]
    assert words("10.1.0.0/24", 15, 16) == ["10.1.0.240-10.1.0.255"], "block 16 is beyond this subnet"
    assert words("10.1.0.0/29", 0) == ["10.1.0.0-10.1.0.7"], "so is the end of block 0"
    assert words("10.1.0.0/24") == []


def test_as_json() -> None:
    document = survey(block(0), block(2, "node2", suspect=7, taken=True)).to_json()
    assert document["nodes"] == [{"node": "node1", "blocks": 1}, {"node": "node2", "blocks": 1}]
    assert (document["held"], document["suspect"], document["count"]) == (2, 1, 16)
    second = document["blocks"][1]
    assert (second["index"], second["node"], second["suspect"], second["taken"]) == (2, "node2", 7, True)
    assert second["addresses"] == ["10.1.0.32-10.1.0.47", "fd00:1::20-fd00:1::2f"]
    assert "wrong" not in document


def test_what_cannot_be_read_is_said() -> None:
    body = block(1).to_json()
    del body["node"]
    broken = [stored(BLOCK, "net.1", body), stored(POOL, "other", {"network": "other"})]
    found = overviews([layout(), broken[1]], [*held(block(0)), broken[0]])
    assert [one.network for one in found] == ["net", "other"]
    assert [b.index for b in found[0].blocks] == [0]
    assert "net.1" in found[0].wrong[0]
    assert found[1].layout is None
    assert found[1].to_json()["wrong"] == list(found[1].wrong)
