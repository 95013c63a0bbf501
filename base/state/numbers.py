"""The numbers of RDMA devices in /dev/infiniband (uverbs, umad, issm): one process changes them at a time, and a pod's
promised ones are kept.

A device that moves to another namespace, or is bound to its driver again, frees its numbers and takes the lowest free
ones (ib_uverbs_add_one, ib_umad_init_port).  So two devices that move at once may swap numbers, and one that moves
while a lower number is free gets that.  A container's device nodes are chosen earlier: kubelet calls Allocate before
ADD, and never again for that pod.

    /run/hpn/locks/rdma-numbers    held while numbers change
    /run/hpn/rdma/<device>         the device nodes that a pod was promised and does not have
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from base.protocol import location
from base.protocol.errors import CniError, IoFailure, TryAgain
from base.state import durable
from base.state.locks import SHARED, Lock

# Seconds.
_MOMENT: Final = 5.0


def lock(timeout: float = SHARED) -> Lock:
    """Lock the changing of numbers.  Take it inside all other locks, and only for a device's own move or binding.
    Raises TryAgain, IoFailure."""
    path = f"{location.state_dir()}/locks/rdma-numbers"
    try:
        return durable.with_directory(path, lambda: Lock(path, timeout))
    except OSError as e:
        raise IoFailure(f"locking {path}: {e.strerror}; {location.state_dir()} must be writable") from e


@contextmanager
def lock_for_a_moment() -> Iterator[None]:
    """The same for a returning device: go on without the lock if another device's driver hangs, because a pod must be
    deletable.  Raises IoFailure."""
    with ExitStack() as held:
        with suppress(TryAgain):
            held.enter_context(lock(_MOMENT))
        yield


def promised(device: str, pod: str, place: str = "") -> tuple[str, ...]:
    """The nodes that ``promise`` kept of the device for the pod with that UID; empty if none.  hpn doctor passes
    ``place``."""
    with suppress(CniError, KeyError, TypeError):  # an unreadable file promises nothing
        kept = durable.read(_file(device, place))
        if kept and pod and kept["pod"] == pod:
            return tuple(kept["nodes"])
    return ()


def promise(device: str, pod: str, nodes: Sequence[str]) -> None:
    """Keep the nodes that the pod was promised, for its next ADD: by then the device has lost its earlier numbers.
    Raises IoFailure."""
    if pod:
        durable.write(_file(device), {"pod": pod, "nodes": list(nodes)})


def _file(device: str, place: str = "") -> str:
    return f"{place or location.state_dir()}/rdma/{device}"
