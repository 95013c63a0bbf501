"""Names and bodies of the documents that the nodes of a cluster share."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.protocol.errors import RecordUnreadable
from ipam.cluster import BLOCK, POOL, Document
from ipam.cluster.rules.documents import Block, PoolLayout, block_name, layout_name

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NETWORKS = st.text(min_size=1, max_size=300) | st.from_regex(r"[a-z.0-9-]{1,20}", fullmatch=True)


@pytest.mark.parametrize("network", ["rdma", "gpu-rail.example.com", "a" * 200])
def test_a_subdomain_is_its_own_name(network: str) -> None:
    assert layout_name(network) == network


@given(NETWORKS)
def test_names_are_subdomains(network: str) -> None:
    for name in (layout_name(network), block_name(network, 2**64)):
        assert SUBDOMAIN.fullmatch(name)
        assert len(name) <= 253


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rdma", "RDMA"),
        ("a_b", "a-b"),
        ("net.7", "net"),
        ("a" * 201, "a" * 202),
        ("x_y", layout_name("x_y")),
        ("_", "é"),
    ],
)
def test_two_networks_have_two_names(one: str, other: str) -> None:
    names = {layout_name(one), layout_name(other), block_name(one, 7), block_name(other, 7)}
    assert len(names) == 4


def test_a_network_that_looks_like_a_block() -> None:
    assert layout_name("net.7") != block_name("net", 7)
    assert block_name("net.7", 1) != block_name("net", 71)


def test_bodies_come_back() -> None:
    block = Block("net", 3, 16, "node-a", "uid", "claim", 5, taken=True)
    assert Block.of(Document(BLOCK, block.name, block.to_json(), "u", "1")) == block
    assert (block.first, block.last) == (48, 63)
    layout = PoolLayout("net", 16, ("10.1.0.0/16", "fd00::/64"))
    assert PoolLayout.of(Document(POOL, "net", layout.to_json(), "u", "1")) == layout


@pytest.mark.parametrize("lost", ["network", "index", "size", "node", "claim"])
def test_a_body_that_lacks_something(lost: str) -> None:
    body = Block("net", 3, 16, "node-a", "uid", "claim").to_json()
    del body[lost]
    with pytest.raises(RecordUnreadable, match=lost):
        Block.of(Document(BLOCK, "net.3", body, "u", "1"))


def test_a_block_that_was_taken() -> None:
    block = Block("net", 3, 16, "dead", "old", "claim", suspect=9).given_to("new", "uid", "other")
    assert (block.node, block.machine, block.claim, block.suspect, block.taken) == ("new", "uid", "other", 0, True)


@pytest.mark.parametrize(
    "wrong", [{"subnets": ["10.0.0.1/16"]}, {"subnets": "10.0.0.0/16"}, {"subnets": [[]]}, {"blockSize": float("inf")}]
)
def test_a_grid_that_means_nothing(wrong: dict[str, object]) -> None:
    body = PoolLayout("net", 16, ("10.1.0.0/16",)).to_json() | wrong
    with pytest.raises(
        RecordUnreadable, match=r"pool layout net in the cluster's backend cannot be read: its .*; remove or repair it"
    ):
        PoolLayout.of(Document(POOL, "net", body, "u", "1"))
