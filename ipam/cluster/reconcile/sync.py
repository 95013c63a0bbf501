"""Read this node's blocks from its file, and confirm them and the pool layout with the backend where they may be wrong.

The caller holds ``blocks.lock`` (node_blocks.py), except for ``heartbeat_if_due``, which takes it.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError, InvalidConfig, RecordUnreadable, TryAgain, Unreachable
from base.protocol.result import Address
from base.state import durable, policy
from ipam.cluster import BLOCK, POOL, Document, Documents, copies, node_blocks
from ipam.cluster.backends.backend import Backend, opened
from ipam.cluster.node_blocks import RETURNING, SILENT, NodeBlocks, heartbeat_is_due, is_late, must_sync
from ipam.cluster.reconcile.heartbeat import Heartbeat, readable
from ipam.cluster.rules import block_math, counting
from ipam.cluster.rules.documents import PoolLayout, layout_name, overlapping, readable_layouts
from ipam.cluster.rules.network import FOLDER, Network, Numbers, directory_in, refuse_another
from ipam.pool import Cluster
from ipam.stores import LOCK_TIMEOUT, Book, Store, access

# Attempts when other nodes change it first; it changes only when a network is new or gets a subnet.
_ATTEMPTS: Final = 8


def confirm(network: Network, backend: Backend, mine: NodeBlocks | None, log: list[str]) -> NodeBlocks:
    """Return this node's blocks, confirmed where needed, with a pool layout that agrees with the configuration.

    Raises InvalidConfig if the cluster's pool layout does not; RecordUnreadable, Unreachable, BackendRefused, TryAgain,
    IoFailure.
    """
    if mine is None or mine.node != backend.node or must_sync(mine):
        return _sync(network, backend, mine, log)
    return mine if set(network.subnets) <= set(mine.subnets) else _add_subnets(network, backend, mine)


def load(network: Network) -> NodeBlocks | None:
    """Return this node's blocks from its file; None if it never had one.

    Moves away a damaged file, or one of another network, and raises RecordUnreadable.  The next call then asks the
    backend for this node's blocks.  Raises InvalidConfig, IoFailure.
    """
    try:
        mine = node_blocks.read(network.directory)
    except RecordUnreadable as e:
        raise _set_aside(network, e.msg) from e
    if mine and mine.network != network.name:
        raise _set_aside(
            network, f"{network.directory}/{node_blocks.FILE} is of network {mine.network}, not {network.name}"
        )
    if mine:
        network.refuse_another(mine)
    return mine


def _set_aside(network: Network, why: str) -> RecordUnreadable:
    aside = durable.set_aside(Path(network.directory) / node_blocks.FILE, Path(network.directory) / "quarantine")
    return RecordUnreadable(
        f"{why}; moved to {aside}: try again, and this node reads its blocks from the cluster's backend"
    )


def heartbeat_if_due(network: Network, log: list[str], *, late: bool) -> None:
    """Send a heartbeat if one is due, which refutes suspicions.

    A backend without an answer is not an error.  Unless it is ``late``, so that others may own the blocks, a busy lock
    and a refusal are not errors either.  Raises InvalidConfig for another cluster or pool layout; then the next ADD
    asks the backend before any allocation.  If late, also raises BackendRefused, TryAgain, RecordUnreadable, IoFailure.
    """
    if copies.was_silent(network.cluster.backend, SILENT):
        return  # a pod with many networks would wait for each of them
    try:
        lock = node_blocks.lock(network.directory, LOCK_TIMEOUT if late else 0)
    except TryAgain:
        if late:
            raise
        return
    try:
        with lock:
            wrong = _send(network, log)
    except CniError as e:
        if isinstance(e, Unreachable):
            copies.note_silent(network.cluster.backend)
        elif late:
            raise
        log.append(f"network {network.name}: this node's heartbeat to the cluster's backend failed: {e.msg}")
        return
    if wrong:
        raise wrong


def _send(network: Network, log: list[str]) -> InvalidConfig | None:
    """Send the heartbeat; return an error if the blocks are from another backend.  Raises CniError."""
    mine = load(network)
    if mine is None or must_sync(mine) or not heartbeat_is_due(mine):
        return None
    # Record this boot: the host was not off for long enough to lose its blocks.
    mine = replace(mine, asked=int(time.time()), boot=durable.boot_id())
    node_blocks.write(network.directory, mine)
    try:
        backend = opened(network.cluster.backend)
        try:
            _sync(network, backend, mine, log)
        except InvalidConfig as e:
            node_blocks.write(network.directory, replace(mine, looked=0, boot=""))
            return e
    except CniError as e:
        if is_late(mine) and not isinstance(e, Unreachable):  # so the next ADD fails as well
            node_blocks.write(network.directory, replace(mine, asked=0))
        raise
    return None


def _sync(network: Network, backend: Backend, mine: NodeBlocks | None, log: list[str]) -> NodeBlocks:
    """Return this node's blocks as the backend holds them.  Raises InvalidConfig if it belongs to another cluster."""
    documents = backend.documents
    identity, machine = documents.identity(), backend.machine()
    if mine is None:
        size, place = network.cluster.size, node_blocks.place_of(network.directory)
        about = network.cluster.backend, identity, backend.node, machine.uid, size
        mine = NodeBlocks(network.name, *about, place=place, sticky=network.cluster.sticky)
    elif mine.identity != identity:
        file = f"{network.directory}/{node_blocks.FILE}"
        raise InvalidConfig(
            f"ipam.cluster.backend {network.cluster.backend!r}: it belongs to cluster {identity}, and this node's "
            f"blocks ({file}) to cluster {mine.identity}; correct backends.{network.cluster.backend} in "
            f"{policy.FILE}; if the node moved, delete the network's pods on it, then {file}"
        )
    agree(documents, network.name, network.cluster, network.subnets, mine.subnets)
    seen = Heartbeat(documents, machine, log).send(mine, partial(withdraw, network.directory, _store(network)))
    mine = replace(seen, subnets=_union(mine, network), asked=seen.looked)
    node_blocks.write(network.directory, mine)
    return mine


