"""Addresses kept back after their release, with clock jumps and reboots: random calls against a model of all answers
and their times."""

import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.ipam_calls import MACHINE, Net, killed_at

RANGE = {"subnet": "10.0.0.0/29", "rangeEnd": "10.0.0.5"}
ALL = {f"10.0.0.{n}" for n in range(2, 6)}
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Lease:
    """The answer to an ADD, and its terms."""

    address: str
    name: str
    cooldown: int
    ttl: int
    of_this_boot: bool = True


@dataclass(frozen=True)
class Kept:
    """Addresses reserved from everybody from ``released`` until ``cool``, and for the name until ``until``."""

    address: str
    name: str
    released: int
    cool: int
    until: int

    def is_over(self, now: int) -> bool:
        return not self.released <= now < self.until


class Clock(RuleBasedStateMachine):
    """The program with a real directory, next to the model."""

    keys = st.sampled_from([f"c{i}" for i in range(5)])
    pods = st.sampled_from(["p", "q", "r"])
    terms = st.tuples(st.sampled_from([0, 0, 20, 300]), st.sampled_from([0, 100, 1000]))
    steps = st.integers(1, 30)

    def __init__(self):
        super().__init__()
        self.state = tempfile.mkdtemp(prefix="ipam-", dir=MEMORY)
        self.net = Net(Path(self.state), RANGE)
        self.now = 1_800_000_000
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("time.time", lambda: self.now + 0.9)
        self.held: dict[str, Lease] = {}
        self.kept: list[Kept] = []

    def teardown(self):
        self.patch.undo()
        shutil.rmtree(self.state)

    # The model

    def in_line_order(self):
        return sorted(self.held, key=self.net.line)

    def had_by(self, cid, name):
        """The source of an address that the ADD has already: a lease's key, a reservation, or none."""
        if cid in self.held:
            return cid
        if not name:
            return None
        dead = (c for c in self.in_line_order() if self.held[c].name == name and not self.held[c].of_this_boot)
        return next((one for one in self.kept if one.name == name), None) or next(dead, None)

    def to_choose_from(self, had, request):
        mine = {self.held[had].address if isinstance(had, str) else had.address} if had else set()
        free = ALL - {one.address for one in (*self.held.values(), *self.kept)}
        return ({request} & (mine | free)) if request else mine or free

    def release(self, cid):
        lease = self.held.pop(cid)
        cool = self.now + lease.cooldown * lease.of_this_boot
        kept = Kept(lease.address, lease.name, self.now, cool, max(cool, self.now + lease.ttl))
        if kept.is_over(self.now):
            return
        for before in [one for one in self.kept if lease.name and one.name == lease.name]:
            self.kept.remove(before)
            if before.released <= self.now < before.cool:
                self.kept.append(replace(before, name="", until=before.cool))
        self.kept.append(kept)

    def collect(self, valid):
        self.kept = [one for one in self.kept if not one.is_over(self.now)]
        for cid in self.in_line_order():
            if cid not in valid if valid is not None else not self.held[cid].of_this_boot:
                self.release(cid)

    # Commands

    def name(self, pod, terms):
        return f"ns/{pod}:net1" if terms[1] else ""

    def config(self, pod, terms, request=""):
        cooldown, ttl = terms
        self.net.ipam = {**RANGE, "releaseCooldown": cooldown, "sticky": ttl}
        return {"args": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}" + (f";IP={request}" * bool(request))}

    @rule(cid=keys, pod=pods, terms=terms, request=st.sampled_from(["", "", "", *sorted(ALL)]))
    def add(self, cid, pod, terms, request):
        self.told(cid, pod, terms, request, self.had_by(cid, self.name(pod, terms)))

    def told(self, cid, pod, terms, request, had):
        name, choice = self.name(pod, terms), self.to_choose_from(had, request)
        if not choice:
            event("nothing is free at first")
            self.collect(None)
            had = self.had_by(cid, name)
            choice = self.to_choose_from(had, request)
        answer = self.net.call("ADD", cid, **self.config(pod, terms, request))
        if not choice:
            assert answer["code"] == (102 if request else 103)
            return
        assert "ips" in answer, answer
        address = answer["ips"][0]["address"].partition("/")[0]
        assert address in choice
        if isinstance(had, str):
            del self.held[had]
        elif had:
            event("a sticky name comes back")
            self.kept.remove(had)
        self.held[cid] = Lease(address, name, *terms)

    @rule(cid=keys, pod=pods, terms=terms, step=steps)
    def add_killed(self, cid, pod, terms, step):
        """Only if no room has to be made first, because the model does not know how much was freed."""
        had = self.had_by(cid, self.name(pod, terms))
        if self.to_choose_from(had, ""):
            killed_at(step, lambda: self.net.reply("ADD", cid, **self.config(pod, terms)))
        self.told(cid, pod, terms, "", had)

    @rule(cid=keys)
    def delete(self, cid):
        self.net.ipam = None  # what becomes of it is in the lease
        assert self.net.call("DEL", cid) == {}
        if cid in self.held:
            self.release(cid)

    @rule(cid=keys, step=steps)
    def delete_killed(self, cid, step):
        killed_at(step, lambda: self.net.reply("DEL", cid))
        self.delete(cid)

    @rule(valid=st.none() | st.sets(keys))
    def gc(self, valid):
        self.collect(valid)
        listed = {} if valid is None else {"cni.dev/valid-attachments": [
            {"containerID": cid, "ifname": "net1"} for cid in valid
        ]}  # fmt: skip
        assert self.net.call("GC", **listed) == {}

    # Events of the machine

    @rule(seconds=st.sampled_from([1, 19, 20, 99, 299, 300, 1000, 10**8]))
    def time_goes_by(self, seconds):
        self.now += seconds

    @rule(seconds=st.sampled_from([1, 19, 100, 10**8]))
    def the_clock_is_set_back(self, seconds):
        self.now = max(self.now - seconds, 0)

    @rule(when=st.sampled_from([0, 30, 1_800_000_000, 4_000_000_000]))
    def the_clock_is_another(self, when):
        """Like a machine without a clock battery, before and after an NTP client sets the clock."""
        self.now = when

    @rule()
    def reboot(self):
        for cid, lease in self.held.items():
            self.net.rewrite(cid, boot="another")
            self.held[cid] = replace(lease, of_this_boot=False)
        self.net.another_boot()

    @invariant()
    def the_lines_say_what_the_model_knows(self):
        assert self.net.leases() == {f"{cid}:net1": (lease.address,) for cid, lease in self.held.items()}
        lines = self.net.lines() if self.net.has_lines() else []
        bodies = [body for line in lines if line.strip() and "released" in (body := json.loads(line))]
        assert sorted(
            (*(a.partition("/")[0] for a in b["addresses"]), b["sticky"], b["released"], b["cool"], b["until"])
            for b in bodies
        ) == sorted((k.address, k.name, k.released, k.cool, k.until) for k in self.kept)

    @invariant()
    def the_index_that_is_believed_is_right(self):
        assert not self.net.misleads()


TestClock = Clock.TestCase
TestClock.settings = settings(MACHINE, max_examples=80, stateful_step_count=30)
