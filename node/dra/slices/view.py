"""What a round over the slices gets, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hardware.neighbors import Neighbor
from node.kubelet.allocations import Name
from node.model import Offer

# A slice's version at the API server, and a digest of its wanted content.
Known = tuple[str, bytes]


@dataclass(frozen=True)
class View:
    """What a round publishes.

    - ``offers``: those of resources by DRA.
    - ``allocated``: the plugin's latest allocations.
    - ``unhealthy``: why a resource's device is unhealthy, in one word; only of unhealthy ones.
    - ``withheld``: what the round before withheld.  If ``is_look``, publish only if that has changed.
    - ``known``: the slices, by name, after the last round; none if it failed.  If ``is_same``, it was to publish the
      same.
    - ``neighbors``: the switch ports of PFs, by their addresses.
    - ``leaves``: a device that may be in slices is in no offer.
    """

    kubelet: Path
    kubeconfig: str
    offers: tuple[Offer, ...] = ()
    allocated: frozenset[Name] = frozenset()
    unhealthy: Mapping[Name, str] = field(default_factory=dict)
    withheld: frozenset[Name] | None = None
    is_look: bool = False
    known: Mapping[str, Known] = field(default_factory=dict)
    is_same: bool = False
    leaves: bool = False
    neighbors: Mapping[str, Neighbor] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A round's result.

    - ``withheld``: the units that pods have from the device plugin; None if kubelet does not list them.
    - ``problem``: why the slices are not all as wanted, with the remedy; else empty.
    - ``node``: the node's name at the API server; empty if it was not asked.
    - ``notes``: remarks on devices that are left out.
    - ``strangers``: why slices of another program are left alone, with the remedy; empty without any.
    - ``is_look``: nothing had changed, so the API server was not asked.
    - ``known``: the slices that are as wanted.
    - ``is_barred``: there is no credential, or the API server refuses it, so that another round is in vain.
    """

    withheld: frozenset[Name] | None
    problem: str = ""
    node: str = ""
    notes: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    is_look: bool = False
    known: Mapping[str, Known] = field(default_factory=dict)
    is_barred: bool = False
