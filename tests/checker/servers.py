"""What a checker's world does to the servers of a store."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Servers(Protocol):
    """A store's real servers, and what a test does to them.  ``jumps``: by how many seconds their clock may be off."""

    urls: Sequence[str]
    jumps: Sequence[int]

    def settings(self, proxies: Sequence[str], folder: Path) -> Mapping[str, Any]:
        """What a node's file says of the store."""

    def born(self, node: str) -> None:
        """The node is there, and heard of."""

    def dead(self, node: str) -> None:
        """The node is gone, and not heard of any more."""

    def replaced(self, node: str) -> bool:
        """The node's object is deleted and made again while its pods run; False if nodes have none."""

    def harm(self, draw: random.Random) -> bool:
        """Kill what the store consists of, or start it again, or let it be; whether it was killed."""

    def heal(self) -> None:
        """All of it runs."""

    def blocks(self) -> dict[int, str]:
        """Of each block its document's node, as the servers themselves say."""

    def moves(self) -> dict[str, int]:
        """How often blocks were claimed, given back and taken over, as an etcd has it."""
