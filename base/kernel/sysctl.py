"""Files under /proc/sys/net, which show the namespace of the thread that opens them."""

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Final

from base.kernel import files
from base.kernel.netns import run_in

_ROOT = "/proc/sys/net/"
# A file of every network namespace and of every interface.
_ANY: Final = f"{_ROOT}ipv4/conf/lo/arp_notify"
_HIDDEN: Final = {
    errno.ENOENT: "/proc/sys/net shows nothing: no procfs is mounted on /proc, or something hides it; run: "
    "mount -t proc proc /proc",
    errno.EROFS: "/proc/sys is mounted read-only, and the sysctls of a pod's interface are written there; run: "
    "mount -o remount,bind,rw /proc/sys; or let hpn's container, or unit, write it (privileged, "
    "ProtectKernelTunables=no)",
}
_SWAPPED = str.maketrans("./", "/.")


def path(key: str) -> str:
    """The path below /proc/sys/net of a name such as "net.ipv4.conf.eth0/1.rp_filter" (man 8 sysctl).

    The first dot or slash in the name decides the separator; the other one stands for a dot inside a part.  Raises
    ValueError for a name that is not below net.
    """
    first = next((c for c in key if c in "./"), "")
    parts = (key.translate(_SWAPPED) if first == "." else key).split("/")
    if parts[0] != "net" or len(parts) < 2 or not key.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError("is not a sysctl of the network; write net.ipv4.conf.IFNAME.rp_filter or net.core.somaxconn")
    return "/".join(parts[1:])


def name(path: str) -> str:
    """``path``'s inverse, with dots as separators."""
    return "net." + path.translate(_SWAPPED)


def refuse_hidden() -> None:
    """Raise OSError if the files of /proc/sys/net are missing, or are read-only for all processes."""
    try:
        os.close(os.open(_ANY, os.O_WRONLY))
    except OSError as e:
        if e.errno in _HIDDEN:
            raise OSError(e.errno, _HIDDEN[e.errno]) from e


def write(ns_fd: int, values: Mapping[str, str]) -> None:
    """Equivalent to: sysctl -w net.KEY=VALUE, in the namespace.  Raises OSError with the file's name.  Keys are paths
    ("ipv4/conf/hpn0/arp_notify"), because an interface's name may contain a dot."""

    def work() -> None:
        for key, value in values.items():
            files.write_value(_ROOT + key, value)

    run_in(ns_fd, work)


def exchange(ns_fd: int, values: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """``write`` the values; key -> the old value, and the new one as the kernel shows it.  If one of the keys cannot be
    read, nothing is written.  Raises OSError with the file's name."""

    def work() -> dict[str, tuple[str, str]]:
        before = {key: _read(key) for key in values}
        for key, value in values.items():
            files.write_value(_ROOT + key, value)
        return {key: (before[key], _read(key)) for key in values}

    return run_in(ns_fd, work)


def put_back(ns_fd: int, exchanged: Mapping[str, tuple[str, str]]) -> None:
    """Restore the values before ``exchange``, except those changed meanwhile.  Raises OSError with the file's name."""

    def work() -> None:
        for key, (before, new) in exchanged.items():
            if _read(key) == new:
                files.write_value(_ROOT + key, before)

    run_in(ns_fd, work)


def read(ns_fd: int, key: str) -> str:
    """Equivalent to: sysctl -n net.KEY, in the namespace.  Raises OSError with the file's name.  Each run of white
    space becomes one space."""
    return read_all(ns_fd, [key])[key]


def read_all(ns_fd: int, keys: Iterable[str], *, writable: bool = False) -> dict[str, str]:
    """``read`` all keys, entering the namespace once: key -> value.  Raises OSError with the file's name.  With
    ``writable``, it also raises OSError for a file that cannot be written."""
    return run_in(ns_fd, lambda: {key: _read(key, os.O_RDWR if writable else os.O_RDONLY) for key in keys})


def path_of(file: str) -> str:
    """The path (see ``path``) of a file's full name."""
    return file.removeprefix(_ROOT)


def _read(key: str, mode: int = os.O_RDONLY) -> str:
    fd = os.open(_ROOT + key, mode)
    try:
        return " ".join(os.read(fd, 65536).decode(errors="replace").split())
    except OSError as e:
        raise OSError(e.errno, e.strerror, _ROOT + key) from e
    finally:
        os.close(fd)