def _store(network: Network) -> Store:
    """The store of the network's leases; those of reserved numbers are with the network's."""
    folder = Path(network.parent.directory if isinstance(network, Numbers) else network.directory)
    return access.open_in(folder.parent, folder.name, [])


def withdraw(directory: Path | str, store: Store, mine: NodeBlocks, indexes: Collection[int]) -> NodeBlocks:
    """Mark those of these blocks that have no lease as returning.

    The file is on disk before any other command can choose an address.
    """

    def mark(book: Book) -> NodeBlocks:
        empty = counting.without_leases(mine, indexes, book.count)
        new = mine.having(*(replace(block, state=RETURNING) for block in empty))
        node_blocks.write(directory, new)
        return new

    return store.look(mark)


def _add_subnets(network: Network, backend: Backend, mine: NodeBlocks) -> NodeBlocks:
    """Return the node's blocks with the configuration's subnets, after these agreed with the cluster's."""
    agree(backend.documents, network.name, network.cluster, network.subnets, mine.subnets)
    mine = replace(mine, subnets=_union(mine, network))
    node_blocks.write(network.directory, mine)
    return mine


def _union(mine: NodeBlocks, network: Network) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*mine.subnets, *network.subnets)))


def blocks_of(network: Network, addresses: Iterable[Address]) -> dict[int, Address]:
    """Return the blocks of the addresses by index, each with one of its addresses.  Pure.

    An address outside of all ranges, such as an excluded one, needs no block.
    """
    found = dict[int, Address]()
    for address in sorted(addresses, key=lambda one: (one.version, int(one))):
        index = block_math.block_of(network.pool.sets, network.cluster.size, address)
        if index is not None:
            found.setdefault(index, address)
    return found


