"""Decide when a block may change its owner, and when a node owns too few blocks or too many.  Pure.

A node counts as dead on two conditions.  The backend knows no machine with the name and UID in the block.  The node was
not reported alive for the grace.  One is not enough, because a Node object can be deleted while the node's pods run.
If another machine has the name, the first is enough: all reports of that name are the other machine's.  Another node
then suspects the owner in the block's document.  It may reclaim the block when the suspicion has stood there for the
grace.  A live owner refutes it: each node sends a heartbeat every sixth of the grace, which also writes its machine's
new UID.

All times are the backend's (Documents.now), so no node's clock counts.  A process may stall between reading that clock
and writing a document, so the time of a write is unknown.  A suspicion counts from the time at which a node read it.

The backend can be restored to an older state, in which blocks of other nodes are missing.  A backend counts its
changes, and each node records the count.  A lower count later, or a missing document of an own block, reveals the
restore.  For the grace after that, each block that this node claims counts as taken, so its addresses are probed for.
By then every running node sent a heartbeat, and created its missing documents again.  A node that read nothing since
the backup does not notice the restore.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipam.cluster import Document, Machine
from ipam.cluster.node_blocks import GRACE, HELD, NodeBlocks, OwnedBlock
from ipam.cluster.rules.documents import SAID, Block

# Seconds for which a block must stay empty before its release.
IDLE: Final = 900
# Host numbers that a node keeps free.
_RESERVE: Final = 8
# Digits of a 64-bit count of changes.
_DIGITS = 20


def is_dead(block: Block, owner: Machine, now: float) -> bool:
    """Whether the block's owner counts as dead; ``owner`` is what the backend knows of the node of that name."""
    last_seen = _last_seen(block, owner)
    is_gone = not owner.uid or owner.uid != block.machine
    return is_gone and (last_seen is None or now - last_seen > GRACE)


def _last_seen(block: Block, owner: Machine) -> float | None:
    """Return when the block's owner was last reported alive; None if another machine has its name now."""
    return None if block.machine and owner.uid not in ("", block.machine) else owner.last_seen


def suspect(block: Block, owner: Machine, now: float) -> Block | None:
    """Return the document's next content about its owner; None if it needs no change, or the owner is alive.

    The first suspicion has no time; the next reader adds one.  It starts anew if the owner was reported alive since.
    """
    if not is_dead(block, owner, now):
        return None
    if not block.suspect:
        return replace(block, suspect=SAID)
    # One second more, because an HTTP date has whole seconds.
    return None if _stands(block, owner) else replace(block, suspect=int(now) + 1)


def may_take(block: Block, owner: Machine, now: float) -> bool:
    """Whether another node may reclaim the block."""
    return is_dead(block, owner, now) and _stands(block, owner) and is_ripe(block, now)


def is_ripe(block: Block, now: float) -> bool:
    """Whether the suspicion of the block's owner has stood for the grace."""
    return block.suspect > SAID and now - block.suspect > GRACE


def cleared(block: Block, owner: Machine, now: float) -> Block | None:
    """Return the document without a suspicion that a report of the owner refutes; None if it needs no change."""
    return replace(block, suspect=0) if block.suspect and not is_dead(block, owner, now) else None


def _stands(block: Block, owner: Machine) -> bool:
    """Whether the suspicion has a time, and the owner was not reported alive after it."""
    last_seen = _last_seen(block, owner)
    return block.suspect > SAID and (last_seen is None or last_seen < block.suspect)


def answer(block: Block, machine: str) -> Block | None:
    """Return the document of a block of this node with any suspicion refuted; None if it needs no change."""
    right = replace(block, suspect=0, machine=machine)
    return None if right == block else right


# For each range set, the free addresses of each block, by the block's index.
Free = Sequence[Mapping[int, int]]


def room(free: Free, blocks: Iterable[int]) -> int:
    """Return how many more attachments these blocks can serve: each gets one address of every set."""
    indexes = set(blocks)
    return min((sum(number for index, number in of.items() if index in indexes) for of in free), default=0)


def reserve(size: int) -> int:
    """Return how many host numbers a node keeps free ahead of need: eight, or a quarter of a block if that is less."""
    return max(1, min(_RESERVE, size // 4))


def seen_idle(block: OwnedBlock, used: int, now: int) -> OwnedBlock:
    """Return the block after a round that found ``used`` of its addresses in use, at ``now`` by this node's clock."""
    if used:
        return replace(block, idle=0)
    # A time after ``now`` is from before the clock was set back.
    return block if 0 < block.idle <= now else replace(block, idle=now)


def to_return(blocks: Sequence[OwnedBlock], free: Free, size: int, now: int) -> tuple[int, ...]:
    """Return the indexes of the blocks to release.

    They were empty in two rounds, and the blocks that stay have twice the reserve in every set that they serve.  One
    block always stays.  All stay if it is unknown which sets they serve.
    """
    stay, back = {block.index for block in blocks if block.state == HELD}, list[int]()
    for block in reversed(blocks if free else ()):
        rest = stay - {block.index}
        served = [of for of in free if of.get(block.index)]
        is_idle = block.index in stay and block.idle and now - block.idle >= IDLE
        if is_idle and rest and all(room([of], rest) >= 2 * reserve(size) for of in served):
            stay = rest
            back.append(block.index)
    return tuple(back)


def short(free: Free, blocks: Iterable[int], size: int) -> list[int]:
    """Return the positions of the sets with less room than the reserve."""
    return [place for place, of in enumerate(free) if room([of], blocks) < reserve(size)]


def change_count(version: object) -> int:
    """Return the version as a count of changes; 0 if it is not a count, and then no restore is detected."""
    if isinstance(version, str) and version.isascii() and version.isdecimal() and len(version) <= _DIGITS:
        return int(version)
    return 0


def note_revision(mine: NodeBlocks, revision: int, now: float, log: list[str], own: int = 0) -> NodeBlocks:
    """Return the node's blocks with the backend's count of changes at ``now``; a count of 0 changes nothing.

    ``own`` is the number of changes that this node made since the last count.
    """
    if not revision:
        return mine
    after = replace(mine, revision=revision)
    if revision >= mine.revision + own:
        return after
    return doubt(after, f"it counts {revision} changes, and counted {mine.revision} before", now, log)


def doubt(mine: NodeBlocks, why: str, now: float, log: list[str]) -> NodeBlocks:
    """Return the node's blocks with the backend marked as restored; ``log`` gets that once, with the reason."""
    if not is_in_doubt(mine, now):
        log.append(
            f"network {mine.network}: the cluster's backend was restored to an older state ({why}); others' blocks "
            f"may be missing there; for {GRACE // 60} minutes this node probes for addresses of blocks that it claims"
        )
    return replace(mine, restored=int(now))


def is_in_doubt(mine: NodeBlocks, now: float) -> bool:
    """Whether blocks that this node claims may still belong to others."""
    return bool(mine.restored) and now - mine.restored < GRACE


def claimed(mine: NodeBlocks, document: Document, now: float, log: list[str]) -> NodeBlocks:
    """Return the node's blocks with the one that this document just assigned to it."""
    block = Block.of(document)
    had = mine.block(block.index)
    mine = note_revision(mine, change_count(document.version), now, log, own=1)
    taken = block.taken or bool(had and had.taken) or is_in_doubt(mine, now)
    one = OwnedBlock(block.index, document.uid, block.node, taken=taken, whose=block.whose)
    return replace(mine.having(one), claim=None, exhausted=None)
