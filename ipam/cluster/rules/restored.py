"""That the store was restored to an older state, so that others' blocks may be missing in it.

A store counts its changes, and a node notes in its file of blocks how far that was.  Less than that later, or a
document of the node's own that is gone, says that the store was restored.  For the grace from then on whatever the
node claims counts as taken from another, so that its addresses are probed for: by then every node that is up has looked
at its blocks, and made those again that are missing.

The grace is of the store's clock.  No node notices it that had seen nothing of the store since the backup.
"""

from dataclasses import replace

from ipam.cluster import Document
from ipam.cluster.rules.documents import Block
from ipam.cluster.state.node_blocks import GRACE, NodeBlocks, OwnedBlock

# Digits of a count of changes: it has 64 bits.
_DIGITS = 20


def number(version: object) -> int:
    """The version as a count of changes; 0 if it is none, and then nothing is noticed by it."""
    if isinstance(version, str) and version.isascii() and version.isdecimal() and len(version) <= _DIGITS:
        return int(version)
    return 0


def noticed(mine: NodeBlocks, revision: int, now: float, said: list[str], own: int = 0) -> NodeBlocks:
    """With how many changes the store has counted, as it says at this time of its clock; 0 if it does not say.  ``own``
    of them this node has made since it noted that last."""
    if not revision:
        return mine
    after = replace(mine, revision=revision)
    if revision >= mine.revision + own:  # guard: fewer-than-before = True
        return after
    return doubted(after, f"it has counted {revision} changes, and had counted {mine.revision} before", now, said)


def doubted(mine: NodeBlocks, why: str, now: float, said: list[str]) -> NodeBlocks:
    """With the store restored to an older state, for the reason in words; ``said`` gets that once."""
    if not is_in_doubt(mine, now):
        said.append(
            f"network {mine.network}: the cluster's store was restored to an older state ({why}), and others' blocks "
            f"may be missing there: for {GRACE // 60} minutes this node probes for addresses of blocks that it claims"
        )
    return replace(mine, restored=int(now))


def is_in_doubt(mine: NodeBlocks, now: float) -> bool:
    """Whether the blocks that this node claims may be others' still."""
    return bool(mine.restored) and now - mine.restored < GRACE  # guard: for-the-grace (GRACE)


def claimed(mine: NodeBlocks, document: Document, now: float, said: list[str]) -> NodeBlocks:
    """With the block that the document has made this node's just now."""
    block = Block.of(document)
    had = mine.block(block.index)
    mine = noticed(mine, number(document.version), now, said, own=1)  # guard: own-are-more (own)
    # guard below: in-doubt (mine), still-taken (had and had)
    taken = block.taken or bool(had and had.taken) or is_in_doubt(mine, now)
    one = OwnedBlock(block.index, document.uid, block.node, taken=taken, whose=block.whose)
    return replace(mine.having(one), claim=None, exhausted=None)
