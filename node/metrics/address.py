"""The address of metrics, "unix:/run/hpn/metrics.sock" or "127.0.0.1:9617", and its socket."""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from base.state import durable
from node.kubelet import sockets

_LONGEST: Final = 100  # a socket's path has at most 107 bytes (man 7 unix), and its first name is longer
_BACKLOG: Final = 16
# Errors of a connect to a used socket: its queue is full, or it is for datagrams (man 2 connect, man 7 unix).
_USED: Final = (errno.EAGAIN, errno.EPROTOTYPE)
_WRITE: Final = "write unix:/run/hpn/metrics.sock, 127.0.0.1:9617 or [::1]:9617"


@dataclass(frozen=True)
class Address:
    """Either a path, or a loopback address and a port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"http://{host}:{self.port}/metrics"

    def listen(self) -> socket.socket:
        """A listening socket at the address.  Raises OSError; IoFailure or InvalidConfig for an unusable path."""
        if self.path:
            durable.directory(Path(self.path).parent)
            _refuse_unless_free(Path(self.path))
            return sockets.bind(Path(self.path))
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        except OSError as e:  # whose text names the address, as the caller does
            raise OSError(e.errno, os.strerror(e.errno or 0)) from e


def parse(text: str) -> Address:
    """Parse an address.  Raises ValueError with the remedy."""
    if text.startswith("unix:"):
        return Address(path=_path(text.removeprefix("unix:")))
    host, _, port = text.rpartition(":")
    try:
        at = _ip(host)
    except ValueError:
        raise ValueError(f"{text!r} is not an address and port; {_WRITE}") from None
    if not at.is_loopback:
        raise ValueError(
            f"{at} is not a loopback address, so that others could read the node's metrics; {_WRITE}, and publish that "
            "by a proxy (docs/user/metrics.md)"
        )
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"port {port!r} is not a number from 1 to 65535; {_WRITE}")
    return Address(host=str(at), port=int(port))


def _path(path: str) -> str:
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise ValueError(f"{path!r} is not an absolute path of a socket; {_WRITE}")
    if len(os.fsencode(path)) > _LONGEST:
        raise ValueError(f"{path!r} is longer than {_LONGEST} bytes (a socket's path has at most 107); {_WRITE}")
    return path


def _ip(host: str) -> IPv4Address | IPv6Address:
    if host.startswith("[") and host.endswith("]"):
        return IPv6Address(host[1:-1])
    return IPv4Address("127.0.0.1" if host == "localhost" else host)


def _refuse_unless_free(path: Path) -> None:
    """Raise Unusable if the path has a file other than a socket without a listener.  Raises OSError."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise sockets.Unusable(errno.EEXIST, f"{path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as e:
            if e.errno not in _USED:
                raise
    raise sockets.Unusable(errno.EEXIST, f"another process listens at {path}; choose another path")
