"""Suspect nodes that seem dead, and find blocks to reclaim from them after the grace (rules/ownership.py)."""

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from base.protocol.errors import BackendRefused
from ipam.cluster import Document, Documents, Machine, Owner
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.reconcile.heartbeat import Found, read_block
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import SAID, Block

# Nodes that one search asks the backend about, because a command waits for it.
FEW: Final = 8
# How soon a block is worth a request.
_RIPE: Final = 0  # its suspicion has stood for the grace
_SILENT: Final = 1  # its owner seems dead
_DOUBTFUL: Final = 2  # its owner is suspected, and seems alive
_REST: Final = 3


def search(
    documents: Documents, us: Machine, found: Sequence[Found], log: list[str], known: dict[int, Block] | None = None
) -> Iterator[Found]:
    """Yield those of the blocks that may be reclaimed now; suspect other nodes that seem dead.

    Asks the backend about FEW nodes, and about none whose suspicion waits for its grace.  Removes a suspicion that the
    answer refutes.  ``log`` gets each new suspicion.  If the backend forbids the search, ``log`` gets the reason and
    other nodes must do it.  ``known`` gets all blocks by index, as the search leaves them.  Raises Unreachable.
    """
    known = {} if known is None else known
    known |= {block.index: block for _, block in found}
    try:
        yield from _search(documents, us, found, log, known)
    except BackendRefused as e:
        log.append(f"the search for blocks of dead nodes failed: {e.msg}")


def patrol(documents: Documents, us: Machine, network: str, index: int, log: list[str]) -> None:
    """Suspect the owner of that block if it seems dead, or remove a refuted suspicion.  Raises Unreachable.

    All nodes together so suspect the dead ones before a node needs their blocks, and none lists all blocks for that.
    """
    try:
        if found := read_block(documents, network, index):
            for _ in _search(documents, us, [found], log, {}):
                return  # it waits for a node that needs it
    except BackendRefused:
        return  # a search reports it when a node needs a block


def release_left(documents: Documents, us: Machine, left: Iterable[Found], log: list[str]) -> None:
    """Release the blocks of another machine of this node's name, when it did not answer for the grace.

    This node was installed anew.  Until then the other machine is suspected.  Raises Unreachable, BackendRefused.
    """
    for document, block in left:
        if not ownership.may_take(block, us, documents.now()):
            suspect(documents, (document, block), us, log)
        elif release(documents, document):
            log.append(
                f"block {block.index} of {block.network} was another machine's of this node's name, and is released"
            )


def release(documents: Documents, document: Document) -> bool:
    """Release the block, or the number, which stays reserved for its name; False if its document changed meanwhile."""
    if not document.body.get("whose"):
        return documents.remove(document)
    # The next owner probes for the address.
    free = replace(Block.of(document).freed(int(documents.now())), taken=True)
    return bool(documents.replace(document, free.to_json()))


def suspect(documents: Documents, one: Found, owner: Machine, log: list[str]) -> Document | None:
    """Suspect the block's owner if it seems dead: first without a time, then with one.

    Return the document afterwards; None if it changed meanwhile: the owner refuted it, or another node was faster.
    """
    document, block = one
    began = block.suspect
    while body := ownership.suspect(block, owner, documents.now()):
        after = documents.replace(document, body.to_json())
        if after is None:
            return None
        document, block = after, body
    if block.suspect and not began:
        age = documents.now() - (owner.last_seen or 0)
        when = "never" if owner.last_seen is None else f"{age / 60:.0f} minutes ago"
        log.append(
            f"block {block.index} of {block.network} is {block.node}'s, which seems dead (last alive: {when}, and "
            f"its machine is {'another' if owner.uid else 'gone'}); other nodes may reclaim it in {GRACE // 60} minutes"
        )
    return document


def clear(documents: Documents, one: Found, owner: Machine, now: float) -> Document | None:
    """Remove a suspicion that the owner's last report refutes, because the owner may not use this network any more.

    Return the changed document, if it was to be changed and no other node was faster.
    """
    document, block = one
    body = ownership.cleared(block, owner, now)
    return documents.replace(document, body.to_json()) if body else None


def seconds_left(block: Block, now: float) -> float:
    """Return the seconds until a suspected node's block may be reclaimed; 0 if the node is not suspected."""
    return max(1.0, (block.suspect if block.suspect > SAID else now) + GRACE - now) if block.suspect else 0.0


def _search(
    documents: Documents, us: Machine, found: Sequence[Found], log: list[str], known: dict[int, Block]
) -> Iterator[Found]:
    """As ``search``.  Raises BackendRefused too."""

    @cache
    def asked(node: str, uid: str) -> tuple[Machine, float]:
        # With the time of this answer: later answers do not renew it.
        owner = documents.machine(node, uid)
        # The backend may know no machines, and every report of our name is ours.
        return replace(owner, uid=us.uid, last_seen=None) if node == us.name else owner, documents.now()

    others = [one for one in found if one[1].node and _owner(one[1]) != (us.name, us.uid)]
    owners, nodes, may_clear = {_owner(block) for _, block in others}, set[str](), True
    # A Lease can show the former machine for a moment, which must refute no suspicion.
    doubted = {block.node for _, block in others if block.suspect}
    silent = {*documents.silent(owners)} if len({name for name, _ in owners}) > FEW else owners
    for document, block in _in_order(others, silent | {one for one in owners if one[0] == us.name}, documents.now()):
        nodes.add(block.node)
        if len(nodes) > FEW:
            return
        owner, now = asked(block.node, "" if block.node in doubted else block.machine)
        after: Document | None = None
        if ownership.may_take(block, owner, now):
            yield document, block
        elif ownership.is_dead(block, owner, now):
            after = suspect(documents, (document, block), owner, log)
        elif may_clear:
            try:
                after = clear(documents, (document, block), owner, now)
            except BackendRefused:  # by an older policy of the cluster; the search must go on
                may_clear = False
        if after:
            known[block.index] = Block.of(after)


def _owner(block: Block) -> Owner:
    return block.node, block.machine


def _in_order(found: Sequence[Found], silent: Collection[Owner], now: float) -> list[Found]:
    """Return the blocks that are worth a request, the soonest first, and those of one node together.

    Nodes are in random order, because each search asks about only a few of perhaps a thousand, and others search too.
    In every other search, nodes with a suspected block go first: a dead node's other blocks then need no random find.
    """
    suspected = {block.node for _, block in found if block.suspect} if secrets.randbelow(2) else set[str]()
    nodes = dict.fromkeys(block.node for _, block in found)
    order = {node: (node not in suspected, secrets.randbelow(1 << 30)) for node in nodes}
    ranked = [(rank, one) for one in found if (rank := _rank(one[1], silent, now)) is not None]
    return [one for _, one in sorted(ranked, key=lambda r: (r[0], order[r[1][1].node]))]


def _rank(block: Block, silent: Collection[Owner], now: float) -> int | None:
    """Return how soon the block is worth a request; None while its suspicion waits for its grace."""
    if _owner(block) not in silent:
        return _DOUBTFUL if block.suspect else _REST
    if block.suspect <= SAID:
        return _SILENT
    return _RIPE if ownership.is_ripe(block, now) else None
