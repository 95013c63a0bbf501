"""What this node has of a network that the cluster shares: its blocks, as a file beside the leases.

    <network>/
      blocks          JSON with a checksum (base/state/durable.py), on disk before a number of a new block is given
      blocks.lock     flock: whoever asks the store, and whoever writes the file, has it

An address is chosen under the store's lock (ipam/stores), and the file is read then.  So whoever takes a block out of
use writes that under the store's lock too, and nobody chooses from it afterwards.  A new block may be added without.
The lock ``blocks.lock`` is taken before the store's, never after it.
"""

import hashlib
import os
import secrets
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from base.state import durable
from base.state.locks import Lock

FILE: Final = "blocks"
LOCK: Final = "blocks.lock"

# Seconds for which nobody takes a block of a node that has seen it in the store, and between two heartbeats.
GRACE: Final = 3600
HEARTBEAT: Final = GRACE // 6
# Seconds between two late heartbeats that the store does not answer: each may take a request's whole budget.
SILENT: Final = 30

# Seconds for which a node believes that no block is free, half of them more or less: else each ADD without room lists
# all blocks, on every node of a full pool.
EXHAUSTED: Final = 30

# What a block is to this node.  It gives from what it holds.  What is being returned has no lease, and the store may
# have forgotten it already.  What is lost is another node's, or nobody's, by the store's word; leases may still stand.
HELD: Final = "held"
RETURNING: Final = "returning"
LOST: Final = "lost"
_STATES: Final = frozenset({HELD, RETURNING, LOST})
_COUNTS: Final = ("blocks", "nodes", "at", "until")


@dataclass(frozen=True)
class OwnedBlock:
    """A block of this node.  ``uid`` is its document's, and ``node`` the name that it was claimed under.

    ``taken``: it had another owner, or this node has forgotten its leases, so an address is probed for before its first
    use; ``tried`` are the addresses, as text, that were.  ``idle`` is when it was first seen without a lease (seconds
    since 1970, this node's clock), 0 if it has some.  ``whose``: the name that a number which is set aside is for.
    """

    index: int
    uid: str
    node: str
    state: str = HELD
    taken: bool = False
    tried: frozenset[str] = frozenset()
    idle: int = 0
    whose: str = ""

    def to_json(self) -> Json:
        body: Json = {"index": self.index, "uid": self.uid, "node": self.node, "state": self.state}
        if self.taken:
            body |= {"taken": True, "tried": sorted(self.tried)}
        return body | {key: value for key in ("idle", "whose") if (value := getattr(self, key))}

    @classmethod
    def from_json(cls, body: Json) -> "OwnedBlock":
        """Raises KeyError, TypeError, ValueError."""
        if body["state"] not in _STATES:  # guard: states
            raise ValueError(f"state {body['state']!r}")
        tried = frozenset(map(str, body.get("tried", ())))
        about = str(body["state"]), bool(body.get("taken", False)), tried, int(body.get("idle", 0))
        return cls(int(body["index"]), str(body["uid"]), str(body["node"]), *about, str(body.get("whose", "")))


@dataclass(frozen=True)
class Claim:
    """A block that was asked for, and the text by which its document shows that the answer was yes."""

    index: int
    nonce: str


@dataclass(frozen=True)
class Exhausted:
    """That the store had no block of those ``wanted`` (a digest of their indexes) that this node could have: ``blocks``
    of them were taken, by so many ``nodes``.  It is believed from ``at`` to ``until``, by this node's clock."""

    wanted: str
    blocks: int
    nodes: int
    at: int
    until: int

    def is_of(self, wanted: str) -> bool:
        """Whether it says so of these, and is to be believed still."""
        return self.wanted == wanted and self.at <= time.time() < self.until  # guard: believed-for-a-while (at <=)


