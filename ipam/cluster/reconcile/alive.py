"""Report this node alive and refute suspicions of its blocks, before any work that needs the disk.

A full, read-only or broken disk does not end the node's pods, so it must not cost the node its blocks.  This takes no
lock and writes to memory only; it works from the copies of what was once read (ipam/cluster/copies.py).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import CniError, InvalidConfig, Unreachable
from ipam.cluster import Machine, RoundReport, copies, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.backends.backend import Backend
from ipam.cluster.node_blocks import GRACE, NodeBlocks, heartbeat_is_due
from ipam.cluster.reconcile.heartbeat import Heartbeat, answer_all


@dataclass
class Alive:
    """Of one directory of blocks: its heartbeat if one was due and the backend answered, or the reason for none."""

    log: list[str] = field(default_factory=list)
    heartbeat: Heartbeat | None = None
    problem: str = ""


class Backends:
    """The backends of this node's networks.  One without an answer is asked once."""

    def __init__(self, kubeconfig: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._opened = dict[str, Backend]()
        self._identities, self._machines, self._silent = dict[str, str](), dict[str, Machine](), dict[str, str]()
        self._told = set[str]()
        self.alive = dict[Path, Alive]()

    def answer(self, directory: Path, *, due_only: bool) -> None:
        """Report the node alive to the backend of the directory's blocks, and refute suspicions of them.

        With ``due_only``, only if a heartbeat is due.
        """
        one = self.alive[directory] = Alive()
        mine = copies.last(directory) or _from_disk(directory)
        if mine is None or (due_only and not heartbeat_is_due(mine)):
            return
        budget.begin(is_patient=True)
        try:
            opened = self.opened(mine, directory)
            heartbeat = Heartbeat(opened.documents, self._reported(mine.backend, opened), one.log)
            heartbeat.answer(mine)
        except CniError as e:
            one.problem = e.msg
            if isinstance(e, Unreachable):
                self._silent[mine.backend] = e.msg
            return
        one.heartbeat = heartbeat
        copies.note(directory, replace(mine, looked=heartbeat.began, asked=heartbeat.began))

    def opened(self, mine: NodeBlocks, directory: Path) -> Backend:
        """Return the backend of these blocks.

        Raises InvalidConfig if it belongs to another cluster than the blocks; Unreachable, BackendRefused.
        """
        kind = mine.backend
        if kind in self._silent:
            raise Unreachable(self._silent[kind])
        opened = self._opened[kind] = self._opened.get(kind) or backend.opened(kind, self._kubeconfig)
        # No other cluster gave a Node object this UID.  An etcd knows only what this node reports.
        if not opened.host and mine.machine and self._machine(kind, opened).uid == mine.machine:
            return opened
        identity = self._identities[kind] = self._identities.get(kind) or opened.documents.identity()
        if mine.identity != identity:
            raise InvalidConfig(
                f"{directory}/{node_blocks.FILE}: these blocks belong to cluster {mine.identity}, and backend "
                f"{kind!r} to cluster {identity}; correct backends.{kind} in the policy file; if the node "
                "moved, delete the network's pods on it, then the file"
            )
        return opened

    def _reported(self, kind: str, opened: Backend) -> Machine:
        """Report this node alive, once for all networks of the backend; return this machine.

        Raises Unreachable, BackendRefused.
        """
        if kind not in self._told:
            opened.documents.keep_alive(opened.node, GRACE, opened.host)
            self._told.add(kind)
        return self._machine(kind, opened)

    def _machine(self, kind: str, opened: Backend) -> Machine:
        if kind not in self._machines:
            self._machines[kind] = opened.machine()
        return self._machines[kind]


def without_disk(problems: Sequence[OSError], kubeconfig: str = "") -> list[RoundReport]:
    """Return a report of each file or directory of blocks that cannot be read.

    If nothing was read from one before, report this node alive, and refute suspicions of all blocks that a backend
    lists for this machine.
    """
    log = list[str]()
    if copies.uncopied(problems):
        number = _answer_all(kubeconfig, log)
        log.append(f"{number} blocks of this node are kept by the backend's own list")
    why = "this node cannot read its blocks there; repair the disk"
    return [RoundReport(f"{one.filename}", 0, tuple(log), f"{one.filename}: {one.strerror}; {why}") for one in problems]


def _answer_all(kubeconfig: str, log: list[str]) -> int:
    number = 0
    for kind in backend.KINDS:
        with suppress(CniError):  # the policy file names no such backend, or it does not answer
            opened = backend.opened(kind, kubeconfig)
            budget.begin(is_patient=True)
            opened.documents.keep_alive(opened.node, GRACE, opened.host)
            number += answer_all(opened.documents, opened.machine(), log)
    return number


def _from_disk(directory: Path) -> NodeBlocks | None:
    with suppress(CniError):  # the round reports it
        return node_blocks.read(directory)
    return None
