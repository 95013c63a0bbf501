"""The RDMA devices of a function: in exclusive mode they move with it, in shared mode they serve every namespace.

A device is known by its index, which stays when it moves; its name is what people see.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cni.kernel import rdma_netlink, sysfs
from cni.protocol.errors import CheckFailed, InterfaceExists, InvalidConfig, LinkUnavailable, TryAgain, doing
from cni.state.pod import Pod

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.models import Rdma

Devices = list[tuple[int, str]]  # (index, name on the host)

_TO_EXCLUSIVE: Final = "write 'options ib_core netns_mode=0' to /etc/modprobe.d/ib_core.conf and reboot"
# The kernel changes it only while there is no other namespace.
_TO_SHARED: Final = (
    "run 'rdma system set netns shared' while there are no network namespaces, or write 'options ib_core netns_mode=1' "
    "to /etc/modprobe.d/ib_core.conf and reboot"
)

_HOME_TIMEOUT: Final = 5.0
_POLL: Final = 0.02


def of_function(wanted: "Rdma", function: sysfs.Function) -> tuple[Devices, list[str]]:
    """A function's RDMA devices: those that are to move with it, and the names of all that the pod is to have.
    Raises LinkUnavailable with the remedy, InvalidConfig, TryAgain."""
    if wanted.mode in ("off", "rxe"):
        return [], []
    exclusive, names = is_exclusive(wanted), function.rdma_devs
    if wanted.required and not names:
        raise LinkUnavailable(f"rdma.required: {function.address} has no RDMA device; is its RDMA driver loaded?")
    if wanted.name and len(names) > 1:
        raise InvalidConfig(
            f"rdma.name {wanted.name!r}: {function.address} has {len(names)} RDMA devices, {', '.join(names)}, and a "
            "name is one device's; remove rdma.name"
        )
    if not exclusive:
        return [], list(names)
    found = []
    for name in names:
        index = rdma_netlink.index_of(name)
        if index is None:
            raise TryAgain(f"RDMA device {name} of {function.address} is being moved")
        found.append((index, name))
    return found, [wanted.name] if found and wanted.name else list(names)


def of_master(wanted: "Rdma", master: str, functions: list[sysfs.Function]) -> list[str]:
    """The names of the RDMA devices that interfaces made over a master share with it, those of the functions below;
    none in exclusive mode, where they are the host's alone.  Raises LinkUnavailable with the remedy."""
    names = [name for function in functions for name in function.rdma_devs]
    if wanted.mode in ("off", "rxe") or not (names or wanted.required or wanted.mode == "shared"):
        return []
    exclusive = is_exclusive(wanted)
    if wanted.required and not names:
        raise LinkUnavailable(
            f"rdma.required: no PCI function below master {master!r} has an RDMA device; is its RDMA driver loaded?"
        )
    if wanted.required and exclusive:
        raise LinkUnavailable(
            f"rdma.required: the kernel is in exclusive mode, where {', '.join(names)} of master {master!r} is the "
            f"host's alone; {_TO_SHARED}, or give the pod a VF"
        )
    return [] if exclusive else names


def is_exclusive(wanted: "Rdma") -> bool:
    """Whether the kernel is in exclusive mode.  Raises LinkUnavailable with the remedy if it is not in the one asked
    for, or has no RDMA where some is required."""
    exclusive = rdma_netlink.is_exclusive()
    if exclusive is None and (wanted.required or wanted.mode == "exclusive"):
        key = "required" if wanted.required else "mode exclusive"
        raise LinkUnavailable(f"rdma.{key}: the kernel has no RDMA; load the NIC's RDMA driver, as mlx5_ib")
    if wanted.mode == "exclusive" and not exclusive:
        raise LinkUnavailable(
            f"rdma.mode exclusive: the kernel is in shared mode; {_TO_EXCLUSIVE}, or set rdma.mode auto"
        )
    if wanted.mode == "shared" and exclusive:
        raise LinkUnavailable(f"rdma.mode shared: the kernel is in exclusive mode; {_TO_SHARED}, or set rdma.mode auto")
    if wanted.name and exclusive is False:
        raise LinkUnavailable(
            f"rdma.name {wanted.name!r}: the kernel is in shared mode, where a device's name is the host's; "
            f"{_TO_EXCLUSIVE}, or remove rdma.name"
        )
    return bool(exclusive)


def give(devices: Devices, pod: Pod) -> None:
    """Into the pod."""
    for index, name in devices:
        with doing(f"moving RDMA device {name} to {pod.path}"):
            rdma_netlink.move(index, to=pod.fd)


def rename(devices: Devices, names: list[str], pod: Pod) -> None:
    """Once they are in the pod, to the names they are to have there.  Raises InterfaceExists: names are the whole
    system's, whatever namespace a device is in."""
    for (index, was), name in zip(devices, names, strict=False):
        if name != was:
            try:
                rdma_netlink.rename(index, name, pod.fd)
            except FileExistsError as e:
                raise InterfaceExists(
                    f"rdma.name {name!r}: an RDMA device of this system has that name, in this namespace or another; "
                    "choose one that no other attachment on this host has"
                ) from e


def take(devices: Devices, pod: Pod, host_fd: int) -> None:
    """Out of the pod; those that are not in it are passed over."""
    for index, name in devices:
        if rdma_netlink.name_of(index, pod.fd):
            with doing(f"moving RDMA device {name} back from {pod.path}"):
                rdma_netlink.move(index, to=host_fd, of=pod.fd)


def check(devices: Devices, names: list[str], pod: Pod) -> None:
    """Raise CheckFailed unless all are in the pod under these names."""
    for (index, _), name in zip(devices, names, strict=False):
        now = rdma_netlink.name_of(index, pod.fd)
        if now != name:
            raise CheckFailed(f"RDMA device {name} is " + (f"called {now}" if now else "not") + f" in {pod.path}")


def settle(devices: Devices, address: str) -> None:
    """Wait until all are on the host, which a dying namespace gives them back to late, and see to their names."""
    deadline = time.monotonic() + _HOME_TIMEOUT
    for index, name in devices:
        now = _at_home(index, name, address, len(devices), deadline)
        if now and now != name:
            # Names are the whole system's: one that another device has now stays that one's.
            with suppress(FileExistsError), doing(f"renaming RDMA device {now} back to {name}"):
                rdma_netlink.rename(index, name)


def _at_home(index: int, name: str, address: str, of: int, deadline: float) -> str:
    """What one of a function's RDMA devices is called on the host, once it is there; empty if it is no more.
    Raises TryAgain."""
    elsewhere = False
    while not (now := rdma_netlink.name_of(index)):
        function = sysfs.function(address)
        if function is None or not function.driver:
            return ""  # unbound
        if len(function.rdma_devs) == of and not rdma_netlink.name_of(index):
            return ""  # bound again meanwhile: others are in their place
        elsewhere = elsewhere or sysfs.rdma_names(address) != function.rdma_devs
        if time.monotonic() > deadline:
            # While it moves a device is nowhere to be seen, but not for as long: its driver was unloaded, say.
            if not elsewhere:
                return ""
            raise TryAgain(f"RDMA device {name} of {address} has not come back yet")
        time.sleep(_POLL)
    return now
