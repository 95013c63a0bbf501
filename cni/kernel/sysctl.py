"""Files under /proc/sys/net, which show the namespace of the thread that opens them."""

import os
from collections.abc import Iterable, Mapping

from cni.kernel.netns import run_in

_ROOT = "/proc/sys/net/"
_SWAPPED = str.maketrans("./", "/.")


def path(key: str) -> str:
    """The path below /proc/sys/net of a name as sysctl(8) takes it: the first separator in it says which of dot and
    slash separates, and the other one stands for a dot in a part.  Raises ValueError for what is not below net."""
    first = next((c for c in key if c in "./"), "")
    parts = (key.translate(_SWAPPED) if first == "." else key).split("/")
    if parts[0] != "net" or len(parts) < 2 or not key.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError("is no sysctl of the network; write net.ipv4.conf.IFNAME.rp_filter or net.core.somaxconn")
    return "/".join(parts[1:])


def name(path: str) -> str:
    """``path``'s inverse, with dots."""
    return "net." + path.translate(_SWAPPED)


def write(ns_fd: int, values: Mapping[str, str]) -> None:
    """Equivalent to: sysctl -w net.KEY=VALUE, in the namespace.  Keys are paths ("ipv4/conf/hpn0/arp_notify"),
    because an interface's name may hold a dot.  Raises OSError with the file's name."""

    def work() -> None:
        for key, value in values.items():
            path = _ROOT + key
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, f"{value}\n".encode())  # with the line's end also an empty value is one
            except OSError as e:
                raise OSError(e.errno, f"{e.strerror} (writing {value!r})", path) from e
            finally:
                os.close(fd)

    run_in(ns_fd, work)


def read(ns_fd: int, key: str) -> str:
    """Equivalent to: sysctl -n net.KEY, each white space as one space.  Raises OSError with the file's name."""
    return read_all(ns_fd, [key])[key]


def read_all(ns_fd: int, keys: Iterable[str], *, writable: bool = False) -> dict[str, str]:
    """``read`` of each, the namespace entered once.  Raises OSError with the file's name, also, if that is asked for,
    where it could not be written."""

    def one(key: str) -> str:
        fd = os.open(_ROOT + key, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return " ".join(os.read(fd, 65536).decode(errors="replace").split())
        except OSError as e:
            raise OSError(e.errno, e.strerror, _ROOT + key) from e
        finally:
            os.close(fd)

    return run_in(ns_fd, lambda: {key: one(key) for key in keys})


def path_of(file: str) -> str:
    """The path of a file's name."""
    return file.removeprefix(_ROOT)