def refuse_uncovered(network: Network, mine: NodeBlocks) -> None:
    """Refuse a first block while leases here are in blocks that other nodes could claim.

    Raises InvalidConfig; IoFailure.
    """
    folder = Path(network.directory)
    listed = access.open_in(folder.parent, folder.name, []).contents().listed
    held = [ip for one in listed if not one.is_over for ip in one.holding.ips]
    missing = {index: ip for index, ip in blocks_of(network, held).items() if not mine.block(index)}
    if missing:
        some = ", ".join(f"{ip} (block {index})" for index, ip in missing.items())
        raise InvalidConfig(
            f"ipam.cluster: this node's addresses of network {network.name} from before sharing are in unclaimed "
            f"blocks: {some}; claim them first on every node: hpn ipam import --from node CONFIGURATION; or delete "
            "the network's pods here"
        )
    _refuse_reserved(network, held)


def _refuse_reserved(network: Network, given: Iterable[Address]) -> None:
    """Refuse leases here of reserved numbers, except those of names that this node serves."""
    if not network.pool.aside:
        return
    named = node_blocks.read(directory_in(network.directory))
    numbers = {ip: block_math.block_of(network.pool.aside.sets, 1, ip) for ip in given}
    known = {None, *(block.index for block in named.blocks)} if named else {None}
    if missing := [str(ip) for ip, number in numbers.items() if number not in known]:
        raise InvalidConfig(
            f"ipam.cluster.sticky {network.cluster.sticky}: this node allocated {', '.join(missing)} before these "
            "numbers were reserved; reserve others, or delete the pods with these addresses"
        )


def agree(
    documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str], known: Sequence[str] = ()
) -> None:
    """Create the network's pool layout, or add these subnets to it.  This node has used the ``known`` ones before.

    Raises InvalidConfig if blocks have another size, other numbers are reserved, an address would have two host
    numbers, or an added subnet overlaps another network's.  Raises TryAgain if other nodes keep changing it;
    RecordUnreadable, Unreachable, BackendRefused.
    """
    name = layout_name(network)
    for _ in range(_ATTEMPTS):
        found, layout, new = _layouts(documents, network, cluster, subnets)
        if found and found.body == new.to_json():
            return
        if not found and "/" not in network:
            _refuse_unlike(documents, network, cluster)
        _refuse_overlapping(documents, network, cluster, set(new.subnets) - {*layout.subnets, *known})
        # After a lost answer, or if another node was faster, the next read finds it.
        if documents.replace(found, new.to_json()) if found else documents.create(POOL, name, network, new.to_json()):
            return
    raise TryAgain(f"pool layout {name} of the cluster's backend keeps changing; try again")


def refuse_disagreeing(documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]) -> None:
    """Check that the network's pool layout agrees, or may be created; change nothing.

    Raises InvalidConfig as ``agree`` does; RecordUnreadable, Unreachable, BackendRefused.
    """
    _, layout, new = _layouts(documents, network, cluster, subnets)
    _refuse_overlapping(documents, network, cluster, set(new.subnets) - set(layout.subnets))


def refuse_second(documents: Documents, network: Network) -> None:
    """Refuse the first block of a network with another one's addresses.

    Two networks may write their layouts at once, so that neither found the other before.  A network with a block stands
    already, also if that is a reserved number.  Raises InvalidConfig; Unreachable, BackendRefused.
    """
    others = _overlapping(documents, network.name, network.cluster, network.subnets)
    if others and not any(documents.listed(BLOCK, name) for name in (network.name, f"{network.name}/{FOLDER}")):
        raise _overlap(network.name, *others[0])


def _layouts(
    documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]
) -> tuple[Document | None, PoolLayout, PoolLayout]:
    """Return the document of the network's layout, the layout, and the layout with these subnets."""
    found = documents.read(POOL, layout_name(network))
    layout = PoolLayout.of(found) if found else PoolLayout(network, cluster.size, (), cluster.sticky)
    if layout.is_edited:
        _refuse_edited(documents, layout)
    return found, layout, joined(layout, cluster, subnets)


def _refuse_edited(documents: Documents, layout: PoolLayout) -> None:
    """Refuse a layout that was edited while blocks of the former one can exist.

    A block has a size, but no subnet, so the blocks alone would not show that they are of another layout.
    """
    if number := len([*documents.listed(BLOCK, layout.network)]):
        raise InvalidConfig(
            f"pool layout {layout_name(layout.network)} in the cluster's backend was edited, and blocks of the "
            f"former one exist ({number}): pods would share addresses; write the former values back into all "
            "configurations, and then remove the pool layout from the backend: nodes write it again"
        )


