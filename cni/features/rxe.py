"""A soft-RoCE device (drivers/infiniband/sw/rxe) on the pod's interface: made after it, and removed before it.

The device carries the pod's traffic only if it listens in the pod's namespace.  An old kernel, with a soft-RoCE without
namespaces, makes the device too, but it listens in the host's.  The device needs shared mode, in which all namespaces
see it.

All devices of a namespace listen on one socket, and the kernel counts them without a lock (rxe_net_init, rxe_net_del).
So we make or remove one device at a time in a namespace.
"""

import errno
import os
import time
from pathlib import Path
from typing import Final

from base.kernel import rdma_netlink
from base.kernel.netns import run_in
from base.protocol.errors import CheckFailed, KernelRefused, LinkUnavailable, TryAgain, doing
from base.state import journal
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record

_PORT: Final = 4791  # RoCE v2
# Seconds.  A runtime ends the pod's processes just before it sends DEL, and the last of them may still be ending.
_IDLE_TIMEOUT: Final = 3.0
_POLL: Final = 0.05


def name() -> str:
    """Return a random name for the device, which identifies it, because names are unique in the whole system.  UCX
    truncates a longer one to 15 characters, and finds no such device (UCT_MD_NAME_MAX in uct.h)."""
    return f"hpn-{os.urandom(5).hex()}"


def status() -> None:
    """Raise LinkUnavailable if the kernel would keep a soft-RoCE device in the host's namespace."""
    exclusive = rdma_netlink.is_exclusive()
    if exclusive is None:
        raise LinkUnavailable(
            "rdma.mode rxe: the kernel has no RDMA; run: modprobe rdma_rxe; or boot a kernel that is built with it "
            "(CONFIG_RDMA_RXE)"
        )
    if exclusive:
        raise LinkUnavailable(
            "rdma.mode rxe: the kernel is in exclusive mode, where a soft-RoCE device stays with the host; run 'rdma "
            "system set netns shared' before there are namespaces, or set another rdma.mode"
        )


def make(entry: Entry, record: Record, pod: Pod) -> None:
    """Make the record's device on its interface.  Raises KernelRefused, TryAgain, IoFailure; LinkUnavailable if the
    kernel's soft-RoCE does not support namespaces."""
    device, ifname = record.rxe, record.key.ifname
    with journal.lock_namespace(entry.state_dir, record.identity):
        try:
            rdma_netlink.new_link("rxe", device, ifname, pod.fd)
        except OSError as e:
            remedy = "run: modprobe rdma_rxe" if e.errno == errno.EINVAL else "see: rdma link"
            raise KernelRefused(
                f"rdma.mode rxe: the kernel makes no device {device} on {ifname} ({e.strerror}); {remedy}"
            ) from e
        if not _listens(pod):
            raise LinkUnavailable(
                "rdma.mode rxe: this kernel's soft-RoCE does not listen in the pod's namespace, and would carry "
                "nothing; use a newer kernel (7.2 does), or remove rdma.mode"
            )


def check(record: Record) -> None:
    """Raise CheckFailed unless the device exists."""
    if rdma_netlink.index_of(record.rxe) is None:
        raise CheckFailed(f"RDMA device {record.rxe} is gone")


def undo(entry: Entry, record: Record) -> None:
    """Remove the device.  Raises IoFailure; TryAgain while a process has the device open, because the
    kernel would return from the removal only after that process ends.

    Do not call it while the pod's namespace is being removed.  Then the kernel removes the device, even that of a VF
    that it sends home.  If both remove it at once, Linux 7.2 frees a socket twice and can crash (syzbot
    8c9eede336e3a843750e).
    """
    with journal.lock_namespace(entry.state_dir, record.identity), doing(f"removing RDMA device {record.rxe}"):
        index = rdma_netlink.index_of(record.rxe)
        if index is None:
            return
        deadline = time.monotonic() + _IDLE_TIMEOUT
        try:
            while pids := rdma_netlink.users(index):
                if time.monotonic() > deadline:
                    users = ", ".join(map(str, pids))
                    raise TryAgain(f"RDMA device {record.rxe} is open in process {users}; end that")
                time.sleep(_POLL)
            rdma_netlink.delete_link(index)
        except OSError as e:
            if e.errno != errno.EINVAL:  # EINVAL: the device has just gone
                raise


def _listens(pod: Pod) -> bool:
    def ports() -> set[int]:
        """Return the ports in use.  The second column is the local address and port in hexadecimal
        (Documentation/networking/proc_net_tcp)."""
        tables = [Path(f"/proc/thread-self/net/{name}") for name in ("udp", "udp6")]
        lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
        return {int(line.split()[1].rpartition(":")[2], 16) for line in lines}

    return _PORT in run_in(pod.fd, ports)