@dataclass(frozen=True)
class NodeBlocks:
    """All that this node knows of a network's blocks.

    - ``store``: its kind, as in the configuration; ``identity``: which cluster's it is.
    - ``node``, ``machine``: this node as the store knows it (ipam.cluster.Machine).
    - ``host``, ``boot``: which host wrote this, and in which boot of it; another host looks before it
      gives, and so does another boot if the last look is an hour old.
    - ``sticky``: the numbers that are in no block (documents.PoolLayout).
    - ``size``: how many host numbers a block has; ``subnets``: those that were found to agree with the network's grid.
    - ``claim``: of which no answer has been noted yet.
    - ``place``: which directory it is in (``place_of``): another network of this name may be in another.
    - ``looked``: when the node last saw its blocks in the store, and ``asked``: when it last tried to (seconds since
      1970, by this node's clock).
    - ``exhausted``: what the store said last to a claim, if that was that no block is free.
    - ``revision``: how many changes the store had counted, 0 if that is not known; ``restored``: when it was noticed
      that it was restored to an older state, by the store's clock, 0 for never (restored.py).
    """

    network: str
    store: str
    identity: str
    node: str
    machine: str
    size: int
    subnets: tuple[str, ...] = ()
    blocks: tuple[OwnedBlock, ...] = ()
    claim: Claim | None = None
    looked: int = 0
    asked: int = 0
    place: str = ""
    host: str = field(default_factory=lambda: os.uname().nodename)
    boot: str = field(default_factory=durable.boot_id)
    sticky: str = ""
    exhausted: Exhausted | None = None
    revision: int = 0
    restored: int = 0

    @property
    def giving(self) -> tuple[int, ...]:
        """The indexes of the blocks that new addresses are from."""
        # guard below: gives-what-it-holds (HELD and b)
        return tuple(b.index for b in self.blocks if b.state == HELD and b.node == self.node)

    @property
    def draining(self) -> tuple[int, ...]:
        """The indexes of blocks that this node has under a name that it had before: what has an address there keeps it,
        and nobody gets a new one."""
        return tuple(b.index for b in self.blocks if b.state == HELD and b.node != self.node)

    @property
    def is_ours(self) -> bool:
        """Whether this host wrote it: a copy of its disk must not give from the same blocks."""
        return self.host == os.uname().nodename

    def nonce(self) -> str:
        """A text for a claim, which nobody else makes up; it begins with the place."""
        return f"{self.place}-{secrets.token_hex(16)}"

    def is_of_this_place(self, claim: str) -> bool:
        """Whether the claim was made from here, and not from another directory of a node that is this one's name."""
        return claim.startswith(f"{self.place}-")

    def block(self, index: int) -> OwnedBlock | None:
        """The block with that index; None if it is not this node's."""
        return next((b for b in self.blocks if b.index == index), None)

    def number_of(self, owner: str) -> int | None:
        """The number that is set aside for the name, if this node has it to give."""
        # guard below: given-up ((HELD, self.node) -> (b.state, self.node))
        here = (b.index for b in self.blocks if b.whose == owner and (b.state, b.node) == (HELD, self.node))
        return next(here, None)

    def having(self, *blocks: OwnedBlock) -> "NodeBlocks":
        """The same with these blocks, in place of those with their indexes."""
        new = {b.index: b for b in (*self.blocks, *blocks)}
        return replace(self, blocks=tuple(new[index] for index in sorted(new)))

    def without(self, *indexes: int) -> "NodeBlocks":
        """The same without the blocks with these indexes."""
        return replace(self, blocks=tuple(b for b in self.blocks if b.index not in indexes))

    def to_json(self) -> Json:
        return {
            "network": self.network,
            "store": self.store,
            "identity": self.identity,
            "node": self.node,
            "machine": self.machine,
            "blockSize": self.size,
            "subnets": list(self.subnets),
            "blocks": [b.to_json() for b in self.blocks],
            "claim": vars(self.claim) if self.claim else None,
            "looked": self.looked,
            "asked": self.asked,
            "place": self.place,
            "host": self.host,
            "boot": self.boot,
            **({"sticky": self.sticky} if self.sticky else {}),
            **({"exhausted": vars(self.exhausted)} if self.exhausted else {}),
            **{key: value for key in ("revision", "restored") if (value := getattr(self, key))},
        }

    @classmethod
    def from_json(cls, body: Json) -> "NodeBlocks":
        """Raises KeyError, TypeError, ValueError."""
        claim, none = body["claim"], body.get("exhausted")
        return cls(
            network=str(body["network"]),
            store=str(body["store"]),
            identity=str(body["identity"]),
            node=str(body["node"]),
            machine=str(body["machine"]),
            size=int(body["blockSize"]),
            subnets=tuple(map(str, body["subnets"])),
            blocks=tuple(map(OwnedBlock.from_json, body["blocks"])),
            claim=Claim(int(claim["index"]), str(claim["nonce"])) if claim else None,
            looked=int(body["looked"]),
            asked=int(body["asked"]),
            place=str(body["place"]),
            host=str(body["host"]),
            boot=str(body["boot"]),
            sticky=str(body.get("sticky", "")),
            exhausted=Exhausted(str(none["wanted"]), *(int(none[key]) for key in _COUNTS)) if none else None,
            revision=int(body.get("revision", 0)),
            restored=int(body.get("restored", 0)),
        )


