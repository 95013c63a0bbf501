"""Files under /proc/sys/net, which show the namespace of the thread that opens them."""

from collections.abc import Mapping
from pathlib import Path

from cni.kernel.netns import run_in

_ROOT = Path("/proc/sys/net")


def write(ns_fd: int, values: Mapping[str, str]) -> None:
    """Equivalent to: sysctl -w net.KEY=VALUE, in the namespace.  Keys are paths ("ipv4/conf/hpn0/arp_notify"),
    because an interface's name may hold a dot.  Raises OSError with the file's name."""

    def work() -> None:
        for key, value in values.items():
            (_ROOT / key).write_text(value)

    run_in(ns_fd, work)