def _refuse_unlike(documents: Documents, network: str, cluster: Cluster) -> None:
    """Refuse a new layout that contradicts the network's blocks: an operator can remove a layout while pods run.

    Blocks of two sizes, or a block with a name's number, would contain one address twice.
    """
    low, high = map(int, cluster.sticky.split("-")) if cluster.sticky else (0, -1)
    blocks = [block for _, block in readable(documents.listed(BLOCK, network))]
    numbers = [number for _, number in readable(documents.listed(BLOCK, f"{network}/{FOLDER}"))]
    for block in blocks:
        where = f"block {block.index} in the cluster's backend"
        refuse_another(network, cluster, block.size, cluster.sticky, where)
        first, last = block.index * block.size, (block.index + 1) * block.size - 1
        # With this sticky, no node claims a block of such numbers only, and a name's number shows that it was set.
        if first <= high and last >= low and (not numbers or low <= first <= last <= high):
            raise InvalidConfig(
                f"ipam.cluster.sticky {cluster.sticky}: node {block.node} has host numbers {first} to {last} of "
                f"network {network} ({where}), and its pods may have addresses of them; choose others, delete these "
                "pods and wait for the block's release, or give the network another name"
            )
    for number in numbers:
        if not low <= number.index <= high:
            raise InvalidConfig(
                f"ipam.cluster.sticky {cluster.sticky or 'is not set'}: host number {number.index} of network "
                f"{network} is reserved for {number.whose} in the cluster's backend; set the sticky that the network "
                "had, or give the network another name"
            )


def _refuse_overlapping(documents: Documents, network: str, cluster: Cluster, added: Iterable[str]) -> None:
    if others := _overlapping(documents, network, cluster, sorted(added)):
        raise _overlap(network, *others[0])


def _overlapping(
    documents: Documents, network: str, cluster: Cluster, subnets: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Return the subnets that overlap another network's, unless the configuration permits that.

    Reserved numbers have the subnets of their network, which was checked before.
    """
    if cluster.overlaps or "/" in network or not subnets:
        return []
    return list(overlapping(network, subnets, readable_layouts(documents.listed(POOL))))


def _overlap(network: str, subnet: str, other: str, theirs: str) -> InvalidConfig:
    return InvalidConfig(
        f"ipam: subnet {subnet} of network {network} overlaps {theirs} of network {other} in this cluster, and both "
        f"would allocate the same addresses; choose another subnet, or name both networks {other}; if their links are "
        f"separate, or their ranges apart, set ipam.overlaps true; if no pod uses {other}, remove its pool layout "
        f"{layout_name(other)} from the backend"
    )


def joined(layout: PoolLayout, cluster: Cluster, subnets: Sequence[str]) -> PoolLayout:
    """Return the layout with these subnets added.  Pure; raises InvalidConfig as ``agree`` does.

    A subnet's first address identifies it, and the widest prefix of any configuration counts.  So a range may grow, and
    host numbers never change.
    """
    refuse_another(layout.network, cluster, layout.size, layout.sticky, "the cluster's backend")
    known = [ip_network(text) for text in layout.subnets]
    for subnet in map(ip_network, subnets):
        if other := next(
            (k for k in known if k.overlaps(subnet) and k.network_address != subnet.network_address), None
        ):
            raise InvalidConfig(
                f"ipam: subnet {subnet} overlaps {other}, which network {layout.network} has in this cluster, and "
                "begins at another address; write the other nodes' subnet and bound it by rangeStart and rangeEnd, or "
                f"rename the network; if {other} was a mistake and no pod uses it, remove the pool layout "
                f"{layout_name(layout.network)} from the backend"
            )
        same = next((k for k in known if k.network_address == subnet.network_address), None)
        if same is None:
            known.append(subnet)
        elif subnet.prefixlen < same.prefixlen:
            known[known.index(same)] = subnet
    return replace(layout, subnets=tuple(map(str, known)))
