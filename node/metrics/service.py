"""hpn node --metrics: the sockets, and the child process that serves the page."""

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
from base.state.data_dirs import data_dirs
from hardware.model import Device
from node import blocks
from node.blocks import TOPIC, Blocks
from node.daemon import Daemon
from node.kubelet import sockets
from node.log import Topics, log
from node.metrics.address import Address
from node.metrics.commands import Tally, receive

_AGAIN: Final = 5.0  # seconds until the next attempt to open a socket or start the child


class Known(NamedTuple):
    """The daemon's part of the page.

    ``devices``: each resource's number of devices; and its unhealthy ones, each with the reason.
    """

    tally: Tally
    devices: Mapping[str, tuple[int, Sequence[tuple[Device, str]]]]
    problems: Mapping[str, bool]
    suspected: Mapping[str, int]


class Metrics:
    """Serves the page at the address until ``close``.  A socket that cannot be opened is logged, and tried again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, daemon: Daemon, blocks: Blocks, address: Address, version: str
    ) -> None:
        self._loop, self._daemon, self._blocks, self._address, self._version = loop, daemon, blocks, address, version
        self._topics = Topics()
        self._tally = Tally()
        self._commands: sockets.Datagrams | None = None
        self._listener: socket.socket | None = None
        self._inode = 0  # of a socket with a path
        self._child: Child | None = None
        self._requests: socket.socket | None = None  # for the child's requests for Known
        self._again: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        """Stop serving."""
        if self._again:
            self._again.cancel()
        if self._commands:
            self._commands.close()
        if self._child and self._requests:
            self._unwatch()
            self._child.end()
        if self._listener:
            self._listener.close()
        if self._inode:
            sockets.remove(Path(self._address.path), self._inode)

    def _open(self) -> None:
        self._again = None
        self._try("metrics", f"--metrics {self._address}", self._serve)
        self._try("commands", "commands are not counted", self._count)

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
            self._inode = sockets.inode(Path(self._address.path)) if self._address.path else 0
        if self._child:
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            work = partial(_serve, self._listener, theirs, self._version)
            self._child = Child(work, keeps=(self._listener.fileno(), theirs.fileno()))
        self._loop.add_reader(self._requests.fileno(), self._answer)
        self._loop.add_reader(self._child.fd, self._restart)
        log(f"serves metrics at {self._address}")

    def _unwatch(self) -> None:
        if self._child and self._requests:
            for fd in (self._requests.fileno(), self._child.fd):
                self._loop.remove_reader(fd)
            self._requests.close()

    def _count(self) -> None:
        self._commands = self._commands or receive(self._loop, self._tally)

    def _answer(self) -> None:
        """Send the child Known, in a file in memory: it may be long, and the daemon must not wait."""
        problems = {**self._daemon.problems, "commands": not self._commands, TOPIC: self._blocks.is_problem}
        health = self._daemon.health.items()
        devices = {name: (len(theirs), tuple(filter(itemgetter(1), theirs))) for name, theirs in health}
        known = Known(self._tally, devices, problems, self._blocks.suspected)
        with suppress(OSError), os.fdopen(os.memfd_create("known"), "wb") as file:
            if self._requests and self._requests.recv(1):
                pickle.dump(known, file)
                file.flush()
                socket.send_fds(self._requests, [b"."], [file.fileno()])

    def _restart(self) -> None:
        """Start another child soon; a driver or a disk may have blocked the last one."""
        if not self._child:
            return
        self._unwatch()
        child, self._child = self._child, None
        try:
            child.answer()
        except (OSError, EOFError) as e:
            self._topics.problem("metrics", f"the process that serves metrics {e}; it is restarted in {_AGAIN:g} s")
        self._again = self._again or self._loop.call_later(_AGAIN, self._open)


def _serve(listener: socket.socket, parent: socket.socket, version: str) -> None:
    """Serve until the parent ends.  For a child process."""
    from node.metrics import page, server  # noqa: PLC0415  # for the child only, with prometheus_client

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # systemd signals all processes; the parent's end is enough
    gc.freeze()  # a collection would copy the memory shared with the parent
    topics = Topics()

    def make() -> bytes:
        known = _ask(parent)
        records, remarks = cache(blocks.records), set[str]()

        def remark(sentence: str) -> None:
            remarks.add(f"metrics: {sentence}: docs/user/metrics.md lists the requirements")

        readers: dict[str, page.Reader] = {
            "attachments": lambda: page.attachments(records()),
            "pools": lambda: page.pools(data_dirs(records())),
            "blocks": lambda: page.blocks(data_dirs(records()), known.suspected),
            "rdma": lambda: page.ports([record for _, record in records() if record], remark),
            "users": lambda: page.users([record for _, record in records() if record], remark),
        }
        families = chain(page.build(version), page.commands(known.tally), page.devices(known.devices))
        text, sentences = page.make(families, readers, known.problems)
        topics.report("page", *sentences, *sorted(remarks))
        return text

    server.Server(listener, make).serve_until_end_of(parent)


def _ask(parent: socket.socket) -> Known:
    """The daemon's part of the page, as of now.  Raises OSError."""
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
