"""When a block may change its owner, and when a node has too few of them or too many.  Pure.

A node counts as dead if the store knows no machine of its name that has the block, and has heard of no such node for
the grace.  Both have to hold: a Node object may be deleted while the node's pods run.  Then somebody who needs a block
says so in the block's document, and may take it when that has stood there for the grace.  An owner that lives sees it
there and removes it: each node sends a heartbeat every sixth of the grace.

All times are the store's (Documents.now), so no node's clock counts.  A process may stall between reading that clock
and writing a document.  So nobody knows when a document is written, and a suspicion counts from the time at which
somebody has read it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipam.cluster import Document, Machine
from ipam.cluster.rules.documents import SAID, Block
from ipam.cluster.state import node_blocks
from ipam.cluster.state.node_blocks import HELD, NodeBlocks, OwnedBlock

# Seconds for which a node is waited for.
GRACE: Final = node_blocks.GRACE
# Seconds between two heartbeats of a node: it may miss some of them, and answers in time all the same.
HEARTBEAT: Final = node_blocks.HEARTBEAT
# Seconds between two rounds that find a block empty before it is given back.
IDLE: Final = 900
# Host numbers that a node has in reserve.
_RESERVE: Final = 8
# Digits of a count of changes: it has 64 bits.
_DIGITS = 20


def is_dead(block: Block, owner: Machine, now: float) -> bool:
    """Whether the block's owner is to be taken for dead; ``owner`` is what the store knows of the node of its name."""
    is_gone = not owner.uid or owner.uid != block.machine
    # guard below: machine-gone (is_gone), heard (None or now)
    return is_gone and (owner.last_seen is None or now - owner.last_seen > GRACE)


def suspect(block: Block, owner: Machine, now: float) -> Block | None:
    """What the block's document is to say of its owner from now on; None if it says that already, or the owner lives.

    At first that it is suspected, then since when that has been known; it begins anew if the owner was heard of.
    """
    if not is_dead(block, owner, now):
        return None
    if not block.suspect:
        return replace(block, suspect=SAID)  # guard: said-first (SAID -> int(now) + 1)
    # A second more: an HTTP date has whole seconds.
    return None if _stands(block, owner) else replace(block, suspect=int(now) + 1)


def may_take(block: Block, owner: Machine, now: float) -> bool:
    """Whether another node may have the block."""
    return is_dead(block, owner, now) and _stands(block, owner) and now - block.suspect > GRACE  # guard: grace (GRACE)


def _stands(block: Block, owner: Machine) -> bool:
    """Whether it is known since when the owner has been suspected, and it was not heard of afterwards."""
    # guard below: time-known (SAID -> 0), heard-since (None or owner)
    return block.suspect > SAID and (owner.last_seen is None or owner.last_seen < block.suspect)


def of_our_name(owner: Machine) -> Machine:
    """What counts of a node that has our name and is not us: the store hears of it whenever it hears of us."""
    return replace(owner, last_seen=None)


def answer(block: Block, machine: str) -> Block | None:
    """What the document of our block is to say, if that is not what it says: we live, on that machine."""
    right = replace(block, suspect=0, machine=machine)
    return None if right == block else right


# Of each range set, how many addresses each block has free, by its index.
Free = Sequence[Mapping[int, int]]


def room(free: Free, blocks: Iterable[int]) -> int:
    """How many attachments more the blocks have addresses for: each gets one of every set."""
    indexes = set(blocks)
    return min((sum(number for index, number in of.items() if index in indexes) for of in free), default=0)


def reserve(size: int) -> int:
    """How many host numbers a node with blocks of that size is to have free before anybody asks: eight, or a quarter of
    a block where that is less."""
    return max(1, min(_RESERVE, size // 4))


def seen_idle(block: OwnedBlock, used: int, now: int) -> OwnedBlock:
    """The block after a round that found so many of its addresses used, at a time of this node's clock."""
    if used:  # guard: used
        return replace(block, idle=0)
    # What was seen after now was seen before the clock was set back.
    return block if 0 < block.idle <= now else replace(block, idle=now)


def to_return(blocks: Sequence[OwnedBlock], free: Free, size: int, now: int) -> tuple[int, ...]:
    """The indexes of the blocks to be given back: they were empty twice, and what stays has room for long enough in
    every set that they serve.  One block always stays; and so do all where it is not known what they serve."""
    stay, back = {block.index for block in blocks if block.state == HELD}, list[int]()
    for block in reversed(blocks if free else ()):  # guard: what-is-served (free)
        rest = stay - {block.index}
        served = [of for of in free if of.get(block.index)]
        is_idle = block.index in stay and block.idle and now - block.idle >= IDLE
        # guard below: last-stays (rest and)
        if is_idle and rest and all(room([of], rest) >= 2 * reserve(size) for of in served):
            stay = rest
            back.append(block.index)
    return tuple(back)


def short(free: Free, blocks: Iterable[int], size: int) -> list[int]:
    """The places of the sets of which the blocks have too little to wait until somebody asks."""
    return [place for place, of in enumerate(free) if room([of], blocks) < reserve(size)]


def change_count(version: object) -> int:
    """The version as a count of changes; 0 if it is none, and then nothing is noticed by it."""
    if isinstance(version, str) and version.isascii() and version.isdecimal() and len(version) <= _DIGITS:
        return int(version)
    return 0


def note_revision(mine: NodeBlocks, revision: int, now: float, log: list[str], own: int = 0) -> NodeBlocks:
    """With how many changes the store has counted, as it says at this time of its clock; 0 if it does not say.  ``own``
    of them this node has made since it noted that last."""
    if not revision:
        return mine
    after = replace(mine, revision=revision)
    if revision >= mine.revision + own:  # guard: fewer-than-before = True
        return after
    return doubt(after, f"it has counted {revision} changes, and had counted {mine.revision} before", now, log)


def doubt(mine: NodeBlocks, why: str, now: float, log: list[str]) -> NodeBlocks:
    """With the store restored to an older state, for the reason in words; ``log`` gets that once."""
    if not is_in_doubt(mine, now):
        log.append(
            f"network {mine.network}: the cluster's store was restored to an older state ({why}), and others' blocks "
            f"may be missing there: for {GRACE // 60} minutes this node probes for addresses of blocks that it claims"
        )
    return replace(mine, restored=int(now))


def is_in_doubt(mine: NodeBlocks, now: float) -> bool:
    """Whether the blocks that this node claims may be others' still."""
    return bool(mine.restored) and now - mine.restored < GRACE  # guard: for-the-grace (GRACE)


def claimed(mine: NodeBlocks, document: Document, now: float, log: list[str]) -> NodeBlocks:
    """With the block that the document has made this node's just now."""
    block = Block.of(document)
    had = mine.block(block.index)
    mine = note_revision(mine, change_count(document.version), now, log, own=1)  # guard: own-are-more (own)
    # guard below: in-doubt (mine), still-taken (had and had)
    taken = block.taken or bool(had and had.taken) or is_in_doubt(mine, now)
    one = OwnedBlock(block.index, document.uid, block.node, taken=taken, whose=block.whose)
    return replace(mine.having(one), claim=None, exhausted=None)