def place_of(directory: Path | str) -> str:
    """A short text for the directory, by its path: the same again after the node was wiped."""
    return hashlib.sha256(os.path.normpath(directory).encode()).hexdigest()[:8]


def read(directory: Path | str) -> NodeBlocks | None:
    """What the node has of the network that is kept there; None if it never had a block.

    Raises RecordUnreadable, IoFailure.
    """
    text = durable.contents(f"{directory}/{FILE}")
    return None if text is None else _parsed(text, f"{directory}/{FILE}")


# A process that is warm reads the same again and again.
@lru_cache(64)
def _parsed(text: bytes, file: str) -> NodeBlocks:
    try:
        return NodeBlocks.from_json(durable.parsed(text, file))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RecordUnreadable(f"{file} is not what this version writes ({e}); a newer version wrote it") from e


def write(directory: Path | str, held: NodeBlocks) -> None:
    """Put it on disk; the caller has ``blocks.lock``.  Raises IoFailure; then what was there stands."""
    durable.write(f"{directory}/{FILE}", held.to_json())


def lock(directory: Path | str, timeout: float) -> Lock:
    """Be alone in asking the store about this network, and in writing the file.

    Raises TryAgain, InvalidConfig, IoFailure.
    """
    path = f"{directory}/{LOCK}"
    return durable.with_directory(path, lambda: Lock(path, timeout))


def must_sync(mine: NodeBlocks) -> bool:
    """Whether the store must say first which blocks this node has: the file is a copy of another host's, or the node
    was off, and others may have its blocks by now."""
    return not mine.is_ours or (mine.boot != durable.boot_id() and _may_be_too_late(mine))  # guard: a-copy (is_ours)


def _may_be_too_late(mine: NodeBlocks) -> bool:
    """Whether the last look is too long ago, or nobody knows how long: a clock that nothing keeps right may begin each
    boot in 1970, or at the time at which the host went off (systemd-timesyncd keeps that in a file)."""
    from base.kernel import syscalls  # noqa: PLC0415  # once in a boot

    return not syscalls.is_clock_synchronized() or _is_past(mine.looked, GRACE)  # guard: kept-right (not syscalls)


def heartbeat_is_due(mine: NodeBlocks) -> bool:
    """Whether a heartbeat is due: none was tried for as long as one counts, or lately where it is late."""
    # guard below: late (SILENT)
    return _is_past(mine.looked, HEARTBEAT) and _is_past(mine.asked, SILENT if is_late(mine) else HEARTBEAT)


def is_late(mine: NodeBlocks) -> bool:
    """Whether others may have taken this node's blocks since its last look."""
    return _is_past(mine.looked, GRACE)


def _is_past(when: int, seconds: int) -> bool:
    # A clock that was set back says nothing.
    return not 0 <= time.time() - when < seconds  # guard: clock-set-back = time.time() - when >= seconds
