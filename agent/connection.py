"""One launcher's connection to the agent: accept it, read the request, send the reply.

The frames (docs/develop/agent.md; packaging/launcher/launcher.c is the other end):

request   "HPN1", version, 1 if called hpn-ipam, length of environment, length of stdin; environment, stdin
answer    "T": taken, the agent may start the work; or "R": another version, so the launcher does the work itself
reply     exit code, length of stdout, length of stderr; stdout, stderr
"""

import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from base.kernel import unix_sockets
from base.protocol.spec import Reply, Request, variables

MAGIC: Final = b"HPN1"
TAKEN, REFUSED = b"T", b"R"
ENVIRONMENT_MOST: Final = 1 << 20
STDIN_MOST: Final = 4 << 20

HEADER: Final = struct.Struct("=4s16sIII")
_REPLY: Final = struct.Struct("=III")
REPLY_TIMEOUT: Final = 10.0  # seconds for a launcher to read its reply
PIECE: Final = 1 << 16  # bytes per read; most requests are shorter
_PASSED: Final = 2  # descriptors: a namespace, and a netlink socket inside it
_ROOM: Final = socket.CMSG_SPACE(4 * _PASSED)


@dataclass(frozen=True)
class Header:
    """The fixed part of a request; ``version`` is the launcher's, 16 characters."""

    version: str
    ipam: bool
    environment: int
    stdin: int

    @property
    def end(self) -> int:
        """The size of the whole request."""
        return HEADER.size + self.environment + self.stdin


def decode_header(data: bytes | bytearray) -> Header:
    """Decode a request's header.  Raises ValueError if no launcher sends such a header."""
    magic, version, ipam, environment, stdin = HEADER.unpack_from(data)
    if magic != MAGIC or ipam > 1 or environment > ENVIRONMENT_MOST or stdin > STDIN_MOST:
        raise ValueError("not a request")
    return Header(version.decode(errors="replace"), bool(ipam), environment, stdin)


def encode(answer: Reply) -> bytes:
    """Encode a reply."""
    # An interface's name may be invalid UTF-8: escape it like Python's stderr.
    log = "".join(f"{line}\n" for line in answer.log)
    out, err = answer.stdout.encode(), log.encode(errors="backslashreplace")
    return _REPLY.pack(answer.exit_code, len(out), len(err)) + out + err


@dataclass
class Connection:
    """One launcher, and the data it has sent so far.  ``process`` is its process id, 0 if it is in a PID namespace
    invisible to us.  ``watched``: the server's epoll has the socket."""

    sock: socket.socket
    process: int = 0
    since: float = field(default_factory=time.monotonic)
    data: bytearray = field(default_factory=bytearray)
    header: Header | None = None
    passed: list[int] = field(default_factory=list)
    watched: bool = False

    @classmethod
    def accept(cls, listener: socket.socket) -> Self | None:
        """Accept the next connection; None if there is none, or if it is of another user."""
        try:
            sock, _ = listener.accept()
        except OSError:
            return None
        sock.setblocking(False)  # noqa: FBT003
        process, uid = unix_sockets.peer(sock)
        if uid not in (0, os.geteuid()):
            sock.close()
            return None
        return cls(sock, process)

    @property
    def whole(self) -> Header | None:
        """The request's header, once the whole request has arrived."""
        return self.header if self.header and len(self.data) >= self.header.end else None

    def receive(self) -> Header:
        """Read until ``data`` has the whole request; return its header.

        Raises BlockingIOError, OSError, ValueError.
        """
        while not (whole := self.whole):
            # Descriptors come with the first piece.
            room = 0 if self.data else _ROOM
            data, passed, flags, _ = self.sock.recvmsg(PIECE, room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, fds in passed:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.passed += memoryview(fds)[: len(fds) & ~3].cast("i")
            if flags & socket.MSG_CTRUNC:
                # More than a launcher passes, or more than our limit of open files: it does the work itself.
                raise ValueError("descriptors were lost")
            if not data:
                raise ValueError("it broke off")
            self.data += data
            if self.header is None and len(self.data) >= HEADER.size:
                self.header = decode_header(self.data)
        return whole

    def request(self, header: Header) -> Request:
        """Decode a whole request."""
        data, stdin = bytes(self.data), HEADER.size + header.environment
        inside = (self.passed[0], self.passed[1]) if len(self.passed) == _PASSED else None
        environ = variables(data[HEADER.size : stdin])
        hung_up = partial(_has_hung_up, self.sock)
        return Request(environ, data[stdin : header.end], inside, hung_up, process=self.process)

    def send(self, answer: Reply) -> None:
        """Send the reply.  Raises OSError."""
        reply = encode(answer)
        sent = self.sock.send(reply)
        if sent < len(reply):
            self.sock.settimeout(REPLY_TIMEOUT)
            self.sock.sendall(reply[sent:])

    def close(self) -> None:
        self.sock.close()
        for fd in self.passed:
            os.close(fd)


def _has_hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)  # poll reports a hang-up without a request: man 2 poll, POLLHUP
    return bool(poll.poll(0))
