"""The plugin's latest allocations, for as long as kubelet's list of pods' devices may lack them."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

# Seconds from an Allocate until kubelet lists it for certain.
LONGEST: Final = 60.0

# A resource's name, and the ID of its unit.
Name = tuple[str, str]


class Allocations:
    """Forgets each allocation after LONGEST seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = dict[Name, float]()
        self._granted: Callable[[Collection[Name]], None] | None = None

    def tell(self, granted: Callable[[Collection[Name]], None]) -> None:
        """Call ``granted`` with the units of each Allocate from now on."""
        self._granted = granted

    def note(self, resource: str, ids: Iterable[str]) -> None:
        """Note an Allocate that was granted."""
        names = [(resource, one) for one in ids]
        self._times = {name: at for name, at in self._times.items() if at > self._clock() - LONGEST}
        self._times.update(dict.fromkeys(names, self._clock()))
        if self._granted:
            self._granted(names)

    @property
    def units(self) -> frozenset[Name]:
        return frozenset(name for name, at in self._times.items() if at > self._clock() - LONGEST)
