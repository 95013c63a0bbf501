"""This node's blocks of the networks whose addresses a cluster's nodes share: looked after in time (ipam/cluster).

The work is done by a process that ends: it asks a store elsewhere, and that may take long.  A node without such a
network is not woken up by this.  It hears of the first one by a datagram.
"""

import asyncio
import errno
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from base.child_process import Child
from base.kernel import unix_sockets
from base.protocol import report
from base.protocol.errors import CniError
from base.protocol.location import IPAM_DIR
from base.protocol.spec import Config
from base.state import durable, journal, places, trust
from base.state.record import Record
from node.kubelet import sockets
from node.log import Topics

# Seconds between two rounds: a sixth of the time after which others may take a block of a node that seems dead.
EVERY: Final = 600.0
# Seconds until a round that could not be done is tried again, and until one that a command asks for.
AGAIN: Final = 60.0
REST: Final = 5.0
# The same where a number may be given up that another node waits for: a pod's interfaces go one after the other.  And
# so many from the beginning of a round until the next for that.
SOON: Final = 0.2
APART: Final = 1.0
# Seconds that the rounds of all networks may take: a round holds a lock that commands wait for.
MOST: Final = 300
# What can be wrong, as metrics name it.
TOPIC: Final = "cluster"
_ROOM: Final = 64  # bytes; a line has fewer
_AT_ONCE: Final = 64  # datagrams that are read before others have their turn


class Found(NamedTuple):
    """What the round of a network has found (Report of ipam.cluster.reconcile.reconcile_all, which is for the other
    process to import)."""

    network: str
    suspected: int = 0
    said: tuple[str, ...] = ()
    problem: str = ""


# Does the rounds; None if this node has no such network.
Rounds = Callable[[], tuple[Found, ...] | None]


def rounds(kubeconfig: str = "") -> tuple[Found, ...] | None:
    """For a process of its own: do a round for each network of which this node has blocks.

    ``kubeconfig`` says as whom the API server is asked, if not as the policy file does.
    """
    signal.alarm(MOST)
    there = records()
    networks = list(networks_with_blocks(data_dirs(there)))
    if not networks:
        return None
    if why := of_another_boot(there):  # guard: another-boot
        return tuple(Found(path.name, problem=why) for path in networks)
    from ipam import sandboxes  # noqa: PLC0415  # what is imported here is for that process
    from ipam.cluster.reconcile import reconcile_all as of_networks  # noqa: PLC0415

    reports = of_networks.rounds(networks, sandboxes.gone, kubeconfig=kubeconfig)
    return tuple(Found(one.network, one.suspected, one.said, one.problem) for one in reports)


def records() -> list[tuple[Path, Record | None]]:
    """Every record of the node, by its path."""
    return [found for folder in places.state_dirs() for found in journal.files(folder)]


def of_another_boot(records: Iterable[tuple[Path, Record | None]]) -> str:
    """Why this process must judge no attachment or lease by the boot that it sees, in words; empty if it may.

    A boot leaves no record (/run).  So if there are records, and none is of this boot, whoever writes them sees another
    boot id than this process, in whose container something may hide the host's; and all pods live.
    """
    known = [(path, record) for path, record in records if record]
    if not known or any(record.of_this_boot for _, record in known):  # guard: this-boot (of_this_boot)
        return ""
    path, record = known[0]
    return (
        f"{path} is of boot {record.boot}, as are all records of attachments here, and {durable.BOOT_ID} says "
        f"{durable.boot_id()} to hpn node: it would take the leases of pods that live for those of an older boot; "
        "let its container see the node's boot id, or run hpn node on the host"
    )


def data_dirs(records: Iterable[tuple[Path, Record | None]]) -> list[Path]:
    """Where leases are: the default, that of each state directory, and those that attachments name."""
    found = {Path(IPAM_DIR), *(folder / "ipam" for folder in places.state_dirs())}
    found.update(Path(named) for _, record in records if record and (named := _named(record.config)))
    return sorted(found)


def _named(conf: Config) -> str:
    """The directory that a configuration names for its leases; empty if it names none."""
    ipam = conf.get("ipam")
    named = ipam.get("dataDir") if isinstance(ipam, dict) else None
    return named if isinstance(named, str) and named.startswith("/") else ""


