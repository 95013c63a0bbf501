"""The RDMA devices of a PCI function: in exclusive mode they move into the pod with the function, in shared mode they
serve every namespace.

A device is identified by its index, which does not change when the device moves.  Its name is for people.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from base.kernel import rdma_netlink, sysfs
from base.protocol.errors import CheckFailed, InterfaceExists, InvalidConfig, LinkUnavailable, TryAgain, doing
from base.state import numbers
from base.state.pod import Pod

if TYPE_CHECKING:
    from cni.models import Rdma

Devices = list[tuple[int, str]]  # (index, name on the host)

_TO_EXCLUSIVE: Final = "write 'options ib_core netns_mode=0' to /etc/modprobe.d/ib_core.conf and reboot"
# The kernel changes the mode only while there is no other namespace.
_TO_SHARED: Final = (
    "run 'rdma system set netns shared' while there are no network namespaces; or write 'options ib_core netns_mode=1' "
    "to /etc/modprobe.d/ib_core.conf and reboot"
)

_HOME_TIMEOUT: Final = 5.0
_POLL: Final = 0.02


def of_function(wanted: "Rdma", function: sysfs.PciFunction) -> tuple[Devices, list[str]]:
    """Return the function's RDMA devices that move with it, and the names of all that the pod will have.  Raises
    LinkUnavailable with the remedy, InvalidConfig, TryAgain."""
    if wanted.mode in ("off", "rxe"):
        return [], []
    exclusive, names = is_exclusive(wanted), function.rdma_devs
    if wanted.required and not names:
        raise LinkUnavailable(f"rdma.required: {function.address} has no RDMA device; is its RDMA driver loaded?")
    if wanted.name and len(names) > 1:
        raise InvalidConfig(
            f"rdma.name {wanted.name!r}: {function.address} has {len(names)} RDMA devices, {', '.join(names)}, and "
            "only one can have the name; remove rdma.name"
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


def of_master(wanted: "Rdma", master: str, functions: list[sysfs.PciFunction]) -> list[str]:
    """Return the names of the RDMA devices that an interface over the master shares with it: those of the functions
    below the master.  In exclusive mode only the host has them, and the list is empty.  Raises LinkUnavailable with the
    remedy; OSError."""
    names = [name for function in functions for name in function.rdma_devs]
    if wanted.mode in ("off", "rxe") or not (names or wanted.required or wanted.mode == "shared"):
        return []
    if wanted.required and not names:
        sysfs.refuse_hidden()
    exclusive = is_exclusive(wanted)
    if wanted.required and not names:
        raise LinkUnavailable(
            f"rdma.required: no PCI function below master {master!r} has an RDMA device; is its RDMA driver loaded?"
        )
    if wanted.required and exclusive:
        raise LinkUnavailable(
            f"rdma.required: the kernel is in exclusive mode, where {', '.join(names)} of master {master!r} is only "
            f"for the host; {_TO_SHARED}; or give the pod a VF"
        )
    return [] if exclusive else names


def is_exclusive(wanted: "Rdma") -> bool:
    """Whether the kernel is in exclusive mode.  Raises LinkUnavailable with the remedy if the configuration requests
    the other mode, or requires RDMA and the kernel has none."""
    exclusive = rdma_netlink.is_exclusive()
    if exclusive is None and (wanted.required or wanted.mode == "exclusive"):
        key = "required" if wanted.required else "mode exclusive"
        raise LinkUnavailable(
            f"rdma.{key}: the kernel has no RDMA; load the NIC's RDMA driver, as by: modprobe mlx5_ib; or boot a "
            "kernel that is built with it (CONFIG_INFINIBAND)"
        )
    if wanted.mode == "exclusive" and not exclusive:
        raise LinkUnavailable(
            f"rdma.mode exclusive: the kernel is in shared mode; {_TO_EXCLUSIVE}, or set rdma.mode auto"
        )
    if wanted.mode == "shared" and exclusive:
        raise LinkUnavailable(f"rdma.mode shared: the kernel is in exclusive mode; {_TO_SHARED}; or set rdma.mode auto")
    if wanted.name and exclusive is False:
        raise LinkUnavailable(
            f"rdma.name {wanted.name!r}: the kernel is in shared mode, where a device keeps the host's name; "
            f"{_TO_EXCLUSIVE}, or remove rdma.name"
        )
    return bool(exclusive)


def give(devices: Devices, pod: Pod) -> None:
    """Move the devices into the pod."""
    for index, name in devices:
        with numbers.lock(), doing(f"moving RDMA device {name} to {pod.path}"):
            rdma_netlink.move(index, to=pod.fd)


def rename(devices: Devices, names: list[str], pod: Pod) -> None:
    """Rename the devices, which are in the pod now.  Raises InterfaceExists if a name is taken: names are unique in the
    whole system, whatever namespace a device is in."""
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
    """Move the devices that are in the pod to the host.  Rename them first if their names are free, because udev's
    rules apply to the name with which a device arrives."""
    for index, name in devices:
        if now := rdma_netlink.name_of(index, pod.fd):
            if now != name:
                with suppress(FileExistsError), doing(f"renaming RDMA device {now} back to {name} in {pod.path}"):
                    rdma_netlink.rename(index, name, pod.fd)
            with numbers.lock_for_a_moment(), doing(f"moving RDMA device {name} back from {pod.path}"):
                rdma_netlink.move(index, to=host_fd, of=pod.fd)


def check(devices: Devices, names: list[str], pod: Pod) -> None:
    """Raise CheckFailed unless all devices are in the pod under these names."""
    for (index, _), name in zip(devices, names, strict=False):
        now = rdma_netlink.name_of(index, pod.fd)
        if now != name:
            raise CheckFailed(f"RDMA device {name} is " + (f"called {now}" if now else "not") + f" in {pod.path}")


def settle(devices: Devices, address: str) -> None:
    """Wait until all devices are on the host, and restore their names.  A dying namespace gives devices back late."""
    deadline = time.monotonic() + _HOME_TIMEOUT
    for index, name in devices:
        now = _wait_until_home(index, name, address, len(devices), deadline)
        if now and now != name:
            # Names are unique in the whole system.  If another device has the name now, it keeps it.
            with suppress(FileExistsError), doing(f"renaming RDMA device {now} back to {name}"):
                rdma_netlink.rename(index, name)


def _wait_until_home(index: int, name: str, address: str, of: int, deadline: float) -> str:
    """Wait until one of a function's RDMA devices is on the host, and return its name there; empty if the device no
    longer exists.  Raises TryAgain."""
    elsewhere = False
    while not (now := rdma_netlink.name_of(index)):
        function = sysfs.device(address)
        if function is None or not function.driver:
            return ""  # unbound
        if len(function.rdma_devs) == of and not rdma_netlink.name_of(index):
            return ""  # the driver was bound again meanwhile, and made other devices
        elsewhere = elsewhere or sysfs.rdma_names(address) != function.rdma_devs
        if time.monotonic() > deadline:
            # A moving device is in no namespace only briefly.  So this one is gone, for example with its driver.
            if not elsewhere:
                return ""
            raise TryAgain(f"RDMA device {name} of {address} has not come back yet")
        time.sleep(_POLL)
    return now
