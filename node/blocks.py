"""Rounds over this node's blocks of networks that a cluster's nodes share (ipam/cluster).

A child process does each round, because a remote backend may answer late.  A node without such a network never wakes up
for this; a datagram reports its first one.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from base.child_process import Child
from base.protocol import report
from base.protocol.errors import CniError
from base.state import data_dirs, durable
from base.state.record import Record
from ipam.cluster import RoundReport, copies
from node.background import Background
from node.kubelet import sockets
from node.log import Topics

# All times are in seconds.
EVERY: Final = 600.0  # between rounds of all networks, and up to a tenth less: a sixth of the grace
AGAIN: Final = 60.0  # from a failed round to the next
REST: Final = 5.0  # from a command's request to the round, and up to as much more, because a job starts on many nodes
# From a request that may free a number for which another node waits: soon, because a pod's interfaces go one after the
# other.  Two such rounds begin this far apart.
SOON: Final = 0.2
APART: Final = 1.0
MOST: Final = 300  # for a round over all networks, which holds a lock that commands wait for
TOPIC: Final = "cluster"  # the problem's name in metrics

Records = list[tuple[Path, Record | None]]
# Does the rounds; only those that are due if its argument is True.  None if this node has no such network.
Rounds = Callable[[bool], tuple[RoundReport, ...] | None]


def rounds(due_only: bool = False, kubeconfig: str = "") -> tuple[RoundReport, ...] | None:  # noqa: FBT001, FBT002
    """Do a round for each network with blocks of this node; with ``due_only``, for those with work.  For a child
    process.

    ``kubeconfig`` names credentials for the API server; without it those of the policy file apply.
    """
    signal.alarm(MOST)
    there = records()
    networks, problems = copies.networks(data_dirs.data_dirs(there))
    if not networks and not problems:
        return None
    from ipam import sandboxes  # noqa: PLC0415  # for the child only
    from ipam.cluster.reconcile import alive, reconcile  # noqa: PLC0415

    reports = alive.without_disk(problems, kubeconfig)
    every = reconcile.rounds(
        networks, sandboxes.gone, due_only=due_only, kubeconfig=kubeconfig, unsafe=of_another_boot(there)
    )
    return (*reports, *every)


def records() -> Records:
    """All readable directories' records of the node, with their paths; None for an unreadable one."""
    return data_dirs.records()


def of_another_boot(records: Records) -> str:
    """Why this process must judge no attachment or lease by its boot id; empty if it may.

    A boot leaves no record (/run).  So if no record is of this boot, their writers see another boot id than this
    process.  Something in its container may hide the host's, and all pods are alive.
    """
    known = [(path, record) for path, record in records if record]
    if not known or any(record.of_this_boot for _, record in known):
        return ""
    path, record = known[0]
    return (
        f"{path} is of boot {record.boot}, like all records, but hpn node reads {durable.boot_id()} in "
        f"{durable.BOOT_ID}: running pods' leases would seem old; give its container the node's boot id, or run it on "
        "the host"
    )


def networks_with_blocks(data_dirs: Iterable[Path]) -> Iterator[Path]:
    """The directories of networks with blocks of this node (ipam/cluster/node_blocks.py)."""
    return (path.parent for folder in data_dirs for path in sorted(folder.glob("*/blocks")))


class Blocks:
    """Schedules the rounds: at the start, at intervals, and when a command asks for one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rounds: Rounds = rounds, path: Path = Path(report.ROOM)
    ) -> None:
        self._loop, self._rounds, self._path = loop, rounds, path
        self._topics = Topics()
        self._reports: tuple[RoundReport, ...] = ()
        self._background = Background(loop, self._start)
        self._began = -APART
        # When the next rounds of all networks are due, by the clock of time.monotonic.
        self._all_at = 0.0
        self._requests: sockets.Datagrams | None = None
        self._listen()
        if any(copies.networks(data_dirs.data_dirs(records()))):
            self._start()

    @property
    def is_problem(self) -> bool:
        """Whether the last round failed."""
        return TOPIC in self._topics.problems

    @property
    def suspected(self) -> Mapping[str, int]:
        """By network, how many blocks of this node others suspected before the last round."""
        return {one.network: one.suspected for one in self._reports}

    def close(self) -> None:
        """Stop."""
        self._background.close()
        if self._requests:
            self._requests.close()

    def _listen(self) -> None:
        try:
            self._requests = sockets.Datagrams(self._loop, self._path, self._receive)
        except (OSError, CniError) as e:
            why = e.msg if isinstance(e, CniError) else e.strerror
            self._topics.report("room", f"commands cannot report that a network has little room: {self._path}: {why}")

    def _receive(self, requests: Sequence[bytes]) -> None:
        if report.FREED in requests:
            self._background.after(max(_jittered(SOON), self._began + APART - time.monotonic()))
        elif report.LOW in requests:
            self._background.after(_jittered(REST))

    def _start(self) -> None:
        if self._background.is_at_work:  # the running round may have missed what the request is about
            self._background.after(APART)
            return
        self._began = time.monotonic()
        # A command's request is about one network, and the others need no heartbeat for it.
        due_only = self._began < self._all_at
        if not due_only:
            self._all_at = self._began + EVERY - random.uniform(0, EVERY / 10)  # noqa: S311  # no secret
        try:
            self._background.start(partial(self._rounds, due_only), partial(self._finish, due_only))
        except OSError as e:
            self._failed(f"no process can be started: {e.strerror}")

    def _finish(self, due_only: bool, child: Child) -> None:  # noqa: FBT001
        try:
            reports = child.answer()
        except (OSError, EOFError) as e:
            self._failed(f"the process of the round {e}")
            return
        found = {one.network for one in reports or ()}
        skipped = [one for one in self._reports if due_only and reports is not None and one.network not in found]
        self._reports = (*skipped, *(reports or ()))
        problems = [f"network {one.network}: {one.problem}" for one in self._reports if one.problem]
        self._topics.report("blocks", *(sentence for one in self._reports for sentence in one.log))
        self._topics.report(TOPIC, *problems, is_problem=bool(problems))
        if reports is None:  # the next datagram reports a network
            self._all_at = 0.0
            return
        if problems:
            self._all_at = min(self._all_at, time.monotonic() + AGAIN)
        self._background.after(max(self._all_at - time.monotonic(), 0))

    def _failed(self, why: str) -> None:
        self._topics.problem(TOPIC, f"this node's blocks of shared networks cannot be reconciled: {why}")
        self._all_at = min(self._all_at, time.monotonic() + AGAIN)
        self._background.after(AGAIN)


def _jittered(seconds: float) -> float:
    """Return a random time from the given one to twice as much, because nodes start a job's pods together."""
    return seconds * (1 + random.random())  # noqa: S311  # no secret
