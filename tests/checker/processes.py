"""The processes of a checker's world, which end with it."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Worker:
    """A process that acts for nodes, and its latest command."""

    process: "subprocess.Popen[str]"
    nodes: list[str]
    together: bool
    command: dict[str, Any] | None = None

    def tell(self, command: dict[str, Any]) -> None:
        assert self.process.stdin
        self.command = {"together": self.together, **command}
        self.process.stdin.write(json.dumps(self.command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        said = self.process.stdout.readline()
        assert said, f"a worker ended: {self.command}"
        self.command = None
        found: dict[str, Any] = json.loads(said)
        return found


# A link without ARP, so no probe runs on it.
LINK = "ip tuntap add hpn0 mode tun; ip link set hpn0 up; echo; exec sleep 100000"


@contextmanager
def started(words: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
