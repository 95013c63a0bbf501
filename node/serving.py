"""One resource as kubelet sees it: its units, and which of them are healthy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node import answers, preferred
from node.health import Health
from node.model import Device, Grant, Offer, Sharing, Unit, devices_of

# A unit as kubelet is told of it: ID, whether it is healthy, NUMA nodes.
Told = tuple[str, bool, tuple[int, ...]]


@dataclass(frozen=True)
class Judged:
    """A device as a resource has it: a shared one has to be up, another one may be down in a pod."""

    id: str
    shared: bool


class Served:
    """The source of what one resource's plugin tells kubelet."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._told = tuple[Told, ...]()

    def units(self) -> Sequence[Told]:
        """Each unit's ID, whether it is healthy, and its NUMA nodes where kubelet is to know them."""
        return self._told

    def grant(self, ids: Sequence[str]) -> Grant:
        """What a container gets for the IDs.  Raises answers.Refused."""
        return answers.grant(self.offer, ids)

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Which of the available IDs to give."""
        return preferred.choose(self.offer, available, must, size)

    @property
    def judged(self) -> set[Judged]:
        """Its devices, as they are judged."""
        return set(self.devices)

    @property
    def devices(self) -> Mapping[Judged, Device]:
        """Its devices, each once."""
        return {self._judged(device): device for device in devices_of(self.offer.units)}

    def update(self, health: Mapping[Judged, Health]) -> bool:
        """Take over what the devices' health is; whether kubelet is to be told something new."""
        before = self._told
        # One of each tuple of devices: there may be very many of one.
        unlike = {id(unit.devices): unit for unit in self.offer.units}
        told = {key: self._tell(unit, health) for key, unit in unlike.items()}
        self._told = tuple((unit.id, *told[id(unit.devices)]) for unit in self.offer.units)
        return self._told != before

    def _tell(self, unit: Unit, health: Mapping[Judged, Health]) -> tuple[bool, tuple[int, ...]]:
        # One device is enough where an ID stands for all of the resource.
        is_healthy = any(not health[self._judged(device)].reason for device in unit.devices)
        return is_healthy, tuple(sorted(unit.numa)) if self.offer.resource.topology else ()

    def _judged(self, device: Device) -> Judged:
        return Judged(device.id, self.offer.resource.sharing is Sharing.SHARED)
