"""When a block may change its owner, in any order of events; and when a node has too many blocks or too few."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.documents import Memory

from ipam.cluster import BLOCK, Document, Machine
from ipam.cluster.node_blocks import GRACE, HEARTBEAT, HELD, LOST, OwnedBlock
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import SAID, Block

OURS = Block("net", 0, 16, "alive", "uid-1", "nonce")
NOW = 1_800_000_000
TIMES = st.integers(NOW - 3 * GRACE, NOW)
MACHINES = st.builds(Machine, st.just("alive"), st.sampled_from(["", "uid-1", "uid-2"]), st.none() | TIMES)
BLOCKS = st.builds(replace, st.just(OURS), suspect=st.sampled_from([0, SAID]) | TIMES)


@given(BLOCKS, MACHINES)
def test_nobody_is_dead_who_is_there_or_was_heard_of(block: Block, owner: Machine) -> None:
    """A report of another machine of that name says nothing."""
    is_heard = owner.last_seen is not None and NOW - owner.last_seen <= GRACE and owner.uid in ("", block.machine)
    if owner.uid == block.machine or is_heard:
        assert ownership.suspect(block, owner, NOW) is None
        assert not ownership.may_take(block, owner, NOW)


@given(BLOCKS, MACHINES)
def test_a_block_is_taken_after_the_grace_and_not_before(block: Block, owner: Machine) -> None:
    assume(ownership.is_dead(block, owner, NOW))
    if not block.suspect:
        said = ownership.suspect(block, owner, NOW)
        assert said == replace(block, suspect=SAID)
        assert not ownership.may_take(block, owner, NOW)
        block = said
    known = ownership.suspect(block, owner, NOW) or block
    assert known.suspect > SAID
    assert not ownership.may_take(known, owner, known.suspect + GRACE)
    assert ownership.may_take(known, owner, known.suspect + GRACE + 1)
    assert ownership.suspect(known, owner, NOW) is None


def test_a_suspicion_before_a_node_was_heard_of_begins_anew() -> None:
    block, owner = replace(OURS, suspect=NOW - 9 * GRACE), Machine("alive", "", NOW - 2 * GRACE)
    assert not ownership.may_take(block, owner, NOW)
    again = ownership.suspect(block, owner, NOW)
    assert again
    assert again.suspect >= NOW


def test_another_machine_of_that_name_is_waited_for() -> None:
    """Every report of that name is the present machine's."""
    other, now = replace(OURS, machine="uid-0", suspect=NOW - GRACE), Machine("alive", "uid-1", NOW)
    assert ownership.suspect(replace(other, suspect=0), now, NOW)
    assert ownership.suspect(OURS, now, NOW) is None
    assert not ownership.may_take(other, now, NOW)
    assert ownership.may_take(other, now, NOW + 1)
    # Of an owner without a recorded machine, any report of the name counts.
    assert not ownership.may_take(replace(other, machine=""), now, NOW + 1)


@given(BLOCKS, MACHINES)
def test_a_suspicion_that_a_report_refutes(block: Block, owner: Machine) -> None:
    refuted = bool(block.suspect) and not ownership.is_dead(block, owner, NOW)
    assert ownership.cleared(block, owner, NOW) == (replace(block, suspect=0) if refuted else None)


@given(BLOCKS, st.sampled_from(["uid-1", "uid-2"]))
def test_the_owner_answers(block: Block, machine: str) -> None:
    said = ownership.answer(block, machine)
    assert (said or block) == replace(OURS, machine=machine)
    assert (said is None) == (block == replace(OURS, machine=machine))


class World:
    """A block, its live owner without a Node object, and others that want the block, each at its own pace."""

    def __init__(self, robbers: int = 3) -> None:
        robber = {f"robber-{i}": Machine(f"robber-{i}", f"uid-{i}") for i in range(robbers)}
        self.store = Memory(clock=NOW, machines=robber)
        made = self.store.create(BLOCK, OURS.name, "net", OURS.to_json())
        assert made
        self.read: list[tuple[Document, Machine, float] | None] = [None] * robbers
        self.looked, self.seen = self.store.clock, made

    @property
    def block(self) -> Block:
        (body,) = self.store.bodies(BLOCK).values()
        return Block.of(Document(BLOCK, "", body, "", ""))

    def look(self) -> None:
        """The owner's heartbeat; another node may write between its two halves."""
        found = self.store.read(BLOCK, OURS.name)
        assert found
        self.seen = found

    def answer(self) -> None:
        said = ownership.answer(Block.of(self.seen), "uid-1")
        if not said or self.store.replace(self.seen, said.to_json()):
            self.looked = self.store.clock

    def wait(self, seconds: int) -> None:
        until = self.store.clock + seconds
        while self.looked + HEARTBEAT <= until:
            self.store.clock = max(self.store.clock, self.looked + HEARTBEAT)
            self.look()
            self.answer()
        self.store.clock = until

    def robber_reads(self, i: int) -> None:
        found = self.store.read(BLOCK, OURS.name)
        assert found
        self.read[i] = found, self.store.machine(str(found.body["node"])), self.store.now()

    def robber_writes(self, i: int) -> None:
        """Write by what the robber read, however long ago."""
        if known := self.read[i]:
            document, owner, now = known
            block = Block.of(document)
            taken = block.given_to(f"robber-{i}", f"uid-{i}", "n") if ownership.may_take(block, owner, now) else None
            body = taken or ownership.suspect(block, owner, now)
            after = self.store.replace(document, body.to_json()) if body else None
            self.read[i] = (after, owner, self.store.now()) if after and not taken else None

    def do(self, step: tuple[str, int]) -> None:
        {
            "wait": self.wait,
            "read": self.robber_reads,
            "write": self.robber_writes,
            "look": lambda _: self.look(),
            "answer": lambda _: self.answer(),
        }[step[0]](step[1])


ROBBERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 2 * GRACE)),
    *(st.tuples(st.just(what), ROBBERS) for what in ("read", "write", "write", "look", "answer")),
)
# A robber stalls between its decision and its write: the written time must not look old at once.
SLEEPER = [("read", 0), ("wait", 2 * GRACE), ("write", 0), ("read", 1), ("write", 1), ("read", 2), ("write", 2)]


@example(SLEEPER)
@example([("read", 0), ("write", 0), *SLEEPER, *SLEEPER])
@given(st.lists(STEPS, max_size=40))
@settings(max_examples=300)
def test_an_owner_that_looks_is_never_robbed(steps: Sequence[tuple[str, int]]) -> None:
    world = World()
    for step in steps:
        world.do(step)
        assert world.block.node == "alive"


@given(st.lists(st.tuples(st.sampled_from(["read", "write"]), ROBBERS), max_size=20))
def test_a_dead_owner_loses_its_block_to_one(steps: Sequence[tuple[str, int]]) -> None:
    world = World()
    for _ in range(3):
        for step in [*steps, ("read", 0), ("write", 0), ("read", 0), ("write", 0)]:
            world.do(step)
        world.store.clock += GRACE + 2
    block = world.block
    assert (block.node, block.taken, block.suspect) == (f"robber-{block.machine[-1]}", True, 0)


COUNTS = st.just(16) | st.integers(0, 16)


@given(
    st.lists(
        st.tuples(COUNTS, st.just(ownership.IDLE) | st.integers(0, 2000), st.sampled_from([HELD, HELD, LOST])),
        max_size=8,
    )
)
def test_what_is_given_back(drawn: Sequence[tuple[int, int, str]]) -> None:
    """Only blocks that stayed empty, never the last, and never so that a claim must follow."""
    blocks = [
        ownership.seen_idle(OwnedBlock(i, f"u{i}", "n", state, idle=NOW - age), 16 - free, NOW)
        for i, (free, age, state) in enumerate(drawn)
    ]
    free = [{i: free for i, (free, *_) in enumerate(drawn)}]
    back = ownership.to_return(blocks, free, 16, NOW)
    for index in back:
        assert drawn[index][0] == 16
        assert drawn[index][1] >= ownership.IDLE
        assert drawn[index][2] == HELD
    if back:
        stay = {block.index for block in blocks if block.state == HELD} - set(back)
        assert stay
        assert ownership.room(free, stay) >= 2 * ownership.reserve(16)
        assert not ownership.to_return([block for block in blocks if block.index in stay], free, 16, NOW)


def test_a_node_that_does_not_know_what_its_blocks_serve_keeps_them() -> None:
    idle = [OwnedBlock(index, "u", "n", idle=NOW - 2 * ownership.IDLE) for index in (0, 1)]
    assert ownership.to_return(idle, [], 16, NOW) == ()
    # The configuration's ranges left both blocks: one stays, as always.
    assert ownership.to_return(idle, [{0: 0, 1: 0}], 16, NOW) == (1,)


def test_an_empty_block_is_seen_twice() -> None:
    first, second = OwnedBlock(0, "u", "n"), OwnedBlock(1, "v", "n")
    free = [{0: 16, 1: 16}]
    seen = [ownership.seen_idle(block, 0, NOW) for block in (first, second)]
    assert ownership.to_return(seen, free, 16, NOW + ownership.IDLE - 1) == ()
    assert ownership.to_return(seen, free, 16, NOW + ownership.IDLE) == (1,)
    used = [seen[0], ownership.seen_idle(seen[1], 1, NOW + 60)]
    assert ownership.to_return(used, [{0: 16, 1: 15}], 16, NOW + ownership.IDLE) == (0,)
    # After a clock was set back, no time has passed.
    assert ownership.seen_idle(seen[0], 0, NOW - 10).idle == NOW - 10


def test_room_is_that_of_the_set_that_has_least() -> None:
    assert ownership.room([{0: 5, 1: 7}, {0: 3}], [0, 1]) == 3
    assert ownership.room([{0: 5, 1: 7}], [1, 2]) == 7
    assert ownership.room([], [0]) == 0
    assert [ownership.reserve(size) for size in (1, 4, 16, 32, 256)] == [1, 1, 4, 8, 8]
