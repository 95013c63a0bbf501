"""hpn node --metrics: the sockets, and the process that serves the page as long as this one lives."""

import asyncio
import errno
import gc
import os
import pickle
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from base.child_process import Child
from base.protocol.errors import CniError
from hardware.model import Device
from node import blocks
from node.blocks import TOPIC, Blocks
from node.daemon import Daemon
from node.kubelet import sockets
from node.log import Topics, say
from node.metrics.address import Address
from node.metrics.commands import Commands, Tally

_AGAIN: Final = 5.0  # seconds until what could not be opened is tried again


class Devices(NamedTuple):
    """How many a resource has; those that are unhealthy, each with the reason."""

    number: int
    unhealthy: Sequence[tuple[Device, str]]


class Known(NamedTuple):
    """What hpn node itself has for the page."""

    tally: Tally
    devices: Mapping[str, Devices]
    problems: Mapping[str, bool]
    suspected: Mapping[str, int]


class Metrics:
    """Has the page served at the address until ``close``.  What cannot be opened is said, and tried again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, daemon: Daemon, blocks: Blocks, address: Address, version: str
    ) -> None:
        self._loop, self._daemon, self._blocks, self._address, self._version = loop, daemon, blocks, address, version
        self._topics = Topics()
        self._tally = Tally()
        self._commands: Commands | None = None
        self._listener: socket.socket | None = None
        self._made = 0  # the inode of a socket with a path
        self._child: Child | None = None
        self._asks: socket.socket | None = None  # by which the child asks for what is known here
        self._again: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        """Serve no more."""
        if self._again:
            self._again.cancel()
        if self._commands:
            self._commands.close()
        if self._child and self._asks:
            self._unwatch()
            self._child.end()
        if self._listener:
            self._listener.close()
        if self._made:
            sockets.remove(Path(self._address.path), self._made)

    def _open(self) -> None:
        self._again = None
        self._try("metrics", f"--metrics {self._address}", self._serve)
        self._try("commands", "commands are not counted", self._hear)

    def _try(self, topic: str, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, CniError) as e:
            self._topics.problem(topic, f"{what}: {_why(e)}; tried again every {_AGAIN:g} s")
            self._again = self._again or self._loop.call_later(_AGAIN, self._open)
        else:
            self._topics.solved(topic)

    def _serve(self) -> None:
        if not self._listener:
            self._listener = self._address.listen()
            self._made = sockets.inode(Path(self._address.path)) if self._address.path else 0
        if self._child:
            return
        self._asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            work = partial(_serve, self._listener, theirs, self._version)
            self._child = Child(work, keeps=(self._listener.fileno(), theirs.fileno()))
        self._loop.add_reader(self._asks.fileno(), self._answer)
        self._loop.add_reader(self._child.fd, self._ended)
        say(f"serves metrics at {self._address}")

    def _unwatch(self) -> None:
        if self._child and self._asks:
            for fd in (self._asks.fileno(), self._child.fd):
                self._loop.remove_reader(fd)
            self._asks.close()

    def _hear(self) -> None:
        self._commands = self._commands or Commands(self._loop, self._tally)

    def _answer(self) -> None:
        """Give the child what is known here: in a file in memory, because it may be long, and this must not wait."""
        problems = {**self._daemon.problems, "commands": not self._commands, TOPIC: self._blocks.is_problem}
        devices = {name: Devices(len(theirs), tuple(filter(itemgetter(1), theirs)))
                   for name, theirs in self._daemon.judged.items()}  # fmt: skip
        known = Known(self._tally, devices, problems, self._blocks.suspected)
        with suppress(OSError), os.fdopen(os.memfd_create("known"), "wb") as file:
            if self._asks and self._asks.recv(1):
                pickle.dump(known, file)
                file.flush()
                socket.send_fds(self._asks, [b"."], [file.fileno()])

    def _ended(self) -> None:
        """Begin anew, soon: a driver or a disk may have hung."""
        if not self._child:
            return
        self._unwatch()
        child, self._child = self._child, None
        try:
            child.answer()
        except (OSError, EOFError) as e:
            self._topics.problem("metrics", f"the process that serves metrics {e}; it is begun again in {_AGAIN:g} s")
        self._again = self._again or self._loop.call_later(_AGAIN, self._open)


def _serve(listener: socket.socket, parent: socket.socket, version: str) -> None:
    """Serve until the parent ends.  For a process of its own."""
    from node.metrics import page, server  # noqa: PLC0415  # for that process, with prometheus_client

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # systemd sends it to all processes at once; the parent's end is enough
    gc.freeze()  # a look through what is shared with the parent would copy all of that
    topics = Topics()

    def make() -> bytes:
        known = _ask(parent)
        records, remarks = cache(blocks.records), set[str]()

        def remark(said: str) -> None:
            remarks.add(f"metrics: {said}: docs/user/metrics.md says what that takes")

        readers: dict[str, page.Reader] = {
            "attachments": lambda: page.attachments(records()),
            "pools": lambda: page.pools(blocks.data_dirs(records())),
            "blocks": lambda: page.blocks(blocks.data_dirs(records()), known.suspected),
            "rdma": lambda: page.ports([record for _, record in records() if record], remark),
        }
        families = chain(page.build(version), page.commands(known.tally), page.devices(known.devices))
        text, sentences = page.make(families, readers, known.problems)
        topics.say_new("page", *sentences, *sorted(remarks))
        return text

    server.Server(listener, make).serve_until_end_of(parent)


def _ask(parent: socket.socket) -> Known:
    """What hpn node itself has for the page now.  Raises OSError."""
    parent.send(b"?")
    _, [fd], _, _ = socket.recv_fds(parent, 1, 1)
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        known: Known = pickle.load(file)  # noqa: S301  # of our own parent
    return known


def _why(error: OSError | CniError) -> str:
    if isinstance(error, CniError):
        return error.msg
    remedy = " by another process; choose another port" if error.errno == errno.EADDRINUSE else ""
    return f"{error.strerror}{remedy}"
