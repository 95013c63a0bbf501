"""All resources as kubelet sees them: units and their health, plugins, and sockets in kubelet's directory."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware.model import Device
from node.health.status import Health
from node.kubelet.directory import AGAIN, Directory, Taken
from node.kubelet.plugin import Plugin
from node.log import Topics, cause, say
from node.model import Grant, Offer, Sharing, Unit, devices_of
from node.offer import answers, preferred

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


class Registry:
    """A plugin for each resource that is offered; ``served`` has what each of them tells kubelet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Directory, topics: Topics) -> None:
        self._loop, self._directory, self._topics = loop, directory, topics
        self.served = dict[str, Served]()
        self._plugins = dict[str, Plugin]()
        self._open = set[str]()

    def offer(self, name: str, offer: Offer) -> None:
        """Offer the resource, in the place of what was offered of it; kubelet hears of it by ``tell``."""
        if name in self.served:
            self.served[name].offer = offer
            return
        self.served[name] = served = Served(offer)
        self._plugins[name] = Plugin(name, self._directory.socket(name), self._loop, served, say)

    def remove(self, name: str) -> None:
        """Offer the resource no more; kubelet knows at once."""
        del self.served[name]
        self._open.discard(name)
        self._topics.forget(f"socket {name}")
        self._plugins.pop(name).close()

    def tell(self, health: Mapping[Judged, Health]) -> None:
        """Tell kubelet what is new of the resources, now that their devices' health is this."""
        for name, served in self.served.items():
            if served.update(health):
                self._plugins[name].changed()

    def open(self) -> bool:
        """Have a socket for each resource in kubelet's directory, if that is there; False if that has to be tried
        again after AGAIN seconds."""
        path = self._directory.path
        try:
            if not self._directory.claim():
                self._topics.problem(
                    "kubelet", f"{path} is not there, so no kubelet has run here; it will be seen when it is"
                )
                return True
        except (Taken, OSError) as e:
            self._topics.problem("kubelet", f"{e}" if isinstance(e, Taken) else _cannot_write(path, e))
            return False
        self._topics.solved("kubelet")
        failed = [name for name, plugin in self._plugins.items() if not self._open_one(name, plugin)]
        return not failed

    def close(self) -> None:
        """Remove all sockets, so that kubelet knows at once."""
        for plugin in self._plugins.values():
            plugin.close()

    def _open_one(self, name: str, plugin: Plugin) -> bool:
        path = self._directory.socket(name)
        if name in self._open and path.is_socket():
            return True
        if name in self._open:
            plugin.close()
        try:
            plugin.open()
        except OSError as e:
            self._open.discard(name)
            self._topics.problem(f"socket {name}", f"{name}: {_cannot_write(path, e)}")
            return False
        self._open.add(name)
        self._topics.say_new(f"socket {name}", f"serves {name} at {path}")
        return True


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"{path}: {cause(error)}; kubelet hears of nothing until it can be written, which is tried every "
        f"{AGAIN:g} s: make room, or mount it for writing (in a DaemonSet without readOnly)"
    )
