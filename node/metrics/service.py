"""hpn node --metrics: the sockets, and who is asked for what."""

import errno
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from cni.protocol.errors import CniError
from node.blocks import TOPIC, Blocks
from node.daemon import Daemon
from node.kubelet import sockets
from node.loop import Alarm, Loop
from node.metrics.address import Address
from node.metrics.collection import Collection
from node.metrics.commands import Commands, Tally
from node.metrics.http import Server
from node.saying import Topics, say

_AGAIN: Final = 5.0  # seconds until what could not be opened is tried again


class Metrics:
    """Serves at the address until ``close``.  What cannot be opened is said, and tried again."""

    def __init__(self, loop: Loop, daemon: Daemon, blocks: Blocks, address: Address, version: str) -> None:
        self._loop, self._daemon, self._blocks, self._address, self._version = loop, daemon, blocks, address, version
        self._topics = Topics()
        self._tally = Tally()
        self._commands: Commands | None = None
        self._server: Server | None = None
        self._made = 0  # the inode of a socket with a path
        self._again: Alarm | None = None
        self._collection = Collection(loop, self._make, self._say)
        self._open()

    def close(self) -> None:
        """Serve no more."""
        if self._again:
            self._again.cancel()
        if self._commands:
            self._commands.close()
        if self._server:
            self._server.close()
        if self._made:
            sockets.remove(Path(self._address.path), self._made)
        self._collection.close()

    def _open(self) -> None:
        self._again = None
        self._try("metrics", f"--metrics {self._address}", self._serve)
        self._try("commands", "commands are not counted", self._hear)

    def _try(self, topic: str, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, CniError) as e:
            self._topics.problem(topic, f"{what}: {_why(e)}; tried again every {_AGAIN:g} s")
            self._again = self._again or self._loop.after(_AGAIN, self._open)
        else:
            self._topics.solved(topic)

    def _serve(self) -> None:
        if self._server:
            return
        listener = self._address.listen()
        if self._address.path:
            self._made = sockets.inode(Path(self._address.path))
        self._server = Server(self._loop, listener, self._collection.ask, self._collection.withdraw)
        say(f"serves metrics at {self._address}")

    def _hear(self) -> None:
        self._commands = self._commands or Commands(self._loop, self._tally)

    def _say(self, sentences: tuple[str, ...]) -> None:
        self._topics.say_new("page", *sentences)

    def _make(self) -> tuple[bytes, tuple[str, ...]]:
        """The page, made in a process of its own."""
        from node import stored  # noqa: PLC0415  # as what follows: for that process
        from node.metrics import cluster, page, rdma, state  # noqa: PLC0415  # these with prometheus_client

        page.be_brief()
        records, remarks = cache(stored.records), set[str]()

        def remark(said: str) -> None:
            remarks.add(f"metrics: {said}: docs/metrics.md says what that takes")

        known = (page.build(self._version), page.commands(self._tally), page.devices(self._daemon.judged))
        readers: dict[str, page.Reader] = {
            "attachments": lambda: state.attachments(records()),
            "pools": lambda: state.pools(stored.data_dirs(records())),
            "blocks": lambda: cluster.blocks(stored.data_dirs(records()), self._blocks.suspected),
            "rdma": lambda: rdma.ports([record for _, record in records() if record], remark),
        }
        text, sentences = page.make(chain.from_iterable(known), readers, self._problems())
        return text, (*sentences, *remarks)

    def _problems(self) -> Mapping[str, bool]:
        return {**self._daemon.problems, "commands": not self._commands, TOPIC: self._blocks.is_problem}


def _why(error: OSError | CniError) -> str:
    if isinstance(error, CniError):
        return error.msg
    remedy = " by another process; choose another port" if error.errno == errno.EADDRINUSE else ""
    return f"{error.strerror}{remedy}"
