"""What a node gave of a network before that was shared: its addresses have to be in blocks of this node."""

from collections.abc import Iterable
from pathlib import Path

from base.protocol.errors import InvalidConfig
from base.protocol.result import Address
from ipam.cluster.rules import block_math
from ipam.cluster.rules.network import Network, directory_in
from ipam.cluster.state.node_blocks import NodeBlocks, read
from ipam.stores import access


def blocks_of(network: Network, addresses: Iterable[Address]) -> dict[int, Address]:
    """By their indexes the blocks that the addresses are in, each with one of these.  Pure.

    An address that no range may give, such as one that is excluded by now, needs none.
    """
    found = dict[int, Address]()
    for address in sorted(addresses, key=lambda one: (one.version, int(one))):
        index = block_math.block_of(network.pool.sets, network.cluster.size, address)
        if index is not None:
            found.setdefault(index, address)
    return found


def refuse_uncovered(network: Network, mine: NodeBlocks) -> None:
    """See that no other node can have what this one has given: for a node that has had no block of the network so far.

    Raises InvalidConfig; IoFailure.
    """
    folder = Path(network.directory)
    listed = access.open_in(folder.parent, folder.name, []).contents().listed
    held = [ip for one in listed if not one.is_over for ip in one.holding.ips]
    missing = {index: ip for index, ip in blocks_of(network, held).items() if not mine.block(index)}
    if missing:
        some = ", ".join(f"{ip} (block {index})" for index, ip in missing.items())
        raise InvalidConfig(
            f"ipam.cluster: this node has given addresses of network {network.name} before that was shared, and any "
            f"node could have their blocks: {some}; make them this node's, on every node before any gives addresses by "
            "this configuration: hpn ipam import --from node CONFIGURATION; or delete the network's pods on this node"
        )
    _refuse_set_aside(network, held)  # guard: set-aside


def _refuse_set_aside(network: Network, given: Iterable[Address]) -> None:
    """See that the addresses given are none of those that go to names, but for those that names have here."""
    if not network.pool.aside:
        return
    named = read(directory_in(network.directory))
    numbers = {ip: block_math.block_of(network.pool.aside.sets, 1, ip) for ip in given}
    known = {None, *(block.index for block in named.blocks)} if named else {None}
    if missing := [str(ip) for ip, number in numbers.items() if number not in known]:
        raise InvalidConfig(
            f"ipam.cluster.sticky {network.cluster.sticky}: this node has given {', '.join(missing)} before these "
            "numbers were set aside; set others aside, or delete the pods that have these addresses"
        )
