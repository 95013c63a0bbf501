"""rail1 as an InfiniBand HCA while these tests run."""

from collections.abc import Iterator

import pytest
from guest import hca
from guest.hca import NAME, PF, Node
from guest.machine import Guest
from support.topology import ip


@pytest.fixture(scope="module", autouse=True)
def plugged() -> Iterator[None]:
    with hca.plugged():
        yield


@pytest.fixture
def node(guest: Guest) -> Iterator[Node]:
    """The guest as a node that attaches InfiniBand VFs; after the test they are as before, on the host and on the
    PF."""
    node = Node(guest.tmp_path)
    before = node.picture()
    yield node
    if node.state_files():  # a test that failed half-way must not fail all others
        node.call("GC", None, node.conf() | {"cni.dev/valid-attachments": []})
    assert node.picture() == before


@pytest.fixture
def masters_up() -> Iterator[None]:
    """The interfaces of the PF and its first VF are up; afterwards the host has none of their children."""
    for name in (PF, NAME):
        ip("link", "set", name, "up")
    yield
    for name in (PF, NAME):
        ip("link", "set", name, "down")
    assert hca.children() == []
