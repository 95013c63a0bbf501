"""The interface between a checker's world and the servers of a store."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Servers(Protocol):
    """A store's real servers, and a test's control over them.  ``jumps`` lists the errors in seconds that their clock
    may have."""

    urls: Sequence[str]
    jumps: Sequence[int]

    def settings(self, proxies: Sequence[str], folder: Path) -> Mapping[str, Any]:
        """The store's section of a node's file."""

    def born(self, node: str) -> None:
        """Announce a new, live node."""

    def dead(self, node: str) -> None:
        """Report the node as gone and silent."""

    def replaced(self, node: str) -> bool:
        """Delete and recreate the node's object while its pods run; return False if the store has no such objects."""

    def harm(self, draw: random.Random) -> bool:
        """Kill a part of the store, restart it or leave it alone; return True for a kill."""

    def heal(self) -> None:
        """Make all parts of the store run."""

    def blocks(self) -> dict[int, str]:
        """The node of each block's document, from the servers themselves."""

    def moves(self) -> dict[str, int]:
        """Counts of claimed, returned and reclaimed blocks, from etcd's history."""
