"""What doctor knows of the cluster, as values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A NetworkAttachmentDefinition ("namespace/name"), the resource that its pods ask for, empty for none, and whether
    it is for hpn."""

    name: str
    resource: str = ""
    is_ours: bool = False


@dataclass(frozen=True)
class Cluster:
    """What the API server says: how many nodes there are, which resources any of them has, and the networks."""

    nodes: int
    offered: frozenset[str]
    definitions: tuple[Definition, ...]


@dataclass(frozen=True)
class Blocks:
    """This node's blocks of a network that the cluster shares: how many in each state, room for how many attachments
    (-1: not known), and how many seconds ago the store said so; ``silent`` is why it does not now."""

    file: str
    states: Mapping[str, int]
    room: int
    seen: float
    silent: str = ""
