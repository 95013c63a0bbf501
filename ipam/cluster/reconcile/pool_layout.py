"""The pool layout of a network: the first node that needs a block creates it, all others must agree with it."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Final

from base.protocol.errors import InvalidConfig, TryAgain
from ipam.cluster import GRID, Documents
from ipam.cluster.rules.documents import PoolLayout, layout_name
from ipam.cluster.rules.network import refuse_another
from ipam.pool import Cluster

# Attempts when other nodes change it first; it changes only when a network is new or gets a subnet.
_MOST: Final = 8


def agree(documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]) -> None:
    """Create the network's pool layout, or add these subnets to it.

    Raises InvalidConfig if blocks have another size, other numbers are reserved, or an address would have two host
    numbers; RecordUnreadable, Unreachable, StoreRefused; TryAgain if other nodes keep changing it.
    """
    name, wanted = layout_name(network), joined(PoolLayout(network, cluster.size, (), cluster.sticky), cluster, subnets)
    for _ in range(_MOST):
        found = documents.read(GRID, name)
        if found is None:
            # After a lost answer, or if another node was faster, the next read finds it.
            if documents.create(GRID, name, network, wanted.to_json()):
                return
            continue
        layout = PoolLayout.of(found)
        new = joined(layout, cluster, subnets)
        if new == layout or documents.replace(found, new.to_json()):
            return
    raise TryAgain(f"grid {name} of the cluster's store keeps changing; try again")


def refuse_disagreeing(documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]) -> None:
    """Check that the network's pool layout, if it exists, agrees; change nothing.

    Raises InvalidConfig as ``agree`` does; RecordUnreadable, Unreachable, StoreRefused.
    """
    if found := documents.read(GRID, layout_name(network)):
        joined(PoolLayout.of(found), cluster, subnets)


def joined(layout: PoolLayout, cluster: Cluster, subnets: Sequence[str]) -> PoolLayout:
    """Return the layout with these subnets added.  Pure; raises InvalidConfig as ``agree`` does.

    A subnet's first address identifies it, and the widest prefix of any configuration counts.  So a range may grow, and
    host numbers never change.
    """
    refuse_another(layout.network, cluster, layout.size, layout.sticky, "the cluster's store")  # guard: another-size
    known = [ip_network(text) for text in layout.subnets]
    for subnet in map(ip_network, subnets):
        if other := next(
            (k for k in known if k.overlaps(subnet) and k.network_address != subnet.network_address), None
        ):  # guard: begins-elsewhere (k.overlaps(subnet) -> False)
            raise InvalidConfig(
                f"ipam: subnet {subnet} overlaps {other}, which network {layout.network} has in this cluster, and "
                "begins at another address, so an address would be in two blocks; write the subnet as on other nodes "
                "(rangeStart and rangeEnd bound it), or give this network another name"
            )
        same = next((k for k in known if k.network_address == subnet.network_address), None)
        if same is None:
            known.append(subnet)
        elif subnet.prefixlen < same.prefixlen:  # guard: wider
            known[known.index(same)] = subnet
    return replace(layout, subnets=tuple(map(str, known)))
