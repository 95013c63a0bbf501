"""One pool of addresses for all nodes of a cluster: each node claims blocks of host numbers, and gives from its own.

A host number is an address minus its subnet's first address.  A block is a span of host numbers, and counts in every
range, family and rail of its network.  What all nodes must agree on is kept as documents in a store that they share:
the API server of a Kubernetes cluster, or an etcd.  Documents is what is asked of that store; rules/documents.py says
what the documents hold.

An ADD that finds room in this node's blocks asks nobody, and imports nothing of this package that speaks to a server.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from base.protocol.spec import Json

# The kinds of documents: a network's grid, and a block of it.
GRID: Final = "grid"
BLOCK: Final = "block"


@dataclass(frozen=True)
class Document:
    """What the store keeps under a kind and a name.  ``uid`` is this document's, and of no other that has its name
    before or after it; ``version`` changes whenever the body does."""

    kind: str
    name: str
    body: Json
    uid: str
    version: str


@dataclass(frozen=True)
class Machine:
    """What the store knows of a node.  ``uid`` is empty where the store knows no nodes (of itself a node knows it:
    Shared.machine), and of a node that is unknown.  ``last_seen`` is when it last told that it lives, in
    seconds of the store's clock, and None if never.

    Of a node that has blocks and never ``told`` that it lives, it is now: such a node counts as alive.
    """

    name: str
    uid: str = ""
    last_seen: float | None = None
    told: bool = True


class Documents(Protocol):
    """A store that all nodes share.  Every change is a compare-and-swap, and is seen by all at once.

    Every method raises Unreachable if the store did not answer: a change may have been made or not.  Every one raises
    StoreRefused if the store forbids it, or if this is not to be mended by asking again; the message names verb, thing
    and remedy.
    """

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:
        """Make the document; None if there is one of that kind and name."""

    def read(self, kind: str, name: str) -> Document | None:
        """The document; None if there is none."""

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        """The documents of that kind: those of a network, or those whose body has this ``node``, or all.

        With ``node`` each is as it is now, and one that became the node's a moment ago may be missing.
        """

    def replace(self, document: Document, body: Json) -> Document | None:
        """Give the document that body; None if it has changed since it was read, or is gone."""

    def remove(self, document: Document) -> bool:
        """Remove the document; False if it has changed since it was read, or is gone."""

    def machine(self, name: str) -> Machine:
        """What the store knows of the node of that name."""

    def silent(self, names: Collection[str]) -> Collection[str]:
        """Those of these nodes that may be dead, by one look at what is heard of all; all where nobody may have that.

        It says whom to ask about (``machine``) first, and no more."""

    def keep_alive(self, name: str, seconds: int) -> None:
        """Tell that the node lives, for so long.  Nothing to do where somebody else tells (kubelet)."""

    def identity(self) -> str:
        """Which cluster this is: a text that no other cluster's store has, and that outlives restarts and copies."""

    def now(self) -> float:
        """The store's clock as of its last answer, in seconds since 1970; no node's own clock is asked."""

    def revision(self, known: int) -> int:
        """How many changes the store had counted when it answered ``listed`` last, 0 if it does not say.

        Where it is less than was ``known`` before, the store was restored to an older state: what a server has in its
        memory is not enough for that, and is asked for anew."""
