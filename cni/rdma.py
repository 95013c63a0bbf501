"""The RDMA devices of a function: in exclusive mode they move with it, in shared mode they serve every namespace.

A device is known by its index, which stays when it moves; its name is what people see.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cni.errors import CheckFailed, LinkUnavailable, TryAgain, doing
from cni.kernel import rdma_netlink, sysfs
from cni.pod import Pod

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.config import Rdma

Devices = list[tuple[int, str]]  # (index, name on the host)

_HOME_TIMEOUT: Final = 5.0
_POLL: Final = 0.02


def to_move(wanted: "Rdma", function: sysfs.Function) -> Devices:
    """The function's RDMA devices, if they are to go with it.  Raises LinkUnavailable with the remedy, TryAgain."""
    mode = wanted.mode
    if mode in ("off", "rxe"):
        return []
    exclusive = rdma_netlink.is_exclusive()
    if mode == "exclusive" and not exclusive:
        raise LinkUnavailable(
            "rdma.mode exclusive: the kernel is in shared mode; write 'options ib_core netns_mode=0' to "
            "/etc/modprobe.d/ib_core.conf and reboot, or set rdma.mode auto"
        )
    if mode == "shared" and exclusive:
        raise LinkUnavailable(
            "rdma.mode shared: the kernel is in exclusive mode; run 'rdma system set netns shared' before there are "
            "namespaces, or set rdma.mode auto"
        )
    if wanted.required and not function.rdma_devs:
        raise LinkUnavailable(f"rdma.required: {function.address} has no RDMA device; is its RDMA driver loaded?")
    if not exclusive:
        return []
    found = []
    for name in function.rdma_devs:
        index = rdma_netlink.index_of(name)
        if index is None:
            raise TryAgain(f"RDMA device {name} of {function.address} is being moved")
        found.append((index, name))
    return found


def give(devices: Devices, pod: Pod) -> None:
    """Into the pod."""
    for index, name in devices:
        with doing(f"moving RDMA device {name} to {pod.path}"):
            rdma_netlink.move(index, to=pod.fd)


def take(devices: Devices, pod: Pod, host_fd: int) -> None:
    """Out of the pod; those that are not in it are passed over."""
    for index, name in devices:
        if rdma_netlink.name_of(index, pod.fd):
            with doing(f"moving RDMA device {name} back from {pod.path}"):
                rdma_netlink.move(index, to=host_fd, of=pod.fd)


def check(devices: Devices, pod: Pod) -> None:
    """Raise CheckFailed unless all are in the pod."""
    for index, name in devices:
        if not rdma_netlink.name_of(index, pod.fd):
            raise CheckFailed(f"RDMA device {name} is not in {pod.path}")


def settle(devices: Devices, address: str) -> None:
    """Wait until all are on the host, which a dying namespace gives them back to late, and see to their names."""
    deadline = time.monotonic() + _HOME_TIMEOUT
    for index, name in devices:
        while not (now := rdma_netlink.name_of(index)):
            function = sysfs.function(address)
            if function is None or not function.driver:
                return  # unbound: they are no more
            if time.monotonic() > deadline:
                raise TryAgain(f"RDMA device {name} of {address} has not come back yet")
            time.sleep(_POLL)
        if now != name:
            # Names are the whole system's: one that another device has now stays that one's.
            with suppress(FileExistsError), doing(f"renaming RDMA device {now} back to {name}"):
                rdma_netlink.rename(index, name)
