"""The preferred units of a container (GetPreferredAllocation); pure.

docs/develop/node.md has the order of preference and its reasons.  Nothing here raises an error, because kubelet would
fail the container.  A pod's author chooses the number of units, and other calls wait meanwhile: so no step here reads
every unit for every choice.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice

from hardware.model import Device, Kind
from node.model import Offer, Sharing, Unit

# Devices of one PF that differ only in their order and in the units that this container has of them.  The parts: true
# for whole PFs, which come last; the PF's address; true on another NUMA node than the container's other devices.
_Group = tuple[bool, str, bool]
# A device: the number of its units that this container has, its next unit's place in the offer, and its id.
_Next = tuple[int, int, str]


def choose(offer: Offer, available: Iterable[str], must: Iterable[str], size: int) -> tuple[str, ...]:
    """``size`` IDs of ``available``, those of ``must`` first; () for no advice.

    The result depends on the arguments only.
    """
    units = {unit.id: unit for unit in offer.units}
    free, taken = units.keys() & set(available), dict.fromkeys(must)
    if not len(taken) <= size <= len(free) or not free.issuperset(taken):
        return ()
    others: Iterator[str] = (one for one in units if one in free and one not in taken)
    if not offer.resource.pooled:
        others = _Choice(offer, free, [units[one] for one in taken], size).others()
    return (*taken, *islice(others, size - len(taken)))


class _Choice:
    """The choice for one container, in a resource with one device per unit."""

    def __init__(self, offer: Offer, free: Set[str], taken: Sequence[Unit], size: int) -> None:
        self._units = offer.units
        self._exclusive = offer.resource.sharing is Sharing.EXCLUSIVE
        devices = {unit.devices[0].id: unit.devices[0] for unit in offer.units}
        used, left = Counter[str](), defaultdict[str, deque[int]](deque)
        given = {unit.id for unit in taken}
        for order, unit in enumerate(offer.units):
            if unit.id not in free:
                used[unit.devices[0].id] += 1
            elif unit.id not in given:
                left[unit.devices[0].id].append(order)
        had = Counter(unit.devices[0].id for unit in taken)
        self._left = left
        self._in_use = _by_pf(devices, used)
        self._of_pf = _by_pf(devices, had)
        home = frozenset[int]().union(*(unit.numa for unit in taken))
        self._home = home or _roomiest([(devices[one], len(orders)) for one, orders in left.items()], size)
        self._groups = defaultdict[_Group, list[_Next]](list)
        for one, orders in left.items():
            self._groups[self._group(devices[one])].append((had[one], orders.popleft(), one))

    def others(self) -> Iterator[str]:
        """The IDs of the units after those in ``taken``, the best first."""
        for nexts in self._groups.values():
            heapq.heapify(nexts)
        # A choice can only lower a group's rank.  So the heap's first group is the best one if its rank has not changed
        # since it was pushed.
        heap = [(self._place(group), group) for group in self._groups]
        heapq.heapify(heap)
        while heap:
            place, group = heap[0]
            if (now := self._place(group)) == place:
                yield self._take(group)
                if not self._groups[group]:
                    heapq.heappop(heap)
                    continue
                now = self._place(group)
            heapq.heapreplace(heap, (now, group))

    def _place(self, group: _Group) -> tuple[int, ...]:
        """The rank of the group's first unit; lower is better."""
        is_whole, pf, is_far = group
        had, order, _ = self._groups[group][0]
        return is_whole, had, self._of_pf[pf], is_far, self._in_use[pf], order

    def _take(self, group: _Group) -> str:
        nexts = self._groups[group]
        had, order, one = nexts[0]
        self._of_pf[group[1]] += 1
        if orders := self._left[one]:
            heapq.heapreplace(nexts, (had + 1, orders.popleft(), one))
        else:
            heapq.heappop(nexts)
        return self._units[order].id

    def _group(self, device: Device) -> _Group:
        is_far = bool(self._home) and device.numa >= 0 and device.numa not in self._home
        return self._exclusive and device.kind is Kind.PF, _pf(device), is_far


def _roomiest(devices: Sequence[tuple[Device, int]], size: int) -> frozenset[int]:
    """The NUMA node with the most PFs for the container, and among those the one with the most units; may be empty.

    ``devices`` come with their numbers of units.
    """
    pfs, room = dict[int, set[str]](), Counter[int]()
    for device, units in devices:
        if device.numa >= 0:
            pfs.setdefault(device.numa, set()).add(_pf(device))
            room[device.numa] += units
    best = max(room, key=lambda node: (min(len(pfs[node]), size), room[node], -node), default=None)
    return frozenset() if best is None else frozenset({best})


def _by_pf(devices: Mapping[str, Device], units: Counter[str]) -> Counter[str]:
    """Sum units of devices by PF."""
    found = Counter[str]()
    for one, number in units.items():
        found[_pf(devices[one])] += number
    return found


def _pf(device: Device) -> str:
    """The address of the device's PF; for a software interface its own name."""
    return device.pf or device.id
