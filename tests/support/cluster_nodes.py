"""Nodes of one cluster in one process: each has its own state and file, and all share a backend in memory."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.documents import Memory
from support.ipam_calls import Net

from base.protocol.spec import Reply
from base.state import policy
from ipam.cluster import BLOCK, Documents, Machine, copies, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.node_blocks import NodeBlocks

SHARED = {"backend": "etcd"}
# 16 blocks of 16; the first and the last have fewer addresses.
SMALL = {"subnet": "10.0.0.0/24", "cluster": SHARED}


@dataclass
class Node(Net):
    """A node's configuration, and calls on that node."""

    name: str = ""
    node_file: Path = Path()

    def reply(self, command: str, *args: str, **more: Any) -> Reply:
        self.enter()
        return super().reply(command, *args, **more)

    def enter(self) -> None:
        """Continue on this node."""
        policy.FILE = str(self.node_file)
        copies.FOLDER = f"{self.state}.copies"

    def refused(self, command: str, *args: str, **more: Any) -> tuple[int, str]:
        """Return the error's code and message."""
        answer = self.call(command, *args, **more)
        assert "code" in answer, answer
        return answer["code"], f"{answer['msg']} ({answer.get('details', '')})"

    @property
    def mine(self) -> NodeBlocks:
        found = node_blocks.read(self.dir)
        assert found is not None
        return found

    def fill(self, prefix: str = "fill") -> list[str]:
        """Attach until this node claims another block; return the addresses."""
        given, blocks = list[str](), self.mine.giving
        while self.mine.giving == blocks:
            given += self.add(f"{prefix}{len(given)}")
        return given


class Cluster:
    """The backend, and the nodes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = Memory()
        self._root = root

        def opened(_about: object, name: str) -> tuple[Documents, str]:
            return self.store, name

        module = ModuleType("store_in_memory")
        module.opened = opened  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "store_in_memory", module)
        monkeypatch.setattr(backend, "KINDS", dict.fromkeys(backend.KINDS, "store_in_memory"))
        monkeypatch.setattr(backend, "MACHINE_ID", "/nonexistent")  # the backend in memory records machines
        monkeypatch.setattr(policy, "FILE", policy.FILE)
        monkeypatch.setattr(copies, "FOLDER", copies.FOLDER)

    def node(self, name: str, **ipam: Any) -> Node:
        """Return the node of that name, always with the same state."""
        state = self._root / name
        state.mkdir(exist_ok=True)
        file = self._root / f"{name}.json"
        file.write_text(json.dumps({"backends": {"nodeName": name}}))
        file.chmod(0o600)
        self.store.machines.setdefault(name, Machine(name, f"uid of {name}", self.store.clock))
        return Node(state, ipam or SMALL, name=name, node_file=file)

    def owners(self) -> dict[int, str]:
        """Return the owner of each block, by index."""
        return {body["index"]: body["node"] for body in self.store.bodies(BLOCK).values()}

    def calls(self) -> list[str]:
        """Return the calls to the backend since the last use of this method."""
        calls, self.store.calls[:] = list(self.store.calls), []
        return calls
