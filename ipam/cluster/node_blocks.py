"""This node's blocks of a shared network, in a file beside the leases.

    <network>/
      blocks          JSON with a checksum (base/state/durable.py), on disk before any allocation from a new block
      blocks.lock     flock: held by a command that writes the file or asks the backend about this network

A choice of an address runs under the lock of the leases (ipam/stores) and reads the file there.  So a command that
withdraws a block also writes the file under that lock, and no later choice uses the block.  Adding a block needs no
such lock.  Take ``blocks.lock`` before the lock of the leases, never after it.
"""

import hashlib
import os
import secrets
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.spec import Json
from base.state import durable
from base.state.locks import Lock

FILE: Final = "blocks"
LOCK: Final = "blocks.lock"

# Seconds for which a node surely keeps its blocks after a heartbeat, and between two heartbeats.
GRACE: Final = 3600
HEARTBEAT: Final = GRACE // 6
# Seconds between two late heartbeats without an answer: each may cost a request's whole budget.
SILENT: Final = 30

# Seconds for which a node remembers that no block is free, plus or minus half.  Otherwise each ADD without room lists
# all blocks, on every node of a full pool.
EXHAUSTED: Final = 30
# Seconds for which a round claims nothing ahead after that: an ADD without room asks itself.
AHEAD: Final = GRACE // 2

# States of a block on this node.  Only a held block serves new addresses.  A returning block has no lease, and its
# document may be gone already.  A lost block belongs to another node or to none; leases may remain.
HELD: Final = "held"
RETURNING: Final = "returning"
LOST: Final = "lost"
_STATES: Final = frozenset({HELD, RETURNING, LOST})
# Keys of the file: strings that are always there, and keys that are left out when empty.
_TEXTS: Final = ("network", "backend", "identity", "node", "machine", "place", "host", "boot")
_OPTIONAL: Final = ("sticky", "exhausted", "revision", "restored")


