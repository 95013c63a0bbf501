"""Kills at every step: no address twice, none lost, nothing left; and random calls against a dict."""

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import drawn
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.ipam_calls import MACHINE, Net, killed_at

IPAM = {
    "ranges": [
        [
            {"subnet": "10.0.0.0/29", "exclude": ["10.0.0.4"]},
            {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.7", "rangeEnd": "10.0.1.8", "gateway": "10.0.1.8"},
        ],
        [{"subnet": "fd00::/125", "gateway": None, "exclude": ["fd00::2-fd00::3"]}],
    ]
}
FOUR = {"10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.6", "10.0.1.7"}
SIX = {"fd00::1", "fd00::4", "fd00::5", "fd00::6", "fd00::7"}


def each_step(net, prepare, work):
    """For each step: prepare a new store, and kill the work before that step."""
    for step in drawn.steps(1):
        shutil.rmtree(net.state, ignore_errors=True)
        prepare()
        if not killed_at(step, work):
            assert step > 5, "too few steps to be true"
            return
        yield step


# In memory: a killed process loses no write, and thousands of syncs on a disk take minutes.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture
def net():
    with tempfile.TemporaryDirectory(prefix="ipam-", dir=MEMORY) as state:
        net = Net(Path(state) / "s", IPAM)
        net.add("warm")  # whatever is imported late is imported here
        net.call("DEL", "warm")
        yield net


# A lease of one line, and one of several.
@pytest.fixture(params=["", "K8S_POD_NAMESPACE=" + "n" * 250 + ";K8S_POD_NAME=" + "p" * 60], ids=["short", "long"])
def args(request):
    return request.param


@pytest.mark.parametrize("then", ["ADD", "DEL", "GC"])
@pytest.mark.parametrize("first", [True, False])
def test_add_killed_at_every_step(net, then, first, args):
    others = {}

    def prepare():
        others.clear()
        if not first:
            others["other:net1"] = net.add("other")

    for step in each_step(net, prepare, partial(net.reply, "ADD", "c", args=args)):
        if then == "ADD":
            mine = {"c:net1": net.add("c", args=args)}
        elif then == "DEL":
            assert net.call("DEL", "c") == {}, step
            mine = {}
        else:
            assert net.gc(("other", "net1")) == {}, step
            mine = {}
        assert net.leases() == {**others, **mine}, step
        if net.has_lines():
            assert net.agrees(), step
        last = net.add("last")
        assert set(last).isdisjoint(a for held in (*others.values(), *mine.values()) for a in held), step
        assert net.agrees(), step


def test_add_killed_within_one_tick_of_the_files_clock(net, args):
    """Two changes in one tick leave one file time, so only the index's mark shows that it lacks the second."""

    def prepare():
        net.add("other")
        stat = net.file.stat()
        times[:] = stat.st_atime_ns, stat.st_mtime_ns

    times = []
    for step in each_step(net, prepare, partial(net.reply, "ADD", "c", args=args)):
        os.utime(net.file, ns=tuple(times))
        assert net.call("DEL", "c") == {}, step
        assert net.leases().keys() == {"other:net1"}, step
        assert net.agrees(), step


@pytest.mark.parametrize("then", ["ADD", "DEL", "GC"])
def test_delete_killed_at_every_step(net, then, args):
    before = {}

    def prepare():
        before.update({cid: net.add(cid, args=args) for cid in ("c", "other")})

    for step in each_step(net, prepare, partial(net.reply, "DEL", "c")):
        held = {"other:net1": before["other"]}
        if then == "ADD":
            held["c:net1"] = net.add("c", args=args)
        elif then == "DEL":
            assert net.call("DEL", "c") == {}, step
        else:
            assert net.gc(("other", "net1")) == {}, step
        assert net.leases() == held, step
        assert net.agrees(), step


def test_move_killed_at_every_step(net, args):
    # An ADD that changes its attachment's addresses: the old or the new ones, nothing between.
    def prepare():
        net.add("c", args=f"IP=10.0.0.2;{args}")

    for step in each_step(net, prepare, partial(net.reply, "ADD", "c", args=f"IP=10.0.0.6;{args}")):
        assert net.leases()["c:net1"][0] in ("10.0.0.2", "10.0.0.6"), step
        net.add("other")
        assert net.agrees(), step
        assert len({a for held in net.leases().values() for a in held}) == 4, step


@pytest.mark.parametrize("damage", ["line", "size"])
@pytest.mark.parametrize("finder", ["ADD other", "CHECK c", "DEL c"])
def test_quarantine_killed_at_every_step(net, damage, finder):
    held = []
    command, finder = finder.split()

    def prepare():
        held[:] = net.add("c")
        if damage == "line":
            net.overwrite(net.line("c"), b"#")
        else:
            os.truncate(net.file, 600)

    for step in each_step(net, prepare, partial(net.reply, command, finder)):
        other = net.add("other")
        answer = net.call("DEL", "c")
        if (command, answer) != ("DEL", {}):  # released before it was killed
            assert set(other).isdisjoint(held), step
            assert answer["code"] == 108, step
        assert net.call("DEL", "c") == {}, step
        assert len(list((net.dir / "quarantine").iterdir())) >= (damage == "line"), step
        assert net.held() == set(other), step
        assert net.agrees(), step


def test_a_foreign_file_set_aside_killed_at_every_step(net):
    content = b"hello" * 1000

    def prepare():
        net.add("c")
        net.file.write_bytes(content)

    for step in each_step(net, prepare, partial(net.reply, "ADD", "other")):
        net.reply("ADD", "other")
        net.add("other")
        assert content in [path.read_bytes() for path in (net.dir / "quarantine").iterdir()], step
        assert net.agrees(), step


class Attachments(RuleBasedStateMachine):
    """The program with a real directory, next to a dictionary of its answers."""

    long = st.sampled_from(["", "K8S_POD_NAMESPACE=" + "n" * 250 + ";K8S_POD_NAME=" + "p" * 60])
    keys = st.sampled_from([f"c{i}" for i in range(7)])
    steps = st.integers(1, 40)

    def __init__(self):
        super().__init__()
        self.state = tempfile.mkdtemp(prefix="ipam-", dir=MEMORY)
        self.net = Net(Path(self.state), IPAM)
        self.held = {}

    def teardown(self):
        shutil.rmtree(self.state)

    def _taken(self, cid):
        return {a for other, held in self.held.items() if other != cid for a in held}

    def _learn(self, cid, answer, request=None):
        """Check an ADD's answer against the model, and record it."""
        taken = self._taken(cid)
        if request in taken:
            assert answer["code"] == 102
        elif cid not in self.held and (len(taken & FOUR) == len(FOUR) or len(taken & SIX) == len(SIX)):
            assert answer["code"] == 103
        else:
            four, six = (ip["address"].partition("/")[0] for ip in answer["ips"])
            assert four in FOUR - taken
            assert six in SIX - taken
            if request:
                assert request in (four, six)
            elif cid in self.held:
                assert self.held[cid] == (four, six)
            self.held[cid] = (four, six)

    @rule(cid=keys, args=long)
    def add(self, cid, args=""):
        self._learn(cid, self.net.call("ADD", cid, args=args))

    @rule(cid=keys, address=st.sampled_from(sorted(FOUR | SIX)))
    def add_requested(self, cid, address):
        self._learn(cid, self.net.call("ADD", cid, args=f"IP={address}"), address)

    @rule(cid=keys, address=st.sampled_from(["10.0.0.1", "10.0.0.4", "10.0.1.8", "10.0.1.6", "fd00::3", "1.2.3.4"]))
    def add_refused(self, cid, address):
        assert self.net.call("ADD", cid, args=f"IP={address}")["code"] == 102

    @rule(cid=keys)
    def delete(self, cid):
        assert self.net.call("DEL", cid) == {}
        self.held.pop(cid, None)

    @rule(valid=st.sets(keys))
    def gc(self, valid):
        assert self.net.gc(*((cid, "net1") for cid in valid)) == {}
        self.held = {cid: held for cid, held in self.held.items() if cid in valid}

    @rule()
    def gc_without_a_list(self):
        assert self.net.call("GC") == {}

    @rule(cid=keys, command=st.sampled_from(["ADD", "DEL"]), step=steps, args=long, random=st.randoms())
    def power_cut(self, cid, command, step, args, random):
        """During a command: each sector that was not synced is on disk or not."""
        synced = Path(self.state) / "synced"
        if self.net.file.exists():
            shutil.copy(self.net.file, synced)
        killed_at(step, lambda: self.net.reply(command, cid, args=args), lambda: shutil.copy(self.net.file, synced))
        if self.net.file.exists():
            before = synced.read_bytes() if synced.exists() else b""
            after = self.net.file.read_bytes()
            after = after[: max(len(before), 512 * random.randint(0, len(after) // 512))]
            sectors = [
                (after if random.random() < 0.5 or i >= len(before) else before)[i : i + 512]
                for i in range(0, len(after), 512)
            ]
            # In place, like a disk: the same inode, and perhaps an index marked clean.
            with self.net.file.open("r+b") as f:
                f.write(b"".join(sectors))
                f.truncate()
            self.net.another_boot()
        self.repeat(cid, command, args)

    def repeat(self, cid, command, args):
        """The calls of a runtime that got no answer."""
        if command == "ADD":
            self._learn(cid, self.net.call("ADD", cid, args=args))
        else:
            self.delete(cid)

    @rule()
    def reboot(self):
        self.net.another_boot()

    @rule(cid=keys, step=steps, again=st.booleans(), args=long)
    def add_killed(self, cid, step, again, args):
        killed_at(step, lambda: self.net.reply("ADD", cid, args=args))
        if again:
            self.add(cid)
        else:
            self.delete(cid)

    @rule(cid=keys, step=steps)
    def delete_killed(self, cid, step):
        killed_at(step, lambda: self.net.reply("DEL", cid))
        self.delete(cid)

    @rule(cid=keys)
    def check(self, cid):
        assert self.net.call("CHECK", cid).get("code", 0) == (0 if cid in self.held else 107)

    @invariant()
    def nothing_was_unreadable(self):
        assert not (self.net.dir / "quarantine").exists()

    @invariant()
    def leases_are_what_was_told(self):
        assert self.net.leases() == {f"{cid}:net1": held for cid, held in self.held.items()}

    @invariant()
    def index_believed_is_right(self):
        assert not self.net.misleads()


TestAttachments = Attachments.TestCase
TestAttachments.settings = settings(MACHINE, max_examples=40, stateful_step_count=25)
