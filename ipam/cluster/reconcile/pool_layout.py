"""The grid of a network: made by the first node that needs a block, and found to agree by all others."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Final

from base.protocol.errors import InvalidConfig, TryAgain
from ipam.cluster import GRID, Documents
from ipam.cluster.rules.documents import PoolLayout, layout_name
from ipam.cluster.rules.network import refuse_another
from ipam.pool import Cluster

# So often others may be faster in changing it: it changes when a network is new, or gets a subnet.
_MOST: Final = 8


def agree(documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]) -> None:
    """See that the network has this grid, or give it these subnets too.

    Raises InvalidConfig if blocks have another size, other numbers are in no block, or an address would have two host
    numbers; RecordUnreadable, Unreachable, StoreRefused; TryAgain if others keep changing it.
    """
    name, wanted = layout_name(network), joined(PoolLayout(network, cluster.size, (), cluster.sticky), cluster, subnets)
    for _ in range(_MOST):
        found = documents.read(GRID, name)
        if found is None:
            # Where the answer is lost, or another was faster, there is one to be read now.
            if documents.create(GRID, name, network, wanted.to_json()):
                return
            continue
        grid = PoolLayout.of(found)
        new = joined(grid, cluster, subnets)
        if new == grid or documents.replace(found, new.to_json()):
            return
    raise TryAgain(f"grid {name} of the cluster's store is being changed by others; try again")


def refuse_disagreeing(documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]) -> None:
    """See that the network's grid, if it has one, agrees with this; nothing is changed.

    Raises InvalidConfig as ``agree`` does; RecordUnreadable, Unreachable, StoreRefused.
    """
    if found := documents.read(GRID, layout_name(network)):
        joined(PoolLayout.of(found), cluster, subnets)


def joined(grid: PoolLayout, cluster: Cluster, subnets: Sequence[str]) -> PoolLayout:
    """The grid with these subnets too.  Pure; raises InvalidConfig as ``agree`` does.

    A subnet is known by its first address, with the widest prefix that any configuration has had: a range may grow, and
    numbers stay what they are.
    """
    refuse_another(grid.network, cluster, grid.size, grid.sticky, "the cluster's store")  # guard: another-size
    known = [ip_network(text) for text in grid.subnets]
    for subnet in map(ip_network, subnets):
        if other := next(
            (k for k in known if k.overlaps(subnet) and k.network_address != subnet.network_address), None
        ):  # guard: begins-elsewhere (k.overlaps(subnet) -> False)
            raise InvalidConfig(
                f"ipam: subnet {subnet} overlaps {other}, which network {grid.network} has in this cluster, and begins "
                "elsewhere, so an address would be in two blocks; write the subnet as the other nodes have it "
                "(rangeStart and rangeEnd bound it), or give this network another name"
            )
        same = next((k for k in known if k.network_address == subnet.network_address), None)
        if same is None:
            known.append(subnet)
        elif subnet.prefixlen < same.prefixlen:  # guard: wider
            known[known.index(same)] = subnet
    return replace(grid, subnets=tuple(map(str, known)))
