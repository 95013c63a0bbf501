"""The documents of a network: its pool layout and its blocks, and the check of what a backend answers.  Pure."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Final, TypeVar

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from ipam.cluster import Document
from ipam.cluster.rules.block_math import MOST

T = TypeVar("T")

# Host numbers per block, unless the configuration sets blockSize.
SIZE: Final = 16
# The members of a block that only a reserved number has.
_OF_NUMBERS: Final = frozenset({"whose", "keep", "free"})
# Marks a block's owner as suspected, since an unknown time.
SAID: Final = 1
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_INDEX: Final = re.compile(r".*\.([0-9]{1,16})", re.DOTALL)
# A name in Kubernetes has 253 characters at most, including the block's number.
_LONGEST: Final = 200
_DIGEST: Final = 16
_SHOWN: Final = 100  # characters of an invalid value
_KINDS: Final = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}


def layout_name(network: str) -> str:
    """Return the name of a network's pool layout: unique for each network, and a DNS subdomain (RFC 1123).

    It is the network's own name if that qualifies, else a readable part of it and a digest.
    """
    # The name of a block ends in a dot and digits, so a network with such an end gets a digest too.
    is_like_ours = re.fullmatch(r".*\.[0-9]+|(.*-)?x[0-9a-f]{16}", network)
    if _NAME.fullmatch(network) and len(network) <= _LONGEST and not is_like_ours:
        return network
    readable = re.sub(r"[^a-z0-9]+", "-", network.lower()).strip("-")[: _LONGEST - _DIGEST - 2].strip("-")
    digest = hashlib.sha256(network.encode()).hexdigest()[:_DIGEST]
    return f"{readable}-x{digest}" if readable else f"x{digest}"


def block_name(network: str, index: int) -> str:
    return f"{layout_name(network)}.{index}"


def indexes(documents: Iterable[Document]) -> set[int]:
    """Return the indexes of these blocks by their names: a block that cannot be read is not free."""
    return {int(found[1]) for one in documents if (found := _INDEX.fullmatch(one.name))}


@dataclass(frozen=True)
class PoolLayout:
    """How a network's host numbers form blocks.

    - ``size``: host numbers per block.
    - ``subnets``: each subnet's first address, with the widest prefix that any configuration had ("10.1.0.0/16").  The
      first address defines the host numbers.
    - ``sticky``: the numbers reserved for names, which are in no block ("256-511"); empty if there are none.
    - ``digest``: of all that must not change, as the document has it; empty in an older version's.
    """

    network: str
    size: int
    subnets: tuple[str, ...]
    sticky: str = ""
    digest: str = field(default="", compare=False)

    @property
    def is_edited(self) -> bool:
        """Whether another program changed the size, the reserved numbers or a first address."""
        return bool(self.digest) and self.digest != self._digested()

    def to_json(self) -> Json:
        body: Json = {"network": self.network, "blockSize": self.size, "subnets": list(self.subnets)}
        return body | ({"sticky": self.sticky} if self.sticky else {}) | {"digest": self._digested()}

    def _digested(self) -> str:
        firsts = sorted({one.partition("/")[0] for one in self.subnets})
        about = json.dumps([self.network, self.size, firsts, self.sticky])
        return hashlib.sha256(about.encode()).hexdigest()[:_DIGEST]

    @classmethod
    def of(cls, document: Document) -> "PoolLayout":
        """Parse the document.  Raises RecordUnreadable."""
        try:
            body = {"sticky": "", "digest": "", **document.body}
            subnets = tuple(str(ip_network(text({"subnets": one}, "subnets"))) for one in typed(body, "subnets", list))
            about = text(body, "network"), number(body, "blockSize", 1), subnets
            return cls(*about, text(body, "sticky"), text(body, "digest"))
        except ValueError as e:
            raise _unreadable("pool layout", document, e) from e


def overlapping(network: str, subnets: Iterable[str], layouts: Iterable[PoolLayout]) -> Iterator[tuple[str, str, str]]:
    """Yield each of these subnets that overlaps one of another network: the subnet, that network, and its subnet.

    A network and its reserved numbers have the same subnets.
    """
    mine, ours = [ip_network(text) for text in subnets], network.partition("/")[0]
    for layout in layouts:
        if "/" in layout.network or layout.network == ours:
            continue
        for theirs in map(ip_network, layout.subnets):
            yield from ((f"{one}", layout.network, f"{theirs}") for one in mine if one.overlaps(theirs))


def readable_layouts(documents: Iterable[Document]) -> Iterator[PoolLayout]:
    """Yield the pool layouts, except unreadable ones."""
    for document in documents:
        with suppress(RecordUnreadable):
            yield PoolLayout.of(document)


@dataclass(frozen=True)
class Block:
    """The ``size`` host numbers from ``index * size`` on, and the node that owns them.

    - ``machine``: the owner's machine UID; empty where the backend records no machines.
    - ``claim``: a random text that the node chose before the claim.  By it the node recognizes its own claim after a
      lost answer.
    - ``suspect``: 0 if the node is not suspected; SAID when a node just suspected it.  After that, a time at which a
      reader already found the suspicion (seconds of the backend's clock).
    - ``taken``: the block was reclaimed from a node that seemed dead, so pods may still use its addresses.

    A block that is one reserved number belongs to a name (``whose``), on any node.  ``free`` is 0 while a node owns it.
    Otherwise ``node`` is empty, and ``free`` is when the last node released it (seconds of the backend's clock).
    Another name may get it ``keep`` seconds after that.
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
        """Return this block as owned by the node that reclaims it."""
        return replace(self, node=node, machine=machine, claim=claim, suspect=0, taken=True)

    def freed(self, now: int) -> "Block":
        """Return this number without a node, available to its name on any node."""
        return replace(self, node="", machine="", suspect=0, free=max(1, now))

    def is_over(self, now: float) -> bool:
        """Whether no node owned this number for so long that another name may get it."""
        return not self.node and now - self.free > self.keep

    def to_json(self) -> Json:
        body = {"network": self.network, "index": self.index, "start": self.first, **vars(self)}
        return {key: value for key, value in body.items() if self.whose or key not in _OF_NUMBERS}

    @classmethod
    def of(cls, document: Document) -> "Block":
        """Parse the document.  Raises RecordUnreadable."""
        try:
            body = {"machine": "", "suspect": 0, "taken": False, **document.body}
            texts = text(body, "node"), text(body, "machine"), text(body, "claim")
            where = text(body, "network"), number(body, "index"), number(body, "size", 1)
            block = cls(*where, *texts, number(body, "suspect"), typed(body, "taken", bool))
            if _OF_NUMBERS.isdisjoint(body):
                return block
            body = {"whose": "", "keep": 0, "free": 0, **body}
            whose, keep, free = text(body, "whose"), number(body, "keep"), number(body, "free")
            return replace(block, whose=whose, keep=keep, free=free) if whose else block
        except ValueError as e:
            raise _unreadable("block", document, e) from e


def _unreadable(kind: str, document: Document, why: ValueError) -> RecordUnreadable:
    return RecordUnreadable(
        f"{kind} {document.name} in the cluster's backend cannot be read: its {why}; remove or repair it"
    )


def shown(value: object) -> str:
    """Return an invalid value for a message, shortened."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def text(found: Json, key: str) -> str:
    """Return the string of that key, fit for a request or a path.  Raises ValueError with the reason."""
    value = typed(found, key, str)
    # The loop takes long in a list of all blocks, and nearly all text is ASCII.
    if "\0" in value or (not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value)):
        raise ValueError(f"{key} is {shown(value)}, not a string")
    return value


def typed(found: Json, key: str, kind: type[T]) -> T:
    """Return the value of that key, of that type.  Raises ValueError with the reason."""
    value = found.get(key)
    if not isinstance(value, kind):
        raise ValueError(f"{key} is {shown(value)}, not {_KINDS[kind]}")
    return value


def objects(found: Json, key: str) -> list[Json]:
    """Return a list of objects, which a server may leave out if it is empty.  Raises ValueError with the reason."""
    values = found.get(key) or []
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ValueError(f"{key} is {shown(values)}, not a list of objects")
    return values


def number(body: Json, key: str, least: int = 0) -> int:
    value = body.get(key)
    if type(value) is not int or not least <= value <= MOST:
        raise ValueError(f"{key} is {shown(value)}, not a number from {least} to {MOST}")
    return value
