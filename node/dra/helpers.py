"""Child processes that do one piece of work after the other, so that imports and connections serve the next one.

A piece is a function with its arguments, which pickle can send.  A process does one piece at a time, and each piece
once.
"""

import asyncio
import gc
import pickle
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from base.child_process import Child

IDLE: Final = 20.0  # seconds without work, until a process ends
MOST: Final = 256  # pieces of one process, which bound what libraries leave behind
_LENGTH: Final = 8  # bytes before an answer

T = TypeVar("T")


class Helpers:
    """Does pieces of work until ``close``.  The caller limits how many are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = dict[_Helper, asyncio.TimerHandle]()  # by the time of their last piece

    async def do(self, work: Callable[[], T]) -> T:
        """Return the work's result, by the latest of the free processes, or by a new one.  Cancelled work is killed.

        Raises ChildProcessError, with the status, if the process ended; OSError if none can be started.
        """
        helper = self._take()
        try:
            answer: T = await helper.do(self._loop, work)
        except (EOFError, ConnectionError) as e:
            raise ChildProcessError(f"ended with status {helper.end()}") from e
        except BaseException:
            helper.end()
            raise
        self._free[helper] = self._loop.call_later(IDLE, self._end, helper)
        if helper.pieces >= MOST:
            self._end(helper)
        return answer

    def close(self) -> None:
        """End the free processes.  The others end with the cancellation of their work, or with this process."""
        for helper in [*self._free]:
            self._end(helper)

    def _take(self) -> "_Helper":
        """Raises OSError."""
        while self._free:
            helper, timer = self._free.popitem()
            timer.cancel()
            if not helper.has_ended():
                return helper
            helper.end()
        return _Helper()

    def _end(self, helper: "_Helper") -> None:
        self._free.pop(helper).cancel()
        helper.end()


class _Helper(Child):
    """A process; ``pieces`` counts its work."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.pieces = 0
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                super().__init__(partial(_serve, theirs), [theirs.fileno()], is_lasting=True)
            except OSError:
                self._socket.close()
                raise
        self._socket.settimeout(0)

    async def do(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> T:
        """Raises EOFError or ConnectionError if the process ended."""
        self.pieces += 1
        await loop.sock_sendall(self._socket, pickle.dumps(work))
        length = int.from_bytes(await self._received(loop, _LENGTH))
        answer: T = pickle.loads(await self._received(loop, length))  # noqa: S301  # from our own child
        return answer

    async def _received(self, loop: asyncio.AbstractEventLoop, length: int) -> bytes:
        data = b""
        while part := length > len(data) and await loop.sock_recv(self._socket, length - len(data)):
            data += part
        if len(data) < length:
            raise EOFError
        return data

    def has_ended(self) -> bool:
        waiting = select.poll()
        waiting.register(self.fd, select.POLLIN)
        return bool(waiting.poll(0))

    def end(self) -> int:
        self._socket.close()
        return super().end()


def _serve(pieces: socket.socket) -> None:
    """Do the pieces, until the parent closes its end."""
    gc.freeze()  # no object of the parent's is collected, which would close a descriptor by its old number
    gc.enable()
    with suppress(EOFError), pieces.makefile("rwb") as stream:
        while True:
            work: Callable[[], object] = pickle.load(stream)  # noqa: S301  # from our own parent
            data = pickle.dumps(work())
            signal.alarm(0)  # the piece's own
            stream.write(len(data).to_bytes(_LENGTH) + data)
            stream.flush()
