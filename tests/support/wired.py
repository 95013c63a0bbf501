"""A cluster's wires as ResourceSlices, with faults that a test makes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Port:
    """A rail's switch port; an attribute with None is not in the slice."""

    leaf: str | None
    leafPort: str | None  # noqa: N815  # the attribute's name
    leafVlan: int | None = 100  # noqa: N815
    leafMaxFrame: int | None = 9216  # noqa: N815
    speed: int | None = 400


@dataclass
class Wired:
    """``nodes`` nodes with ``rails`` rails.  Each ``size`` nodes have leaves of their own, one for each rail.

    ``at`` has the ports, by node and rail."""

    nodes: int = 8
    rails: int = 8
    size: int = 32
    vfs: int = 1
    at: dict[tuple[str, int], Port] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(self.nodes):
            for rail in range(self.rails):
                leaf = f"pod{number // self.size}-leaf{rail}"
                self.at[f"node{number}", rail] = Port(leaf, f"Eth{number % self.size + 1}/1")

    def exchange(self, node: str, one: int, other: int) -> None:
        self.at[node, one], self.at[node, other] = self.at[node, other], self.at[node, one]

    def unplug(self, node: str, *rails: int) -> None:
        for rail in rails or range(self.rails):
            self.at[node, rail] = Port(None, None, None, None, None)

    def slices(self) -> Iterator[dict[str, Any]]:
        for (node, rail), port in self.at.items():
            known = {key: value for key, value in vars(port).items() if value is not None}
            address = f"0000:{rail:02x}:00.0"
            values = {"rail": rail, "pf": f"rail{rail}", "pfPciAddress": address, "linkType": "ether", **known}
            attributes = {key: {"int" if type(value) is int else "string": value} for key, value in values.items()}
            pool = {"name": f"{node}/pci-{rail}", "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": f"vf{number}", "attributes": attributes} for number in range(self.vfs)]
            spec = {"driver": "hpn-cni.io", "nodeName": node, "pool": pool, "devices": devices}
            yield {"metadata": {"name": f"{node}-{rail}"}, "spec": spec}
