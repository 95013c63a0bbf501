"""What gives back the blocks of nodes that are dead: hpn ipam gc --cluster and release-node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from base.kernel import budget
from base.protocol.errors import CniError
from base.protocol.spec import Json
from ctl.screen import moment, progress
from ipam.cluster import BLOCK, Document, Documents, Machine
from ipam.cluster.reconcile import reclaim
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import SAID, Block, layout_name
from ipam.cluster.state.node_blocks import HEARTBEAT

# What became of a block, in a word.
REMOVED, FREED, SUSPECT, WAITING = "removed", "freed", "suspect", "waiting"
CHANGED, FAILED = "changed", "failed"
_WORDS = {
    REMOVED: "removed",
    FREED: "free for its name on any node",
    SUSPECT: "its node is taken for dead from now on",
    WAITING: "its node is taken for dead, and is still waited for",
    CHANGED: "left, because it has changed meanwhile: its node lives, or somebody else was faster",
    FAILED: "left",
}
_DRY = {
    **_WORDS,
    REMOVED: "would be removed",
    FREED: "would be free for its name",
    SUSPECT: "its node would be taken for dead from now on",
}

# What the store knows of a node, and its clock when it said so.
Asked = Callable[[str], tuple[Machine, float]]


@dataclass(frozen=True)
class Outcome:
    """What became of a block of a node that is dead, or what would; ``why`` if it failed."""

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
    """Take nodes for dead that nothing is known of, and remove the blocks of those that have been for the grace.

    Raises Unreachable, StoreRefused where nobody can say what there is.
    """

    @cache
    def asked(node: str) -> tuple[Machine, float]:
        # With the time of this answer: later answers do not make it younger.
        return documents.machine(node), documents.now()

    found = progress(documents.listed(BLOCK, network or None), "looking at blocks")
    judged = [_judged(documents, document, asked, dry_run=dry_run) for document in found]
    return [one for one in judged if one.what]


def _judged(documents: Documents, document: Document, asked: Asked, *, dry_run: bool) -> Outcome:
    node = str(document.body.get("node", ""))
    budget.begin()  # nobody waits for all of them
    try:
        owner = Block.of(document).node
        return Outcome(document.name, node, _done(documents, document, *asked(owner), dry_run=dry_run))
    except CniError as e:
        return Outcome(document.name, node, FAILED, e.msg)


def _done(documents: Documents, document: Document, owner: Machine, now: float, *, dry_run: bool) -> str:
    """What is done with a block, whose owner was that at a time of the store's clock; empty if its node lives."""
    block = Block.of(document)
    if not block.node or not ownership.is_dead(block, owner, now):  # guard: it-lives (owner)
        return ""
    if ownership.may_take(block, owner, now):  # guard: not-yet = True
        return _given_back(documents, document, dry_run=dry_run)
    was: Document | None = document
    # Twice: that it is suspected, and since when that is known.
    while was and (body := ownership.suspect(Block.of(was), owner, documents.now())):
        if dry_run:  # guard: only-say-suspect
            return SUSPECT
        was = documents.replace(was, body.to_json())
    return CHANGED if was is None else WAITING if was is document else SUSPECT


def _given_back(documents: Documents, document: Document, *, dry_run: bool) -> str:
    """What becomes of what nobody has from now on: a number stays its name's."""
    done = FREED if document.body.get("whose") else REMOVED
    return done if dry_run or reclaim.give_back(documents, document) else CHANGED  # guard: only-say (dry_run)


def why_not(machine: Machine, now: float) -> str:
    """In words, why the node's blocks should not be given back; empty if nothing says that it lives."""
    if machine.last_seen is None or now - machine.last_seen > ownership.GRACE:  # guard: heard-of = True
        return ""
    if not machine.told:
        return (
            f"node {machine.name} has never told that it lives, because neither hpn node nor the agent has run there: "
            "nobody knows whether its pods use these addresses"
        )
    last_seen = moment(int(machine.last_seen))
    return f"node {machine.name} was heard of at {last_seen}: it may live, and then its pods use these addresses"


def left_by_others(blocks: Sequence[Document], present: Machine, now: float) -> list[Document]:
    """Those of a node's blocks that another machine had when it had this name: the present one lives by itself.

    A node whose Node object was made anew has blocks of another machine too, until it looks at them.  So somebody has
    to have suspected the block for longer than a living node takes to answer.  Of a block without a machine nobody
    knows, and nothing where the store knows no machines.
    """
    return [
        one
        for one in blocks
        if present.uid
        and one.body.get("machine") not in ("", present.uid)  # guard: present-machine (present.uid), which-machine ("")
        and SAID < (one.body.get("suspect") or 0) < now - HEARTBEAT
    ]


def release(documents: Documents, blocks: Sequence[Document]) -> list[Outcome]:
    """Remove these blocks."""
    return [_removed(documents, block) for block in progress(blocks, "removing blocks")]


def blocks_of(documents: Documents, node: str, networks: Sequence[str]) -> list[Document]:
    """The blocks that the node has of these networks, or of all.  Raises Unreachable, StoreRefused."""
    names = {layout_name(network) for network in networks}
    found = [one for one in documents.listed(BLOCK, node=node) if not names or one.name.rpartition(".")[0] in names]
    return sorted(found, key=lambda one: one.name)


def _removed(documents: Documents, block: Document) -> Outcome:
    node = str(block.body.get("node", ""))
    budget.begin()
    try:
        done = _given_back(documents, block, dry_run=False)
    except CniError as e:
        return Outcome(block.name, node, FAILED, e.msg)
    return (
        Outcome(block.name, node, FAILED, "it has changed meanwhile")
        if done == CHANGED
        else Outcome(block.name, node, done)
    )
