"""This node's blocks of shared networks, and how full each is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.result import Address
from base.protocol.spec import Json
from ipam import sandboxes
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import directory_in
from ipam.cluster.rules.overview import spans_in
from ipam.cluster.state import node_blocks
from ipam.cluster.state.node_blocks import NodeBlocks, OwnedBlock
from ipam.inventory import state
from ipam.ranges import Span, common, count
from ipam.stores import access
from ipam.stores.contents import Contents


@dataclass(frozen=True)
class Own:
    """A block of this node.

    ``held``: its numbers that are not free, in the subnet with the most.  ``free``: its numbers that are free in every
    range; None before the network's first ADD.
    """

    network: str
    block: OwnedBlock
    spans: tuple[Span, ...]
    held: int
    free: int | None

    def to_json(self) -> Json:
        return {
            "network": self.network,
            "index": self.block.index,
            "state": self.block.state,
            "node": self.block.node,
            "taken": self.block.taken,
            "addresses": list(map(str, self.spans)),
            "held": self.held,
            "free": self.free,
        }


def networks(data_dir: Path, names: Sequence[str] = ()) -> dict[str, NodeBlocks]:
    """Return this node's blocks of each shared network, by name.  Raises IoFailure, RecordUnreadable."""
    try:
        found = [
            path.parent for some in ("*", directory_in("*")) for path in data_dir.glob(f"{some}/{node_blocks.FILE}")
        ]
        there = {str(path.relative_to(data_dir)): one for path in sorted(found) if (one := node_blocks.read(path))}
    except OSError as e:
        raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; run as root") from e
    if missing := sorted(set(names) - set(there)):
        raise IoFailure(f"no blocks of network {', '.join(missing)} in {data_dir}; see: hpn ipam blocks")
    return {name: one for name, one in there.items() if not names or name in names}


def own_blocks(directory: Path) -> list[int] | None:
    """Return the indexes of the network's blocks for new addresses; empty if it is not shared, None if the file is
    unreadable.  Raises IoFailure."""
    try:
        has = node_blocks.read(directory)
    except RecordUnreadable:
        return None
    return list(has.giving) if has else []


def owned(data_dir: Path, network: str, has: NodeBlocks) -> Iterator[Own]:
    """Yield this node's blocks of the network, in order."""
    # Reserved numbers have a directory of their own, but their leases are with the network's.
    contents = access.open_in(data_dir, network.partition("/")[0], [], sandboxes.gone).contents()
    if contents.problem:
        raise RecordUnreadable(f"{network}: {contents.problem}")
    used = _used(contents)
    for block in has.blocks:
        spans = tuple(span for subnet in has.subnets for span in spans_in(subnet, [_numbered(has, block)]))
        number = max((sum(one in span for one in used) for span in spans), default=0)
        yield Own(network, block, spans, number, _free(contents, spans, used))


def _numbered(has: NodeBlocks, block: OwnedBlock) -> Block:
    return Block(has.network, block.index, has.size, block.node, has.machine, "")


def _used(contents: Contents) -> set[Address]:
    return {ip for one in contents.listed if state(one) != "free" for ip in one.holding.ips}


def _free(contents: Contents, spans: Sequence[Span], used: set[Address]) -> int | None:
    """Return the free numbers; each serves one attachment with an address of every set."""
    each = [common(usable, spans) for usable in contents.sets]
    return min((count(here) - sum(_is_in(here, one) for one in used) for here in each), default=None)


def _is_in(spans: Sequence[Span], address: Address) -> bool:
    return any(address in span for span in spans)
