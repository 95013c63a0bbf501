"""What the documents of a network hold: its grid and its blocks.  Pure."""

import hashlib
import re
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Final

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from ipam.cluster import Document
from ipam.cluster.rules.block_math import MOST

# How many host numbers a block has if the configuration does not say.
SIZE: Final = 16
# Says of a block that its owner is suspected, and that it is not known yet since when.
SAID: Final = 1
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# A name in Kubernetes is 253 characters at most, and the block's number takes some of them.
_LONGEST: Final = 200
_DIGEST: Final = 16
_SHOWN: Final = 100  # characters of an invalid value


def layout_name(network: str) -> str:
    """The name of a network's grid: the network's own where a DNS subdomain (RFC 1123) may be called that, else what
    fits of it and a digest.  Two networks never have one name."""
    # A name of ours ends in a dot and digits where it is a block's, so a network that ends so gets a digest too.
    if _NAME.fullmatch(network) and len(network) <= _LONGEST and not _like_ours(network):
        return network
    readable = re.sub(r"[^a-z0-9]+", "-", network.lower()).strip("-")[: _LONGEST - _DIGEST - 2].strip("-")
    digest = hashlib.sha256(network.encode()).hexdigest()[:_DIGEST]
    return f"{readable}-x{digest}" if readable else f"x{digest}"


def block_name(network: str, index: int) -> str:
    """The name of the block with that number."""
    return f"{layout_name(network)}.{index}"


def _like_ours(name: str) -> bool:
    return bool(re.fullmatch(r".*\.[0-9]+|(.*-)?x[0-9a-f]{16}", name))


@dataclass(frozen=True)
class PoolLayout:
    """How a network's host numbers are cut into blocks: how many a block has, and each subnet's first address with the
    widest prefix that any configuration has had ("10.1.0.0/16"), which says what number an address has.

    ``sticky`` are the numbers that are in no block, because they go to names ("256-511"); empty if there are none.
    """

    network: str
    size: int
    subnets: tuple[str, ...]
    sticky: str = ""

    def to_json(self) -> Json:
        body: Json = {"network": self.network, "blockSize": self.size, "subnets": list(self.subnets)}
        return body | ({"sticky": self.sticky} if self.sticky else {})

    @classmethod
    def of(cls, document: Document) -> "PoolLayout":
        """Raises RecordUnreadable."""
        try:
            body = {"sticky": "", **document.body}
            subnets = tuple(str(ip_network(text({"subnets": one}, "subnets"))) for one in items(body, "subnets"))
            return cls(text(body, "network"), number(body, "blockSize", 1), subnets, text(body, "sticky"))
        except ValueError as e:
            raise _unreadable("grid", document, e) from e


@dataclass(frozen=True)
class Block:
    """The host numbers from ``index * size`` on, ``size`` of them, and the node that gives them.

    ``machine`` is the node's UID, or empty where the store knows no nodes.  ``claim`` is a text that the node made up
    before it asked for the block, by which it knows a claim of its own whose answer was lost.  ``suspect`` is 0 if
    nobody suspects the node, SAID if somebody has just said so, and afterwards a time (seconds of the store's
    clock) at which that was already in the store.  ``taken`` says that it was taken from a node that was taken for
    dead: then nobody knows whether its addresses are used.

    A block that is one number of those set aside goes to a name (``whose``) on whichever node that is.  ``free`` is 0
    while a node has it; else ``node`` is empty, and free is since when nobody has it (seconds of the store's clock).
    Another name may have it when that is longer than ``keep`` seconds ago.
    """

    network: str
    index: int
    size: int
    node: str
    machine: str
    claim: str
    suspect: int = 0
    taken: bool = False
    whose: str = ""
    keep: int = 0
    free: int = 0

    @property
    def first(self) -> int:
        return self.index * self.size

    @property
    def last(self) -> int:
        return self.first + self.size - 1

    @property
    def name(self) -> str:
        return block_name(self.network, self.index)

    def given_to(self, node: str, machine: str, claim: str) -> "Block":
        """This block as another node has it that has taken it."""
        return replace(self, node=node, machine=machine, claim=claim, suspect=0, taken=True)

    def freed(self, now: int) -> "Block":
        """This number as nobody has it, for its name to be given anywhere."""
        return replace(self, node="", machine="", suspect=0, free=max(1, now))

    def is_over(self, now: float) -> bool:
        """Whether nobody has had this number for so long that another name may have it."""
        return not self.node and now - self.free > self.keep

    def to_json(self) -> Json:
        body: Json = {
            "network": self.network,
            "index": self.index,
            "start": self.first,
            "size": self.size,
            "node": self.node,
            "machine": self.machine,
            "claim": self.claim,
            "suspect": self.suspect,
            "taken": self.taken,
        }
        return body | ({"whose": self.whose, "keep": self.keep, "free": self.free} if self.whose else {})

    @classmethod
    def of(cls, document: Document) -> "Block":
        """Raises RecordUnreadable."""
        try:
            body = {"machine": "", "suspect": 0, "taken": False, "whose": "", "keep": 0, "free": 0, **document.body}
            texts = text(body, "node"), text(body, "machine"), text(body, "claim")
            where = text(body, "network"), number(body, "index"), number(body, "size", 1)
            block = cls(*where, *texts, number(body, "suspect"), truth(body, "taken"))
            whose, keep, free = text(body, "whose"), number(body, "keep"), number(body, "free")
            return replace(block, whose=whose, keep=keep, free=free) if whose else block
        except ValueError as e:
            raise _unreadable("block", document, e) from e


def _unreadable(kind: str, document: Document, why: ValueError) -> RecordUnreadable:
    return RecordUnreadable(
        f"{kind} {document.name} in the cluster's store cannot be read: its {why}; remove or mend it"
    )


def shown(value: object) -> str:
    """What is strange, for a message."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def text(found: Json, key: str) -> str:
    """The text of that key, which can be in a request or a path.  Raises ValueError, which says what it is."""
    value = found.get(key)
    if not isinstance(value, str) or "\0" in value or any("\ud800" <= one <= "\udfff" for one in value):
        raise ValueError(f"{key} is {shown(value)}, which is no text")
    return value


def items(body: Json, key: str) -> list[object]:
    value = body.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} is {shown(value)}, which is no list")
    return value


def truth(body: Json, key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}, which is neither true nor false")
    return value


def number(body: Json, key: str, least: int = 0) -> int:
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ValueError(f"{key} is {shown(value)}, which is no number from {least} to {MOST}")
    return value
