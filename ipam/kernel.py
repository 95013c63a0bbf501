"""What the kernel has to have for the ranges that a configuration gives from."""

import os

from cni.protocol.errors import NotAvailable
from ipam.pool import Pool


def refuse_without_ipv6(pool: Pool) -> None:
    """Raise NotAvailable where the kernel has no IPv6, which the ranges give.  Where /proc is hidden nobody knows."""
    if not os.path.exists("/proc/sys/net") or os.path.exists("/proc/sys/net/ipv6"):
        return
    if of_ipv6 := [s.key for s in pool.sets if s.ranges[0].subnet.version == 6]:
        raise NotAvailable(
            f"{', '.join(of_ipv6)}: this kernel has no IPv6 (/proc/sys/net/ipv6 is not there); boot it without "
            "ipv6.disable=1, or remove that range from ipam"
        )
