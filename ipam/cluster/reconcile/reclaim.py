"""Suspect nodes that seem dead, and find blocks to reclaim from them after the grace (rules/ownership.py)."""

import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from base.protocol.errors import StoreRefused
from ipam.cluster import Document, Documents, Machine
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.reconcile.heartbeat import Found, readable
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import SAID, Block

# Nodes that one search asks the backend about, because a command waits for it.
FEW: Final = 8


def search(documents: Documents, us: Machine, listed: Iterable[Document], log: list[str]) -> Iterator[Found]:
    """Yield the blocks among these documents that may be reclaimed now; suspect other nodes that seem dead.

    Asks the backend about FEW nodes; of more, about the silent ones first.  ``log`` gets each suspicion.  If the
    backend forbids the search, ``log`` gets the reason and other nodes must do it.  Raises Unreachable.
    """
    blocks, nodes = list(readable(listed)), set[str]()
    suspected = {block.node for _, block in blocks if block.suspect}

    @cache
    def asked(node: str) -> tuple[Machine, float]:
        # With the time of this answer: later answers do not renew it.
        owner = documents.machine(node)
        return ownership.of_our_name(owner) if node == us.name else owner, documents.now()

    try:
        owners = {block.node for _, block in blocks if block.node}
        silent = {us.name, *documents.silent(owners)} if len(owners) > FEW else owners
        for document, block in sorted(blocks, key=lambda one: _order(one[1], suspected, silent)):
            if not block.node or (block.node == us.name and block.machine == us.uid):
                continue
            nodes.add(block.node)
            if len(nodes) > FEW:
                return
            owner, now = asked(block.node)
            if ownership.may_take(block, owner, now):
                yield document, block
            else:
                _suspect(documents, (document, block), owner, log)
    except StoreRefused as e:
        log.append(f"the search for blocks of dead nodes failed: {e.msg}")


def release_left(documents: Documents, us: Machine, left: Iterable[Found], log: list[str]) -> None:
    """Release the blocks of another machine of this node's name, when it did not answer for the grace.

    This node was installed anew.  Until then the other machine is suspected.  Raises Unreachable, StoreRefused.
    """
    for document, block in left:
        if not ownership.may_take(block, ownership.of_our_name(us), documents.now()):
            _suspect(documents, (document, block), ownership.of_our_name(us), log)
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


def seconds_left(block: Block, now: float) -> float:
    """Return the seconds until a suspected node's block may be reclaimed; 0 if the node is not suspected."""
    return max(1.0, (block.suspect if block.suspect > SAID else now) + GRACE - now) if block.suspect else 0.0


def _order(block: Block, suspected: Collection[str], silent: Collection[str]) -> tuple[bool, int, bool, bool, int]:
    """Return a sort key: longest suspected first, then other blocks of such nodes, then those of silent nodes.

    The rest is in random order, because each search checks only a few of perhaps a thousand nodes.
    """
    since = block.suspect if block.suspect > SAID else 0
    what = not block.suspect, since, block.node not in suspected, block.node not in silent
    return *what, secrets.randbelow(1 << 30)


def _suspect(documents: Documents, one: Found, owner: Machine, log: list[str]) -> None:
    document, block = one
    began = block.suspect
    while body := ownership.suspect(block, owner, documents.now()):
        after = documents.replace(document, body.to_json())
        if after is None:  # the owner refuted it, or another node was faster
            return
        document, block = after, body
    if block.suspect and not began:
        age = documents.now() - (owner.last_seen or 0)
        when = "never" if owner.last_seen is None else f"{age / 60:.0f} minutes ago"
        log.append(
            f"block {block.index} of {block.network} is {block.node}'s, which seems dead (last alive: {when}, and "
            f"its machine is {'another' if owner.uid else 'gone'}); other nodes may reclaim it in {GRACE // 60} minutes"
        )
