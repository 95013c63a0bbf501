"""Which units kubelet is advised to take (GetPreferredAllocation).

Pure, and never an error: kubelet would fail the container.  docs/design/node.md says what is preferred and why.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

from node.model import Device, Kind, Offer, Sharing, Unit


def choose(offer: Offer, available: Iterable[str], must: Iterable[str], size: int) -> tuple[str, ...]:
    """``size`` IDs of ``available``, those of ``must`` first; () where kubelet had better choose by itself.

    The same question always has the same answer.
    """
    units = {unit.id: unit for unit in offer.units}
    free, taken = units.keys() & set(available), list(dict.fromkeys(must))
    if not len(taken) <= size <= len(free) or not free.issuperset(taken):
        return ()
    choice = _Choice(offer, free, [units[one] for one in taken], size)
    candidates = [unit for unit in offer.units if unit.id in free and unit.id not in taken]
    # A choice makes other units worse and none better.  So what is first in the heap is the best of all, if it is still
    # as good as when it was put there.
    heap = [(choice.place(unit), order) for order, unit in enumerate(candidates)]
    heapq.heapify(heap)
    while len(taken) < size:
        place, order = heap[0]
        unit = candidates[order]
        if (now := choice.place(unit)) > place:
            heapq.heapreplace(heap, (now, order))
        else:
            heapq.heappop(heap)
            choice.take(unit)
            taken.append(unit.id)
    return tuple(taken)


class _Choice:
    """What one container has been given so far, and how good each unit is beside that."""

    def __init__(self, offer: Offer, free: set[str], taken: Sequence[Unit], size: int) -> None:
        self._exclusive = offer.resource.sharing is Sharing.EXCLUSIVE
        self._of_pf, self._of_device = Counter[str](), Counter[str]()
        self._in_use = Counter(pf for unit in offer.units if unit.id not in free for pf in _pfs(unit))
        self._home = frozenset[int]().union(*(unit.numa for unit in taken))
        if not self._home:
            self._home = _roomiest([unit for unit in offer.units if unit.id in free], size)
        for unit in taken:
            self.take(unit)

    def place(self, unit: Unit) -> tuple[int, ...]:
        """Where the unit stands among others; lower is better."""
        return (
            int(self._exclusive and any(device.kind is Kind.PF for device in unit.devices)),
            sum(self._of_device[device.id] for device in unit.devices),
            sum(self._of_pf[pf] for pf in _pfs(unit)),
            int(bool(self._home and unit.numa and unit.numa.isdisjoint(self._home))),
            sum(self._in_use[pf] for pf in _pfs(unit)),
        )

    def take(self, unit: Unit) -> None:
        self._of_device.update(device.id for device in unit.devices)
        self._of_pf.update(_pfs(unit))


def _roomiest(units: Sequence[Unit], size: int) -> frozenset[int]:
    """The NUMA node on which a container gets the most PFs, and of such nodes that with the most units; none where the
    machine has none."""
    pfs, room = dict[int, set[str]](), Counter[int]()
    for unit in units:
        for node in unit.numa:
            pfs.setdefault(node, set()).update(_pfs(unit))
            room[node] += 1
    best = max(room, key=lambda node: (min(len(pfs[node]), size), room[node], -node), default=None)
    return frozenset() if best is None else frozenset({best})


def _pfs(unit: Unit) -> set[str]:
    return {_pf(device) for device in unit.devices}


def _pf(device: Device) -> str:
    """The address of its PF, and for an interface of software its own name."""
    return device.pf or device.id
