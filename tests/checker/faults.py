"""Draw faults from a seed, and count how often each occurred."""

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
# The grace of a node in seconds of the checker's clock.
HOUR = 3600
GRACE = HOUR / SPEED  # the same in seconds of the machine's clock
# The store's clock may jump by this many seconds at any time.
SMALL = 120
# The proxy's faults that take no time.
QUICK = ("busy", "broken", "dropped", "denied", "lost", "failed", "twice")
# A command may be killed before any of these steps.  It has slightly fewer steps.
STEPS = 70
# Errors of a node's clock in seconds.  The last one sets it to a time before any current program was written.
WRONG = (0, 0, 60, 7200, -7200, 30 * 86400, -30 * 86400, -1_700_000_000)


@dataclass
class Faults:
    """Faults of commands, clocks, servers and the proxy.  ``count`` holds the faults drawn here; the proxy counts its
    own."""

    draw: random.Random
    servers: Servers
    proxy: "subprocess.Popen[str]"
    record: Record
    count: Counter[str] = field(default_factory=Counter)
    # The error of each wrong node clock, in seconds.
    ahead: dict[str, int] = field(default_factory=dict)
    _rates: Mapping[str, float] = field(default_factory=dict)
    _proxys: Mapping[str, int] = field(default_factory=dict)

    def of_command(self, node: str, *, may_be_killed: bool) -> dict[str, Any]:
        """Draw the fault of a command of that node, in node.py's format."""
        ahead = {"ahead": self.ahead.get(node, 0)}
        if may_be_killed and self.draw.random() < 0.4:
            return {**ahead, "step": self.draw.randrange(STEPS)}
        if may_be_killed and self.draw.random() < 0.1:
            self.count["disk full"] += 1
            # The disk is full from the first step, or from a later one.
            return {**ahead, "full": self.draw.choice((0, self.draw.randrange(STEPS)))}
        return ahead

    def strike(self, nodes: Sequence[str], *, is_hour_promised: bool) -> None:
        """Begin or end one more fault, or do nothing.  The store's clock never jumps by an hour while a node is
        promised an hour."""
        what = self.draw.random()
        if what < 0.08:
            rates = {kind: self.draw.choice((0, 0, 0, 0.02, 0.1)) for kind in QUICK}
            rates["silent"] = self.draw.choice((0, 0, 0, 0.003))
            # A node that waits longer than its grace is cut off, and then nothing is promised.
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
        """End all faults."""
        self.ahead.clear()
        self._set({})
        self.servers.heal()

    def all(self) -> dict[str, int]:
        """The number of occurrences by fault."""
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