@dataclass(frozen=True)
class OwnedBlock:
    """A block of this node.

    - ``uid``: its document's; ``node``: this node's name at the claim.
    - ``taken``: it had another owner, or this node forgot its leases.  So each address is probed for before its first
      use; ``tried`` holds the addresses, as text, that were.
    - ``idle``: when a round first found it without a lease (seconds since 1970, this node's clock); 0 if it has some.
    - ``whose``: for a reserved number, the name that owns it.
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
        if body["state"] not in _STATES:
            raise ValueError(f"state {body['state']!r}")
        tried = frozenset(map(str, body.get("tried", ())))
        about = str(body["state"]), bool(body.get("taken", False)), tried, int(body.get("idle", 0))
        return cls(int(body["index"]), str(body["uid"]), str(body["node"]), *about, str(body.get("whose", "")))


@dataclass(frozen=True)
class PendingClaim:
    """A claim without an answer yet; ``nonce`` is the random text that its document contains on success."""

    index: int
    nonce: str


@dataclass(frozen=True)
class Exhausted:
    """The backend had no free block among those ``wanted`` (a digest of their indexes).

    ``why`` is the backend's answer, for people.  Valid from ``at`` to ``until``, by this node's clock.
    """

    wanted: str
    why: str
    at: int
    until: int

    @classmethod
    def from_json(cls, body: Json) -> "Exhausted | None":
        """Return None for counts in place of the reason, of a former version: the node asks again."""
        return cls(body["wanted"], body["why"], int(body["at"]), int(body["until"])) if "why" in body else None

    def is_of(self, wanted: str, *, is_ahead: bool = False) -> bool:
        """Whether it describes these blocks, and is still valid, for an ADD or for a claim ahead of need."""
        until = max(self.until, self.at + AHEAD) if is_ahead else self.until
        return self.wanted == wanted and self.at <= time.time() < until


@dataclass(frozen=True)
class NodeBlocks:
    """All that this node knows of a network's blocks.

    - ``backend``: its kind, as configured; ``identity``: the cluster that the backend belongs to.
    - ``node``, ``machine``: this node as the backend knows it (ipam.cluster.Machine).
    - ``host``, ``boot``: the host and the boot that wrote this file.  Another host must sync before it allocates; so
      must another boot, if the last heartbeat is older than the grace.
    - ``sticky``: the numbers reserved for names (documents.PoolLayout).
    - ``size``: host numbers per block; ``subnets``: those found to agree with the network's pool layout.
    - ``claim``: one without a recorded answer.
    - ``place``: identifies the directory (``place_of``), because another directory may hold a network of this name.
    - ``looked``: the last heartbeat; ``asked``: the last attempt (seconds since 1970, this node's clock).
    - ``exhausted``: the backend's last answer to a claim, if no block was free.
    - ``revision``: the backend's count of changes, 0 if unknown; ``restored``: when this node noticed a restore to an
      older state, by the backend's clock, 0 for never (ownership.py).
    """

    network: str
    backend: str
    identity: str
    node: str
    machine: str
    size: int
    subnets: tuple[str, ...] = ()
    blocks: tuple[OwnedBlock, ...] = ()
    claim: PendingClaim | None = None
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
        """The indexes of the blocks for new addresses."""
        return tuple(b.index for b in self.blocks if b.state == HELD and b.node == self.node)

    @property
    def draining(self) -> tuple[int, ...]:
        """The indexes of blocks claimed under a former name of this node.

        Attachments keep their addresses there; no new address comes from them.
        """
        return tuple(b.index for b in self.blocks if b.state == HELD and b.node != self.node)

    @property
    def is_ours(self) -> bool:
        """Whether this host wrote the file; a copied disk must not allocate from the same blocks."""
        return self.host == os.uname().nodename

    def nonce(self) -> str:
        """Return a new unique text for a claim; it begins with ``place``."""
        return f"{self.place}-{secrets.token_hex(16)}"

    def is_of_this_place(self, claim: str) -> bool:
        """Whether the claim came from this directory, and not from another one of a node of this name."""
        return claim.startswith(f"{self.place}-")

    def block(self, index: int) -> OwnedBlock | None:
        return next((b for b in self.blocks if b.index == index), None)

    def number_of(self, owner: str) -> int | None:
        """Return the name's reserved number, if this node owns it and may allocate it."""
        here = (b.index for b in self.blocks if b.whose == owner and (b.state, b.node) == (HELD, self.node))
        return next(here, None)

    def having(self, *blocks: OwnedBlock) -> "NodeBlocks":
        """Return a copy with these blocks added, or replaced by index."""
        new = {b.index: b for b in (*self.blocks, *blocks)}
        return replace(self, blocks=tuple(new[index] for index in sorted(new)))

    def without(self, *indexes: int) -> "NodeBlocks":
        return replace(self, blocks=tuple(b for b in self.blocks if b.index not in indexes))

    def to_json(self) -> Json:
        body = {key: value for key, value in vars(self).items() if value or key not in _OPTIONAL}
        body["blockSize"] = body.pop("size")
        body |= {"subnets": list(self.subnets), "blocks": [b.to_json() for b in self.blocks]}
        return body | {key: vars(value) for key in ("claim", "exhausted") if (value := body.get(key))}

    @classmethod
    def from_json(cls, body: Json) -> "NodeBlocks":
        """Raises KeyError, TypeError, ValueError."""
        body = {"backend": body.get("store"), **body}  # its former name
        claim, none = body["claim"], body.get("exhausted")
        return cls(
            **{key: str(body[key]) for key in _TEXTS},
            size=int(body["blockSize"]),
            subnets=tuple(map(str, body["subnets"])),
            blocks=tuple(map(OwnedBlock.from_json, body["blocks"])),
            claim=PendingClaim(int(claim["index"]), str(claim["nonce"])) if claim else None,
            looked=int(body["looked"]),
            asked=int(body["asked"]),
            sticky=str(body.get("sticky", "")),
            exhausted=Exhausted.from_json(none) if none else None,
            revision=int(body.get("revision", 0)),
            restored=int(body.get("restored", 0)),
        )


def place_of(directory: Path | str) -> str:
    """Return a short digest of the directory's path; it is the same after the node is wiped."""
    return hashlib.sha256(os.path.normpath(directory).encode()).hexdigest()[:8]


def read(directory: Path | str) -> NodeBlocks | None:
    """Return this node's blocks of the network in that directory; None if it never had one.

    Raises RecordUnreadable, IoFailure.
    """
    text = durable.contents(f"{directory}/{FILE}")
    return None if text is None else _parsed(text, f"{directory}/{FILE}")


# A warm worker reads the same text for each request.
@lru_cache(64)
def _parsed(text: bytes, file: str) -> NodeBlocks:
    try:
        return NodeBlocks.from_json(durable.parsed(text, file))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RecordUnreadable(f"{file} is not what this version writes ({e}); a newer version wrote it") from e


def write(directory: Path | str, held: NodeBlocks) -> None:
    """Write the file; the caller holds ``blocks.lock``.  Raises IoFailure and then leaves the old file."""
    durable.write(f"{directory}/{FILE}", held.to_json())


def lock(directory: Path | str, timeout: float) -> Lock:
    """Return the lock for requests about this network and for writing the file.

    Raises TryAgain, InvalidConfig, IoFailure.
    """
    path = f"{directory}/{LOCK}"
    try:
        return durable.with_directory(path, lambda: Lock(path, timeout))
    except OSError as e:
        raise IoFailure(f"locking {path}: {e.strerror}; the state directory must be writable and have room") from e


def must_sync(mine: NodeBlocks) -> bool:
    """Whether the backend must confirm this node's blocks before any allocation.

    It must if the file is a copy from another host, or if the node was off for long enough to lose blocks.
    """
    return not mine.is_ours or (mine.boot != durable.boot_id() and _may_be_too_late(mine))


def _may_be_too_late(mine: NodeBlocks) -> bool:
    """Whether the last heartbeat is too old, or of unknown age.

    An unsynchronized clock may start each boot in 1970, or at the time of the shutdown (systemd-timesyncd saves it).
    """
    from base.kernel import syscalls  # noqa: PLC0415  # once in a boot

    return not syscalls.is_clock_synchronized() or _is_past(mine.looked, GRACE)


def heartbeat_is_due(mine: NodeBlocks) -> bool:
    """Whether to send a heartbeat: none was tried for its interval, or for a shorter one if it is late."""
    return _is_past(mine.looked, HEARTBEAT) and _is_past(mine.asked, SILENT if is_late(mine) else HEARTBEAT)


def is_late(mine: NodeBlocks) -> bool:
    """Whether other nodes may have reclaimed this node's blocks since its last heartbeat."""
    return _is_past(mine.looked, GRACE)


def _is_past(when: int, seconds: int) -> bool:
    # After a clock was set back, the age is unknown.
    return not 0 <= time.time() - when < seconds
