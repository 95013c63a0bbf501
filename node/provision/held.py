"""VFs that are not offered yet: their PF is being made ready, and a pod could take one that is not as the file asks."""

from collections.abc import Collection

from cni.kernel import sysfs
from node.model import Device, Kind


class Held:
    """Which VFs wait until the process that does it has ended."""

    def __init__(self) -> None:
        self._offered = frozenset[int]()
        self.some = False
        """Whether there were any at the last look."""

    def pass_all(self) -> None:
        """Hold back none of those that are there now.  Pods may have them, and kubelet would take them for gone."""
        there = sysfs.names(f"{sysfs.SYS}/bus/pci/devices")
        self._offered = frozenset(sysfs.incarnation(address) for address in there)

    def without(self, devices: tuple[Device, ...], busy: Collection[str]) -> tuple[Device, ...]:
        """The devices but for VFs that have come since PFs are ``busy``, by address.  A VF that was let through before
        is not held back."""
        vfs = {device.id: sysfs.incarnation(device.id) for device in devices if device.kind is Kind.VF}
        # guard below: offered-before (_offered), of-that-pf (busy)
        held = {d.id for d in devices if d.id in vfs and d.pf in busy and vfs[d.id] not in self._offered}
        self.some = bool(held)
        self._offered = frozenset(number for address, number in vfs.items() if address not in held)
        return tuple(device for device in devices if device.id not in held)
