"""A StatefulSet's pod moves between two nodes and keeps its address, on real servers."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from support.api_server import NODE1, NODE2, Opener
from support.cluster_nodes import Cluster as Nodes
from support.cluster_nodes import Node
from support.ipam_calls import of
from support.shared_stores import etcds
from support.sticky_nodes import ASIDE, WEB, keep, numbers

from base.kernel import budget
from ipam.cluster import BLOCK, Documents, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings
from ipam.cluster.rules.documents import Block

Opens = Callable[[str], Documents]
_ever = count()


class Named(Node):
    """A node, and a network that no other test uses, with the addresses of all of them."""

    def asked(self) -> dict[str, str]:
        """The owner of each name's number, from the store."""
        budget.begin()
        documents, _ = backend.opened("etcd").documents, self.enter()
        listed = documents.listed(BLOCK, f"{self.more['name']}/sticky")
        return {block.whose: block.node for block in map(Block.of, listed)}

    @property
    def dir(self) -> Path:
        return self.state / "ipam" / str(self.more["name"])


class Moves:
    @pytest.fixture
    def nodes(self, opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Named, Named]:
        its = Nodes(tmp_path, monkeypatch)
        stores = {name: opens(name) for name in ("node1", "node2")}
        module = ModuleType("real_stores")
        module.opened = lambda _about, name: (stores[name], name)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "real_stores", module)
        monkeypatch.setattr(backend, "KINDS", dict.fromkeys(backend.KINDS, "real_stores"))
        network = f"sticky-{next(_ever)}-{time.time_ns()}"
        both = [its.node(name, **ASIDE, overlaps=True) for name in ("node1", "node2")]
        one, two = (Named(n.state, n.ipam, {"name": network}, n.name, n.node_file) for n in both)
        return one, two

    def test_there_and_back(self, nodes: tuple[Named, Named]) -> None:
        one, two = nodes
        address = one.add("c0", *WEB)
        other = two.add("c0", *of("web-1"))
        assert address != other
        for number in range(2):
            here, there = (one, two) if number == 0 else (two, one)
            code, said = there.refused("ADD", f"c{number + 1}", *WEB)
            assert (code, f"node {here.name} did not release it" in said) == (11, True)
            here.call("DEL", f"c{number}", *WEB)
            assert [report.problem for report in keep(here)] == ["", ""]
            assert here.asked()["ns/web-0:net1"] == ""
            assert there.add(f"c{number + 1}", *WEB) == address
            assert there.asked() == {"ns/web-0:net1": there.name, "ns/web-1:net1": "node2"}
        assert [block.state for block in numbers(one).blocks] == [node_blocks.HELD]


class TestOnTheApiServer(Moves):
    @pytest.fixture
    def opens(self, opened: Opener) -> Opens:
        return lambda name: opened({"node1": NODE1, "node2": NODE2}[name])


class TestOnEtcd(Moves):
    @pytest.fixture
    def opens(self, tmp_path: Path) -> Iterator[Opens]:
        with etcds(tmp_path) as servers, closing(Gateway(Settings(tuple(servers.urls)))) as gateway:
            yield lambda _: Etcd(gateway, "/hpn")
