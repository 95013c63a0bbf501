"""Messages of the guest's kernel while the tests run (/dev/kmsg, Documentation/ABI/testing/dev-kmsg)."""

import os
import re
import time
from collections.abc import Iterator
from typing import Self

WARNING = 4  # lower levels are worse
# Messages of drivers about actions of the tests, and of the kernel about a slow, emulated machine.  They include no
# BUG, no WARN with its trace, no hung task and no device that is never released.  The first message reports a move onto
# a name that is taken; kinds/device.py handles that error.  The second reports a full GID table, which a test makes.
HARMLESS = re.compile(
    r"A link change request failed with some changes committed already\."
    r"|__ib_cache_gid_add: unable to add gid \S+ error=-28"
    # ib_ipoib, about a person's settings, and about its files in debugfs, which ignore namespaces.
    r"|\S+: (enabling connected mode|mtu > \d+) will cause multicast packet drops"
    r"|\S+: ignoring multicast groups joined directly by userspace"
    r"|debugfs: File '\S+' in directory 'ipoib' already present!"
    # igb returns multicast to its sender, including the kernel's announcement of an address after duplicate detection.
    # Many attachments cause more of these messages than the kernel logs in five seconds.
    r"|ICMPv6: NA: \S+ advertised our address f[de]\S+ on \S+!|net_ratelimit: \d+ callbacks suppressed"
    # A soft-RoCE device whose interface has just disappeared with its namespace.
    r"|infiniband hpn-\S+: ib_query_port failed \(-19\)|hpn-\S+: rxe_query_port: returned err = -19"
    # A process may not lock as much memory as it registers.
    r"|memlock0: pd#\d+ rxe_reg_user_mr: returned err = -12"
    # The device answers a repeated packet with an error.  Packets repeat after the emulated processor stood still, and
    # netns-fixtures/verbs.py repeats the whole transfer.
    r"|hpn-\S+: qp#\d+ make_send_cqe: non-flush error status = \d+"
    r"|igb 0000:\S+ VF \d+ attempted to (override administratively set|set invalid) "
    r"|igb 0000:\S+ VF \d+ requested MAC filter but is administratively denied"
    r"|clocksource: |TSC found unstable after boot|sched_clock: Marking unstable"
    r"|hrtimer: interrupt took|workqueue: \S+ hogged CPU|perf: interrupt took"
    r"|igbvf 0000:\S+ (\S+: )?(Vlan id \d+|Failed to remove vlan id|failed to kill vid|Failed to add vlan id)"
)
# A WARN is one complaint from its first line to its last, and one of these is harmless.
#
# igbvf_close warns that the driver's reset is under way (igbvf_reset_task).  That task does not hold the RTNL lock, and
# igbvf_close does not wait for it.  The driver starts it when packets remain as the link goes down, or when the PF was
# reset.  So no caller can know that it must not close or move a VF now; a move also closes it.  Both call igbvf_down,
# where napi_disable makes one of them wait.
#
# rxe_sched_task warns that its QP has ended.  A queue discipline may hold a packet longer than its QP lives, and the
# packet's destructor wakes the QP's task (rxe_skb_tx_dtor).  A program that is killed ends its QP so early.
HARMLESS_WARN = re.compile(
    r"WARNING: (?=.*drivers/net/ethernet/intel/igbvf/netdev\.c:\d+).*\bigbvf_close\+0x"
    r"|WARNING: (?=.*drivers/infiniband/sw/rxe/rxe_task\.c:\d+).*\brxe_sched_task\+0x"
)
_BEGINS, _ENDS = "------------[ cut here ]------------", "---[ end trace "


class Complaints:
    """Turn messages, each a level and a text, into complaints."""

    def __init__(self) -> None:
        self._warn = list[str]()

    @property
    def unfinished(self) -> bool:
        """Whether a WARN has begun and not ended."""
        return bool(self._warn)

    def of(self, level: int, text: str) -> Iterator[str]:
        """The complaints that this message completes."""
        if text.startswith(_BEGINS):
            yield from self.end()
            self._warn = [text]
        elif self._warn:
            self._warn.append(text)
            if text.startswith(_ENDS):
                yield from self.end()
        elif level <= WARNING and not HARMLESS.match(text):
            yield text

    def end(self) -> Iterator[str]:
        """The complaints that remain after the last message."""
        warn, self._warn = self._warn, []
        if warn and not (warn[-1].startswith(_ENDS) and HARMLESS_WARN.match(warn[1])):
            yield "\n".join(warn)


class KernelLog:
    """Every message from now on, once."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._fd, 0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def complaints(self) -> list[str]:
        """The warnings and worse since the last call, except harmless ones."""
        found, complaints, deadline = list[str](), Complaints(), time.monotonic() + 60
        while True:
            try:
                record = os.read(self._fd, 8192).decode(errors="replace")
            except BlockingIOError:
                if not complaints.unfinished or time.monotonic() > deadline:
                    return [*found, *complaints.end()]
                # time: the pace of a loop with a deadline
                time.sleep(0.01)
                continue
            except BrokenPipeError:
                found.append("messages were lost: the log was full before it was read")
                continue
            prefix, _, text = record.partition(";")
            found += complaints.of(int(prefix.split(",")[0]) % 8, text.strip())
