"""A device of the slices as a claim gets it: its CNI name, attributes and device nodes, and why no pod may have it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from base.protocol.spec import Json
from hardware import functions
from hardware.neighbors import Neighbor
from node.dra.claims.prepare import Found
from node.dra.slices import content
from node.dra.slices.content import Entry, Index
from node.dra.slices.publisher import Publisher
from node.health.status import Health, HealthKey
from node.model import Offer, Sharing
from node.offer import answers, needs

_ID: Final = "k8s.cni.cncf.io/deviceID"


# The state of a device: pool, name, and why it is unhealthy; empty if it is healthy.
State = tuple[str, str, str]


class Devices:
    """The devices of this node's slices, as claims get them."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._offers: tuple[Offer, ...] = ()
        self._index: Index | None = None  # of the offers, made when a claim is prepared
        self._health: Mapping[HealthKey, Health] = {}
        self._neighbors: Mapping[str, Neighbor] = {}

    def offer(self, offers: tuple[Offer, ...]) -> None:
        """Replace all offers."""
        self._offers, self._index = offers, None

    def update(self, health: Mapping[HealthKey, Health], neighbors: Mapping[str, Neighbor]) -> None:
        """Note the present health, and the switch ports of PFs by their addresses."""
        self._health, self._neighbors = health, neighbors

    def find(self, pool: str, name: str) -> Found | None:
        """A device for Prepare, with the reason why no claim may have it now; None if this node offers none of that
        name."""
        if self._index is None:
            self._index = content.index(self._offers)
        entry = content.find(self._index, pool, name)
        if not entry:
            return None
        attributes = content.attributes(entry, functions.root, self._neighbors.get(entry.device.pf))
        return _found(entry, attributes, self._problem(entry))

    def states(self) -> Iterator[State]:
        """Each device's pool and name, and why it is unhealthy; empty if it is healthy."""
        for entry in content.entries(self._publisher.node, self._offers) if self._publisher.node else ():
            yield entry.pool, entry.name, self._fault(entry, lambda health: health.reason)

    def _problem(self, entry: Entry) -> str:
        name = entry.resource.full_name
        if not any(self._publisher.is_cleared((name, unit.id)) for unit in entry.units):
            return (
                "a pod has it from the device plugin, or kubelet has not listed its pods' devices yet; it is tried "
                "again until that pod has ended"
            )
        return self._fault(entry, lambda health: health.lost)

    def _fault(self, entry: Entry, of: Callable[[Health], str]) -> str:
        """The fault that all devices of the entry have; empty if one has none."""
        is_shared = entry.resource.sharing is Sharing.SHARED
        found = [of(self._health.get(HealthKey(one.id, is_shared), Health())) for one in entry.devices]
        return found[0] if all(found) else ""


def _found(entry: Entry, attributes: Json, problem: str) -> Found:
    """The device, with the ``problem`` that is known, or another one."""
    resource = entry.resource
    granted = granted_now(entry)
    try:
        for device in entry.devices:
            answers.refuse_gone(resource, device)
        for node in granted["nodes"]:
            answers.refuse_missing(resource, node)
    except answers.AllocateRefused as e:
        problem = problem or str(e)
    chosen = attributes[_ID]["string"]
    name, memlock = resource.full_name, resource.memlock
    return Found(chosen, resource.kind, name, attributes, problem, **granted, memlock=memlock)


def granted_now(entry: Entry) -> dict[str, Any]:
    """The members ``nodes`` and ``info`` of ClaimedDevice, which change with the numbers of RDMA devices."""
    nodes = (node for device in entry.devices for node in needs.nodes(entry.resource, device, answers.ROOT))
    return {"nodes": tuple(dict.fromkeys(nodes)), "info": answers.information(entry.resource, entry.devices)}
