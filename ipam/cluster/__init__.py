"""One address pool for all nodes of a cluster: each node claims blocks of host numbers and allocates from its own
blocks.

A host number is an address minus its subnet's first address.  A block is a span of host numbers.  It stands for these
numbers in every range, family and rail of its network.  The nodes keep what they must agree on as documents in a shared
backend: the API server of a Kubernetes cluster, or an etcd.  ``Documents`` is the interface of a backend, and
rules/documents.py defines the documents.

An ADD with room in this node's blocks sends no request, and imports no module that connects to a server.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from base.protocol.spec import Json

# A node's name, and the UID of its machine, as a block records them.
Owner = tuple[str, str]
# The kinds of documents: a network's pool layout, and one of its blocks.
POOL: Final = "pool"
BLOCK: Final = "block"


@dataclass(frozen=True)
class Document:
    """One object in the backend.

    ``uid`` identifies this document; a later document of the same name has another uid.  ``version`` changes with every
    change of the body.
    """

    kind: str
    name: str
    body: Json
    uid: str
    version: str


@dataclass(frozen=True)
class Machine:
    """What the backend knows of a node.

    - ``uid``: the machine's UID.  It is empty for an unknown node.  An etcd knows only that of the last report.
    - ``last_seen``: when the node was last reported alive, in seconds of the backend's clock; None if it never was.
    - ``has_reported``: False if the node owns blocks and was never reported alive.  Such a node counts as alive, so
      ``last_seen`` is the current time.
    """

    name: str
    uid: str = ""
    last_seen: float | None = None
    has_reported: bool = True


@dataclass(frozen=True)
class RoundReport:
    """The result of a network's round.

    ``suspected`` counts this node's blocks that other nodes suspected.  ``log`` is for the operator.  ``problem`` is
    the reason of a failed round, or empty.
    """

    network: str
    suspected: int = 0
    log: tuple[str, ...] = ()
    problem: str = ""


class Documents(Protocol):
    """A backend that all nodes share.  Every change is a compare-and-swap, and all nodes see it at once.

    Every method raises Unreachable if the backend did not answer; the change may or may not have happened.  Every
    method raises BackendRefused if the backend forbids the request, or if a repetition cannot succeed.  The message
    names the verb, the object and the remedy.
    """

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:
        """Create the document; return None if that kind and name exist."""

    def read(self, kind: str, name: str) -> Document | None:
        """Return the document, or None if it does not exist."""

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        """List documents of one kind: those of a network, those with this ``node`` in the body, or all.

        With ``node``, each listed document is current, but one that the node got a moment ago may be missing.
        """

    def replace(self, document: Document, body: Json) -> Document | None:
        """Replace the document's body; return None if the document changed since it was read, or is gone."""

    def remove(self, document: Document) -> bool:
        """Remove the document; return False if it changed since it was read, or is gone."""

    def machine(self, name: str, owner: str = "") -> Machine:
        """Return what the backend knows of the named node.

        ``owner`` is the UID of a machine.  Ask no more if one answer shows that this machine has the name and lives.
        """

    def machine_uid(self, name: str) -> str:
        """Return the UID of the named node's machine; empty for an unknown node."""

    def silent(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Return those of these owners that may be dead, or whose name another machine has, by one list of all nodes.

        Return all owners if this node may not read that.  The result only orders further requests (``machine``).
        """

    def controller(self, pod: str) -> str | None:
        """Return the kind of the controller of the pod ("namespace/name"), empty for none.

        Return None if the backend does not know pods, or this node may not read this one.
        """

    def keep_alive(self, name: str, seconds: int, machine: str = "") -> None:
        """Report the node, which is that machine, as alive for that many seconds; do nothing where kubelet does."""

    def identity(self) -> str:
        """Return a text that identifies this cluster; it survives restarts and copies of the backend."""

    def now(self) -> float:
        """Return the backend's clock as of its last answer, in seconds since 1970; no node's clock counts."""

    def revision(self, known: int) -> int:
        """Return the backend's count of changes as of the last ``listed``; 0 if the backend reports none.

        A count below ``known``, an earlier one, shows that the backend was restored to an older state.  A server's
        cache can be old too, so a lower count is read again, past the cache.
        """
