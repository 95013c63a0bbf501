"""Release the blocks of dead nodes: hpn ipam gc --cluster and release-node."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from base.kernel import budget
from base.protocol.errors import CniError
from base.protocol.spec import Json
from ctl.screen import moment, progress
from ipam.cluster import BLOCK, Document, Documents, Machine
from ipam.cluster.node_blocks import GRACE, HEARTBEAT
from ipam.cluster.reconcile import reclaim
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import SAID, Block, layout_name

# Outcomes for a block.
REMOVED, FREED, SUSPECT, WAITING = "removed", "freed", "suspect", "waiting"
CHANGED, FAILED = "changed", "failed"
_WORDS = {
    REMOVED: "removed",
    FREED: "free for its name on any node",
    SUSPECT: "its node is suspected from now on",
    WAITING: "its node is suspected, and the grace is not over",
    CHANGED: "left, because it changed meanwhile: its node lives, or another node was faster",
    FAILED: "left",
}
_DRY = {
    **_WORDS,
    REMOVED: "would be removed",
    FREED: "would be free for its name",
    SUSPECT: "its node would be suspected from now on",
}

# What the backend knows of a node, and its clock at that answer.
Asked = Callable[[str], tuple[Machine, float]]


@dataclass(frozen=True)
class Outcome:
    """The outcome for a dead node's block, or the expected one; ``why`` if it failed."""

    block: str
    node: str
    what: str
    why: str = ""

    def words(self, *, dry_run: bool) -> str:
        said = (_DRY if dry_run else _WORDS)[self.what]
        return f"block {self.block} of node {self.node}: {said}" + (f": {self.why}" if self.why else "")

    def to_json(self) -> Json:
        return {key: value for key, value in vars(self).items() if value}


def collect(documents: Documents, network: str = "", *, dry_run: bool) -> list[Outcome]:
    """Suspect nodes that seem dead, and remove the blocks of those suspected for the grace.  Raises CniError."""

    @cache
    def asked(node: str) -> tuple[Machine, float]:
        # With the time of this answer: later answers do not renew it.
        return documents.machine(node), documents.now()

    found = progress(documents.listed(BLOCK, network or None), "looking at blocks")
    every = [_outcome(one, partial(_check, documents, one, asked, dry_run=dry_run)) for one in found]
    return [one for one in every if one.what]


def _outcome(document: Document, act: Callable[[], str]) -> Outcome:
    """Return the outcome of one block; an error is one too."""
    node = str(document.body.get("node", ""))
    budget.begin(is_patient=True)
    try:
        return Outcome(document.name, node, act())
    except CniError as e:
        return Outcome(document.name, node, FAILED, e.msg)


def _check(documents: Documents, document: Document, asked: Asked, *, dry_run: bool) -> str:
    """Suspect or release the block of a dead node; return the outcome, empty if the node lives."""
    block = Block.of(document)
    owner, now = asked(block.node)
    if not block.node or not ownership.is_dead(block, owner, now):
        if not dry_run:
            reclaim.clear(documents, (document, block), owner, now)
        return ""
    if ownership.may_take(block, owner, now):
        return _released(documents, document, dry_run=dry_run)
    if not ownership.suspect(block, owner, documents.now()):
        return WAITING
    return SUSPECT if dry_run or reclaim.suspect(documents, (document, block), owner, []) else CHANGED


def _released(documents: Documents, document: Document, *, dry_run: bool) -> str:
    """Release a block; a number stays reserved for its name."""
    done = FREED if document.body.get("whose") else REMOVED
    return done if dry_run or reclaim.release(documents, document) else CHANGED


def why_not(machine: Machine, now: float) -> str:
    """Return why the node's blocks should not be released; empty if nothing shows that it lives."""
    if machine.last_seen is None or now - machine.last_seen > GRACE:
        return ""
    if not machine.has_reported:
        return (
            f"node {machine.name} was never reported alive, because neither hpn node nor an agent ran there: "
            "its pods may use these addresses"
        )
    last_seen = moment(int(machine.last_seen))
    return f"node {machine.name} was last alive at {last_seen}: its pods may use these addresses"


def release_left(documents: Documents, blocks: Sequence[Document], present: Machine) -> list[Outcome]:
    """Release those blocks that another machine of the node's name owned; the present machine needs none of them.

    A node with a new Node object still owns blocks under the old UID until its next heartbeat.  So each block is
    suspected first, and released once that stood for longer than a live node takes to answer.  A block without a
    machine, or a backend that records no machines, gives no result.
    """
    left = [one for one in blocks if present.uid and one.body.get("machine") not in ("", present.uid)]
    return _final(_outcome(one, partial(_release_left, documents, one, present)) for one in left)


def _release_left(documents: Documents, document: Document, present: Machine) -> str:
    block = Block.of(document)
    if SAID < block.suspect < documents.now() - HEARTBEAT:
        return _released(documents, document, dry_run=False)
    if block.suspect > SAID:
        return WAITING
    return SUSPECT if reclaim.suspect(documents, (document, block), present, []) else CHANGED


def release(documents: Documents, blocks: Sequence[Document]) -> list[Outcome]:
    """Release these blocks; one that changed meanwhile is a failure."""
    every = progress(blocks, "removing blocks")
    return _final(_outcome(one, partial(_released, documents, one, dry_run=False)) for one in every)


def retire(documents: Documents, blocks: Sequence[Document]) -> list[Outcome]:
    """Remove these blocks, and numbers with their names; one that changed meanwhile is a failure."""
    every = progress(blocks, "removing blocks")
    return _final(_outcome(one, partial(_removed, documents, one)) for one in every)


def _removed(documents: Documents, document: Document) -> str:
    return REMOVED if documents.remove(document) else CHANGED


def _final(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes for one node; a block that changed meanwhile is a failure."""
    return [replace(one, what=FAILED, why="it changed meanwhile") if one.what == CHANGED else one for one in outcomes]


def blocks_of(documents: Documents, node: str, networks: Sequence[str]) -> list[Document]:
    """Return the node's blocks in these networks, or in all.  Raises Unreachable, BackendRefused."""
    names = {layout_name(network) for network in networks}
    found = [one for one in documents.listed(BLOCK, node=node) if not names or one.name.rpartition(".")[0] in names]
    return sorted(found, key=lambda one: one.name)
