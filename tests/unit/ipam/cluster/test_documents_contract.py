"""The backend in memory fulfils the contract of every backend, and its faults work as described."""

import pytest
from support.documents import Fault, Killed, Memory, at, every
from support.documents_contract import NODES, Contract, block, create

from base.protocol.errors import BackendRefused, Unreachable
from ipam.cluster import BLOCK, Machine


class TestMemory(Contract):
    @pytest.fixture
    def store(self) -> Memory:
        return Memory(machines={name: Machine(name, f"uid of {name}", 1_800_000_000.0) for name in NODES})


@pytest.mark.parametrize(
    ("fault", "raised", "is_there"),
    [
        (Fault.UNREACHABLE, Unreachable, False),
        (Fault.LOST, Unreachable, True),
        (Fault.FORBIDDEN, BackendRefused, False),
        (Fault.KILLED, Killed, False),
        (Fault.KILLED_AFTER, Killed, True),
    ],
)
def test_faults(fault: Fault, raised: type[BaseException], is_there: bool) -> None:
    store = Memory(faults=at(1, fault))
    create(store, block("net", 0))
    with pytest.raises(raised):
        store.create(BLOCK, "net.1", "net", block("net", 1).to_json())
    assert (store.read(BLOCK, "net.1") is not None) is is_there
    assert store.calls == ["create net.0", "create net.1", "read net.1"]


def test_conflict() -> None:
    store = Memory()
    made = create(store, block("net", 0))
    store.faults = every("", Fault.CONFLICT)
    assert store.create(BLOCK, "net.1", "net", {}) is None
    assert store.replace(made, {}) is None
    assert not store.remove(made)
    assert store.counted() == {"create": 2, "replace": 1, "remove": 1}
    assert list(store.bodies(BLOCK)) == ["net.0"]
