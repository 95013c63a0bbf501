"""What the page shows of the node's files and of /sys: attachments, pools, blocks of shared networks, RDMA ports.

It is read as hpn inspect and hpn ipam show read it: without a lock and without changing anything.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from base.kernel import sysfs
from base.state.record import Record
from hardware.ports import every
from ipam import inventory, stores
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import NodeBlocks
from ipam.cluster.rules.counting import counted, held_in, pool, room
from ipam.stores import access
from node.blocks import networks_with_blocks
from node.health.status import ACTIVE

# The kind of a record that cannot be read.
UNREADABLE = "unreadable"
# A block that has a name which the node had before: who has an address of it keeps that, and nobody gets another.
DRAINING = "draining"


def attachments(records: Iterable[tuple[Path, Record | None]]) -> Iterator[Metric]:
    """How many attachments each network has of each kind."""
    counts = Counter[tuple[str, ...]](
        (path.parent.name, record.kind if record else UNREADABLE) for path, record in records
    )
    yield _gauge("hpn_attachments", "Attachments in the journal.", counts, "kind")


def pools(data_dirs: Iterable[Path]) -> Iterator[Metric]:
    """What each range of each network has, and what of it is not free.  Raises IoFailure."""
    size, held = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for network in (found for folder in data_dirs for found in inventory.networks(folder, stores.none_gone)):
        for one in inventory.pools(network):
            labels = network.name, ",".join(one["ranges"])
            held[labels] += sum(one[word] for word in inventory.STATES)
            if one["size"] is not None:
                size[labels] += one["size"]
    yield _gauge("hpn_pool_addresses", "Addresses that a range has, free or not.", size, "range")
    yield _gauge("hpn_pool_leases", "Addresses of a range that are not free: held, or kept back.", held, "range")


def blocks(data_dirs: Iterable[Path], suspected: Mapping[str, int]) -> Iterator[Metric]:
    """What there is of each network.  Raises IoFailure, RecordUnreadable."""
    number, left, last = Counter[tuple[str, ...]](), dict[tuple[str, ...], int](), dict[tuple[str, ...], int]()
    for directory in networks_with_blocks(data_dirs):
        if mine := node_blocks.read(directory):
            number.update((mine.network, _state(mine, block.index)) for block in mine.blocks)
            left[mine.network,] = _room(directory, mine)
            last[mine.network,] = mine.looked
    suspects = {labels: suspected.get(labels[0], 0) for labels in last}
    yield _gauge("hpn_cluster_blocks", "Blocks that this node has of a shared network.", number, "state")
    yield _gauge("hpn_cluster_room", "Attachments for which this node's blocks have addresses.", left)
    yield _gauge("hpn_cluster_suspects", "Blocks that others took for a dead node's before the last look.", suspects)
    yield _gauge("hpn_cluster_looked_timestamp_seconds", "When this node last saw its blocks in the store.", last)


def _state(mine: NodeBlocks, index: int) -> str:
    block = mine.block(index)
    return DRAINING if index in mine.draining else block.state if block else ""


def _room(directory: Path, mine: NodeBlocks) -> int:
    contents = access.open_in(directory.parent, directory.name, []).contents()
    known = pool(mine, contents.sets)
    return room(counted(mine, known, held_in(contents)), mine)


def _gauge(name: str, text: str, numbers: Mapping[tuple[str, ...], int], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["network", *labels])
    for values, number in sorted(numbers.items()):
        family.add_metric(values, number)
    return family


def ports(records: Sequence[Record], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Iterator[Metric]:
    """Whether each port is active, and what it has counted.

    Some ports are seen by pods only.  If these cannot be read, ``remark`` is given a sentence that says why.
    """
    active = GaugeMetricFamily(
        "hpn_rdma_port_active", "Whether an RDMA device's port is active: 1, else 0.", labels=["rdma_dev", "port"]
    )
    counted = CounterMetricFamily(
        "hpn_rdma_port_counter", "What an RDMA device's port has counted, as the kernel names it.",
        labels=["rdma_dev", "port", "counter", "namespace", "pod"],
    )  # fmt: skip
    for port in every(records, remark, root):
        active.add_metric([port.rdma_dev, port.number], port.state.endswith(f": {ACTIVE}"))
        for counter, value in sorted(port.counters().items()):
            counted.add_metric([port.rdma_dev, port.number, counter, *port.owner], value)
    yield from (active, counted)
