"""The source of one device plugin's answers."""

from collections.abc import Mapping, Sequence

from hardware.model import Device
from node.health.status import Health, HealthKey
from node.kubelet.allocations import Allocations
from node.model import Grant, Offer, Sharing, Unit, devices_of
from node.offer import answers, preferred

# A unit as kubelet sees it: ID, whether it is healthy, NUMA nodes.
State = tuple[str, bool, tuple[int, ...]]


class Served:
    """The source of one plugin's answers: an offer, and its units' health."""

    def __init__(self, offer: Offer, allocations: Allocations | None = None) -> None:
        """``allocations`` notes the granted ones."""
        self.offer, self._allocations = offer, allocations
        self._states = tuple[State, ...]()

    def units(self) -> Sequence[State]:
        """The state of each unit, with NUMA nodes if kubelet should learn them."""
        return self._states

    def grant(self, ids: Sequence[str]) -> Grant:
        """What a container gets for the IDs.  Raises answers.AllocateRefused."""
        granted = answers.grant(self.offer, ids)
        if self._allocations:
            self._allocations.note(self.offer.resource.full_name, ids)
        return granted

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred IDs among the available ones; none for no advice."""
        return preferred.choose(self.offer, available, must, size)

    @property
    def devices(self) -> Mapping[HealthKey, Device]:
        """The offer's devices, each once."""
        return {self._key(device): device for device in devices_of(self.offer.units)}

    def update(self, health: Mapping[HealthKey, Health]) -> bool:
        """Set the units' states from the devices' health; return whether any changed."""
        before = self._states
        # One unit per tuple of devices, because very many units may share one.
        unlike = {id(unit.devices): unit for unit in self.offer.units}
        states = {key: self._state(unit, health) for key, unit in unlike.items()}
        self._states = tuple((unit.id, *states[id(unit.devices)]) for unit in self.offer.units)
        return self._states != before

    def _state(self, unit: Unit, health: Mapping[HealthKey, Health]) -> tuple[bool, tuple[int, ...]]:
        # One healthy device is enough for an ID that stands for all devices of the resource.
        is_healthy = any(not health[self._key(device)].reason for device in unit.devices)
        return is_healthy, tuple(sorted(unit.numa)) if self.offer.resource.topology else ()

    def _key(self, device: Device) -> HealthKey:
        return HealthKey(device.id, self.offer.resource.sharing is Sharing.SHARED)
