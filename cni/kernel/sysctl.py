"""Files under /proc/sys/net, which show the namespace of the thread that opens them."""

import os
from collections.abc import Mapping

from cni.kernel.netns import run_in

_ROOT = "/proc/sys/net/"


def write(ns_fd: int, values: Mapping[str, str]) -> None:
    """Equivalent to: sysctl -w net.KEY=VALUE, in the namespace.  Keys are paths ("ipv4/conf/hpn0/arp_notify"),
    because an interface's name may hold a dot.  Raises OSError with the file's name."""

    def work() -> None:
        for key, value in values.items():
            path = _ROOT + key
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            except OSError as e:
                raise OSError(e.errno, e.strerror, path) from e
            finally:
                os.close(fd)

    run_in(ns_fd, work)
