"""What goes wrong, drawn by a seed, and how often each of it did."""

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checker.proxy import SILENCE
from checker.record import Record
from checker.servers import Servers

SPEED = float(os.environ.get("HPN_CHECKER_SPEED", "1200"))
# Seconds for which a node is waited for, as the checker's clock has them.
HOUR = 3600
GRACE = HOUR / SPEED  # seconds that a dead node is waited for, as the machine's clock has them
# By so many seconds the store's clock may jump at any time.
SMALL = 120
# What of the proxy's faults costs no time.
QUICK = ("busy", "broken", "dropped", "denied", "lost", "failed", "twice")
# Steps of a command, and a few more, before which it may be killed.
STEPS = 70
# Seconds that a node's clock is wrong by; the last brings it to before any program of today was written.
WRONG = (0, 0, 60, 7200, -7200, 30 * 86400, -30 * 86400, -1_700_000_000)


@dataclass
class Faults:
    """Those of commands, clocks, servers and of the proxy before these.  ``count`` has what was drawn here; the proxy
    counts for itself."""

    draw: random.Random
    servers: Servers
    proxy: "subprocess.Popen[str]"
    record: Record
    count: Counter[str] = field(default_factory=Counter)
    # Of each node whose clock is wrong, by how many seconds.
    ahead: dict[str, int] = field(default_factory=dict)
    _rates: Mapping[str, float] = field(default_factory=dict)
    _proxys: Mapping[str, int] = field(default_factory=dict)

    def of_command(self, node: str, *, may_be_killed: bool) -> dict[str, Any]:
        """What goes wrong with a command of that node, as node.py is told."""
        ahead = {"ahead": self.ahead.get(node, 0)}
        if may_be_killed and self.draw.random() < 0.4:
            return {**ahead, "step": self.draw.randrange(STEPS)}
        if may_be_killed and self.draw.random() < 0.1:
            self.count["disk full"] += 1
            # From the beginning, or from there on.
            return {**ahead, "full": self.draw.choice((0, self.draw.randrange(STEPS)))}
        return ahead

    def strike(self, nodes: Sequence[str], *, is_hour_promised: bool) -> None:
        """Something else goes wrong, or ends, or nothing does.  The store's clock jumps by no hour while one is
        promised to a node."""
        what = self.draw.random()
        if what < 0.08:
            rates = {kind: self.draw.choice((0, 0, 0, 0.02, 0.1)) for kind in QUICK}
            rates["silent"] = self.draw.choice((0, 0, 0, 0.003))
            # A node that waits for longer than it is waited for is cut off, and then nothing is promised.
            if GRACE < 2 * SILENCE:
                rates["silent"] = 0
            was = int(self._rates.get("jump", 0))
            jump = self.draw.choice((0, 0, *self.servers.jumps))
            if is_hour_promised and abs(jump - was) > SMALL:
                jump = was
            self.count["store's clock"] += jump != was
            self._set({**rates, "jump": jump})
        elif what < 0.12:
            if self.servers.harm(self.draw):
                self.count["server killed"] += 1
                self.record.note("server killed")
        elif what < 0.14:
            self.count["node's clock"] += 1
            node, ahead = self.draw.choice(nodes), self.draw.choice(WRONG)
            self.ahead[node] = ahead
            self.record.note("node's clock", node=node, ahead=ahead)

    def end(self) -> None:
        """All is as it should be from now on."""
        self.ahead.clear()
        self._set({})
        self.servers.heal()

    def all(self) -> dict[str, int]:
        """How often each was, by its name."""
        return dict(sorted((self.count + Counter(self._proxys)).items()))

    def _set(self, rates: Mapping[str, float]) -> None:
        assert self.proxy.stdin
        assert self.proxy.stdout
        self._rates = rates
        self.record.jump = rates.get("jump", 0)
        self.record.note("rates", **rates)
        self.proxy.stdin.write(json.dumps(rates) + "\n")
        self.proxy.stdin.flush()
        self._proxys = json.loads(self.proxy.stdout.readline())
