"""A listening socket on the loop, and what its connections have sent."""

import socket
from collections.abc import Callable
from typing import Final

from node.loop import Alarm, Loop

PAUSE: Final = 1.0  # seconds without newcomers when there are no descriptors for them
_PIECE: Final = 1 << 14  # bytes read at once: other peers get their turn after these


class Listener:
    """Lets newcomers in until ``close``.

    ``accepted`` is given the socket of each, which does not block.  ``refused`` is told why there was no descriptor for
    one.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, accepted: Callable[[socket.socket], None],
        refused: Callable[[OSError], None],
    ) -> None:  # fmt: skip
        sock.setblocking(False)  # noqa: FBT003
        self._loop, self._sock, self._accepted, self._refused = loop, sock, accepted, refused
        self._pause: Alarm | None = None
        self._watch()

    def close(self) -> None:
        """Close the socket.  What leads to it is the caller's to remove."""
        if self._pause:
            self._pause.cancel()
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()

    def rest(self, seconds: float) -> None:
        """Let nobody in for so long; newcomers stay in the kernel's queue."""
        if self._pause:
            self._pause.cancel()
        self._loop.unwatch(self._sock.fileno())  # guard: pause
        self._pause = self._loop.after(seconds, self._watch)

    def _watch(self) -> None:
        self._loop.watch(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:
            # The newcomer stays in the queue, so the listener stays readable.
            self.rest(PAUSE)
            self._refused(e)
            return
        sock.setblocking(False)  # noqa: FBT003
        self._accepted(sock)


def receive(sock: socket.socket) -> bytes | None:
    """What a socket that does not block has for us: None if nothing, no bytes if the peer has ended or is gone."""
    try:
        return sock.recv(_PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
