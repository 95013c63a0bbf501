"""Nodes, a store and faults between them, drawn from a seed, with the checks that follow.

Nodes run in processes of their own (node.py) and reach the store through a proxy (proxy.py).  For a few nodes, each
command is a process that may be killed; the many other nodes share one process.  All clocks run so fast that an hour
takes seconds.
"""

import json
import math
import random
import select
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checker.clock import Clock
from checker.faults import HOUR, SMALL, Faults
from checker.history import History, lost_blocks, name_in
from checker.processes import Worker
from checker.servers import Servers

# The codes that a node may answer: success, no room on disk, try again later, no address left.
EXHAUSTED = 103
FINE = {0, 5, 11, EXHAUSTED}
# Numbers of a block.
SIZE = 4
# Unsuccessful rounds before the pool counts as exhausted: each may bring dead nodes' blocks a step nearer to reclaim. A
# search asks about eight random nodes, so many nodes need more rounds.
PASSES = 8
PODS = 12
# A node with a recreated object must check its blocks within this time.  Until then others suspect it, and a node that
# does not check for an hour is promised nothing.
SOON = HOUR - 2 * SMALL - 60
# A StatefulSet's pods: each may run on any node, and on two nodes.
NAMES = [f"web-{n}" for n in range(5)]


@dataclass
class World:
    folder: Path
    servers: Servers
    draw: random.Random
    faults: Faults
    workers: list[Worker]
    clock: Clock
    stores: Mapping[str, Any]
    history: History = field(default_factory=History)
    codes: Counter[int] = field(default_factory=Counter)
    # The attachments of each node: True if all is known of one, False if its last command had no good answer.
    pods: dict[str, dict[str, bool]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    # Nodes that die, or lose their disk or object, after their current command.
    doomed: set[str] = field(default_factory=set)
    # Nodes that came back with an empty disk.
    wiped: set[str] = field(default_factory=set)
    # The deadline for the next check of each node with a recreated object, as long as the check is due.
    awaited: dict[str, float] = field(default_factory=dict)
    # The time until which such a node is left idle.
    asleep: dict[str, float] = field(default_factory=dict)
    number: int = 0

    def live(self, nodes: Sequence[str]) -> None:
        """Add these nodes, each with an empty disk."""
        for node in nodes:
            shutil.rmtree(self.folder / node, ignore_errors=True)
            (self.folder / node).mkdir()
            stores = {**self.stores, "nodeName": node}
            (self.folder / node / "hpn.json").write_text(json.dumps({"backends": stores}))
            self.servers.born(node)
            self.pods[node] = {}
            self.faults.record.note("born", node=node)
        self.dead -= set(nodes)

    def run(self, seconds: float) -> None:
        """Start and end pods while faults occur."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for worker in self.workers:
                if worker.command is None and (command := self._command(worker)):
                    self._tell(worker, command)
            self._hear()
            self._harm()

    def settle(self) -> None:
        """End all faults, and let every node run its background work for longer than the grace."""
        self._wait_for_all()
        for worker, node in [(w, n) for w in self.workers for n in w.nodes if n in self.awaited]:
            while node in self.awaited:
                self._ask(worker, {"node": node, "verb": "KEEP", "cid": ""})
        self.faults.end()
        end = self.clock.now() + 2 * HOUR
        while self.clock.now() < end:
            for worker in self.workers:
                for node in [node for node in worker.nodes if node not in self.dead]:
                    for cid in [cid for cid, known in self.pods[node].items() if not known or "." in cid]:
                        self._ask(worker, self._told(node, "DEL", cid))
                    self._ask(worker, {"node": node, "verb": "KEEP", "cid": ""})

    def unknown(self) -> list[str]:
        """Disagreements between store and nodes.

        Blocks of a dead machine have no owner until another node reclaims them.  A node with an emptied disk may not
        have asked for its blocks yet.
        """
        alive = [node for node in self.pods if node not in self.dead]
        held = {node: _held(self.folder / node) for node in alive}
        known = {index for indexes in held.values() for index in indexes}
        documents = {
            index: node
            for index, node in self.servers.blocks().items()
            if index in known or (node in alive and node not in self.wiped)
        }
        return lost_blocks(documents, held)

    def name_all(self) -> None:
        """Allocate an address for each name once and end its pod, so that the address is fixed from then on."""
        worker = self.workers[0]
        for name in NAMES:
            command = self._new(worker.nodes[0], name)
            # A store that has just started may answer too late on a busy machine.  A runtime repeats the request.
            until = time.monotonic() + 300
            while code := self._ask(worker, command):
                assert code != EXHAUSTED, name
                assert time.monotonic() < until, f"{name}: {code}"
            self._ask(worker, self._told(command["node"], "DEL", command["cid"]))
        self._ask(worker, {"node": worker.nodes[0], "verb": "KEEP", "cid": ""})

    def have_all_names(self) -> list[str]:
        """Allocate the addresses of all names, including those of dead nodes; return the names that failed."""
        until, missing = self.clock.now() + 4 * HOUR, list(NAMES)
        worker, node = next((w, n) for w in self.workers for n in w.nodes if n not in self.dead)
        while missing and self.clock.now() < until:
            missing = [name for name in missing if self._ask(worker, self._new(node, name)) != 0]
        return missing

    def exhaust(self, all_there_are: int) -> int:
        """Allocate every address, including those of dead nodes, and return the number of held addresses.

        Every node first allocates all addresses of its blocks and of one more block.  Then one node of each worker
        claims the rest: a refused node has checked all blocks.
        """
        until, passes, more = self.clock.now() + 4 * HOUR, 0, SIZE
        in_vain = PASSES + len(self.pods) // PASSES
        while len(self.history.held()) < all_there_are and (self.clock.now() < until or passes < in_vain):
            gave = Counter(owner.partition(" ")[0] for owner in self.history.held().values() if "." not in owner)
            is_first = bool(more)
            for worker in self.workers:
                for place, node in enumerate(node for node in worker.nodes if node not in self.dead):
                    room = SIZE * len(_held(self.folder / node)) + more - gave[node]
                    while room > 0 or (place == 0 and not is_first):
                        if code := self._ask(worker, self._new(node)):
                            more = 0 if code == EXHAUSTED else more
                            break
                        room, until, passes = room - 1, self.clock.now() + 4 * HOUR, 0
                        gave[node] += 1
            passes, more = passes + 1, 0
        return len(self.history.held())

    def told(self) -> str:
        """A summary of the run."""
        about = {"blocks": self.servers.moves(), "faults": self.faults.all(), "answers": self.codes}
        words = (f"{kind}: {', '.join(f'{what} {n}' for what, n in counts.items())}" for kind, counts in about.items())
        return f"{self.history.given} addresses given; {'; '.join(words)}"

    def _command(self, worker: Worker) -> dict[str, Any] | None:
        now, kept = self.clock.now(), self.dead | self.doomed
        alive = [node for node in worker.nodes if node not in kept and self.asleep.get(node, 0) <= now]
        if not alive:
            return None
        node = self.draw.choice(alive)
        pods = {cid: known for cid, known in self.pods[node].items() if not self._is_busy(node, cid)}
        what = self.draw.random()
        if what < 0.12 or self.awaited.get(node, math.inf) <= now:
            command = {"node": node, "verb": "KEEP", "cid": ""}
        elif pods and (what < 0.45 or len(pods) >= PODS):
            cid = self.draw.choice(sorted(pods))
            command = self._told(node, "ADD" if not pods[cid] and what < 0.25 else "DEL", cid)
        else:
            command = self._new(node, self.draw.choice(self._wanted()) if self.draw.random() < 0.4 else "")
        return {**command, **self.faults.of_command(node, may_be_killed=not worker.together)}

    def _wanted(self) -> Sequence[str]:
        """The names of pods on idle nodes, if there are any: others might get their addresses."""
        now = self.clock.now()
        pods = [
            cid for node, until in self.asleep.items() if until > now for cid, known in self.pods[node].items() if known
        ]
        return [name_in(cid) for cid in pods if "." in cid] or NAMES

    def _is_busy(self, node: str, cid: str) -> bool:
        return any(one.command and (one.command["node"], one.command["cid"]) == (node, cid) for one in self.workers)

    def _new(self, node: str, name: str = "") -> dict[str, Any]:
        self.number += 1
        cid = f"{name}.c{self.number}" if name else f"c{self.number}"
        self.pods[node][cid] = False
        return {"node": node, "verb": "ADD", "cid": cid}

    def _told(self, node: str, verb: str, cid: str) -> dict[str, Any]:
        if verb == "DEL":
            self.history.takes_back(f"{node} {cid}")
            self.pods[node][cid] = False
        return {"node": node, "verb": verb, "cid": cid}

    def _ask(self, worker: Worker, command: dict[str, Any]) -> int:
        """Send a command that nothing kills, and return the answer's code."""
        self._tell(worker, {**command, "together": True})
        return self._heard(worker)

    def _tell(self, worker: Worker, command: dict[str, Any]) -> None:
        self.faults.record.note("told", **command)
        worker.tell(command)

    def _hear(self) -> None:
        busy = {worker.process.stdout: worker for worker in self.workers if worker.command}
        # time: the pace of a loop with a deadline
        for stream in select.select(list(busy), [], [], 0.2)[0]:
            self._heard(busy[stream])

    def _heard(self, worker: Worker) -> int:
        command = worker.command
        assert command
        node, cid, verb = command["node"], command["cid"], command["verb"]
        answer = worker.answer()
        code = int(answer["code"])
        self.faults.record.note("heard", node=node, cid=cid, verb=verb, **answer)
        self.faults.count["command killed"] += bool(answer.get("killed"))
        self.codes[code] += 1
        if not answer.get("killed") and code not in FINE:
            self.history.wrong.append(f"{command}: {answer}")
        if verb == "KEEP" and code == 0:
            self._wait_no_more(node)
        elif verb == "ADD" and code == 0:
            self.history.gave(f"{node} {cid}", answer["ips"])
            self.pods[node][cid] = True
        elif (verb == "DEL" and code == 0) or (verb == "ADD" and code == EXHAUSTED):
            del self.pods[node][cid]
        return code

    def _harm(self) -> None:
        self.faults.strike(sorted(self.pods), is_hour_promised=bool(self.awaited))
        if self.draw.random() < 0.04:
            few = [node for worker in self.workers if not worker.together for node in worker.nodes]
            self.doomed.add(self.draw.choice(few))
        for node in self.doomed - {worker.command["node"] for worker in self.workers if worker.command}:
            self.doomed.remove(node)
            self._fate(node)

    def _fate(self, node: str) -> None:
        """Kill the node and its pods, bring it back with an empty disk, or recreate its object."""
        if node in self.dead:
            # A node usually stays dead long enough to lose its blocks.
            if self.draw.random() < 0.7:
                return
            self.faults.count["node wiped"] += 1
            self.live([node])
            self.wiped.add(node)
        elif self.draw.random() < 0.5:
            self._made_anew(node)
        else:
            self.faults.count["node died"] += 1
            self.faults.record.note("died", node=node)
            self.history.died(node)
            self.dead.add(node)
            self._wait_no_more(node)
            self.servers.dead(node)

    def _made_anew(self, node: str) -> None:
        """Recreate the node's object.  Others may suspect the node once the object is gone, which is before the servers
        answer.  If the node has not checked since the last time, its hour counts from that time."""
        now = self.clock.now()
        until = self.awaited.setdefault(node, now + SOON)
        self.asleep[node] = now + (until - now) * self.draw.random()
        self.clock.until = min(self.awaited.values())
        if self.servers.replaced(node):
            self.faults.count["node object made anew"] += 1
            self.faults.record.note("made anew", node=node, awaited=self.awaited[node], asleep=self.asleep[node])
        else:
            self._wait_no_more(node)

    def _wait_no_more(self, node: str) -> None:
        """Forget the deadline of a node that has checked or died, so that the clock may go on."""
        if self.awaited.pop(node, None):
            self.faults.record.note("waited for no more", node=node)
        self.asleep.pop(node, None)
        self.clock.until = min(self.awaited.values(), default=math.inf)

    def _wait_for_all(self) -> None:
        while any(worker.command for worker in self.workers):
            self._hear()


def _held(folder: Path) -> list[int]:
    """The blocks that a node holds on its disk."""
    files = list(folder.glob("data/*/blocks"))
    return [block["index"] for file in files for block in json.loads(file.read_text())["body"]["blocks"]]