def networks_with_blocks(data_dirs: Iterable[Path]) -> Iterator[Path]:
    """The directories of the networks of which this node has blocks (ipam/cluster/state/node_blocks.py)."""
    return (path.parent for folder in data_dirs for path in sorted(folder.glob("*/blocks")))


class Blocks:
    """Has the rounds done: at once, in time, and when a command tells that there is little room."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rounds: Rounds = rounds, path: Path = Path(report.ROOM)
    ) -> None:
        self._loop, self._rounds, self._path = loop, rounds, path
        self._topics = Topics()
        self._reports: tuple[Found, ...] = ()
        self._child: Child | None = None
        self._next: asyncio.TimerHandle | None = None
        self._began = -APART
        self._sock: socket.socket | None = None
        self._made = 0  # the socket's inode
        self._listen()
        # Networks elsewhere (ipam.dataDir) are found by the first datagram.
        if any(networks_with_blocks([Path(IPAM_DIR), *(folder / "ipam" for folder in places.state_dirs())])):
            self._start()

    @property
    def is_problem(self) -> bool:
        """Whether a round could not be done."""
        return TOPIC in self._topics.problems

    @property
    def suspected(self) -> Mapping[str, int]:
        """Of each network how many of this node's blocks others took for a dead node's before the last round."""
        return {one.network: one.suspected for one in self._reports}

    def close(self) -> None:
        """Do no more."""
        if self._next:
            self._next.cancel()
        if self._child:
            self._loop.remove_reader(self._child.fd)
            self._child.leave()
            self._child = None
        if self._sock:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            sockets.remove(self._path, self._made)

    def _listen(self) -> None:
        try:
            durable.directory(self._path.parent)
            trust.refuse_unless_ours(str(self._path.parent))  # guard: ours-only
            self._path.unlink(missing_ok=True)
            self._sock = unix_sockets.bind(self._path, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._made = sockets.inode(self._path)
        except (OSError, CniError) as e:
            why = e.msg if isinstance(e, CniError) else e.strerror
            self._topics.say_new("room", f"commands cannot tell that a network has little room: {self._path}: {why}")
        else:
            self._loop.add_reader(self._sock.fileno(), self._hear)

    def _hear(self) -> None:
        asked = set[bytes]()
        try:
            for _ in range(_AT_ONCE if self._sock else 0):
                asked |= {self._sock.recv(_ROOM)} if self._sock else set()
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
        if report.FREED in asked:
            self._after(max(SOON, self._began + APART - time.monotonic()))
        elif report.LOW in asked:
            self._after(REST)

    def _after(self, seconds: float) -> None:
        """Do the rounds so many seconds from now, unless they are done before that."""
        due = time.monotonic() + seconds
        if self._next and not self._next.cancelled() and self._next.when() <= due:
            return
        if self._next:
            self._next.cancel()
        self._next = self._loop.call_later(seconds, self._start)

    def _start(self) -> None:
        self._next = None
        if self._child:  # it has just begun, and may not have seen what is new
            self._after(APART)
            return
        self._began = time.monotonic()
        try:
            self._child = Child(self._rounds)
        except OSError as e:
            self._failed(f"no process can be started: {e.strerror}")
        else:
            self._loop.add_reader(self._child.fd, self._take)

    def _take(self) -> None:
        child, self._child = self._child, None
        if not child:
            return
        self._loop.remove_reader(child.fd)
        try:
            reports = child.answer()
        except (OSError, EOFError) as e:
            self._failed(f"the process that looks after them {e}")
            return
        self._reports = reports or ()
        said = [sentence for one in self._reports for sentence in one.said]
        problems = [f"network {one.network}: {one.problem}" for one in self._reports if one.problem]
        self._topics.say_new("blocks", *said)
        self._topics.say_new(TOPIC, *problems, is_problem=bool(problems))
        if reports:  # guard: no-network-no-alarm = True
            self._after(AGAIN if problems else EVERY)

    def _failed(self, why: str) -> None:
        self._topics.problem(TOPIC, f"this node's blocks of shared networks cannot be looked after: {why}")
        self._after(AGAIN)
