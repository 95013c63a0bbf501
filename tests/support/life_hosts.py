"""The machines of a simulated cluster, each with hpn node's scheduling of rounds on the simulation's clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.cluster_nodes import Node

from node import blocks


class Background:
    """node.background.Background on the simulation's clock: the work is done at once, in this process."""

    now: Callable[[], float] = staticmethod(float)
    is_at_work = False

    def __init__(self, _loop: object, begin: Callable[[], None]) -> None:
        self._begin, self.due = begin, 0.0

    def after(self, seconds: float) -> None:
        at = self.now() + seconds
        self.due = min(self.due, at) if self.due else at

    def start(self, work: Callable[[], object], end: Callable[[Any], None]) -> None:
        answer = work()
        end(type("Child", (), {"answer": lambda _: answer})())

    def run(self, seconds: float = 0) -> None:
        """Do the work that is due by now, or in so many seconds."""
        if self.due and self.due <= self.now() + seconds:
            self.due = 0.0
            self._begin()


@dataclass(eq=False)
class Host:
    """A machine, its pods with their addresses, and the pods that it needs an address for, since when."""

    name: str
    machine: str
    node: Node
    network: str
    pods: dict[str, str] = field(default_factory=dict)
    daemon: blocks.Blocks | None = None
    needs: dict[str, float] = field(default_factory=dict)
    # Until then no pod starts or ends there.
    quiet: float = 0.0
    is_broken: bool = False
    has_gpus: bool = False
    # How wrong its clock is.
    clock: float = 0.0
    # Commands that asked hpn node for a round.
    datagrams: int = 0

    def run(self, seconds: float = 0) -> None:
        """Let hpn node do what is due in so many seconds."""
        if self.daemon:
            self.daemon._background.run(seconds)  # type: ignore[attr-defined]
