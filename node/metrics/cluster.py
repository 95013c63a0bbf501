"""This node's blocks of the networks whose addresses a cluster's nodes share, as its files have them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from ipam import stores
from ipam.cluster import held
from ipam.cluster.counting import counted, held_in, pool, room
from ipam.cluster.held import Held
from node.blocks import networks_with_blocks

# A block that has a name which the node had before: who has an address of it keeps that, and nobody gets another.
DRAINING = "draining"


def blocks(data_dirs: Iterable[Path], suspected: Mapping[str, int]) -> Iterator[Metric]:
    """What there is of each network.  Raises IoFailure, RecordUnreadable."""
    number, left, last = Counter[tuple[str, ...]](), dict[tuple[str, ...], int](), dict[tuple[str, ...], int]()
    for directory in networks_with_blocks(data_dirs):
        if mine := held.read(directory):
            number.update((mine.network, _state(mine, block.index)) for block in mine.blocks)
            left[mine.network,] = _room(directory, mine)
            last[mine.network,] = mine.looked
    suspects = {labels: suspected.get(labels[0], 0) for labels in last}
    yield _gauge("hpn_cluster_blocks", "Blocks that this node has of a shared network.", number, "state")
    yield _gauge("hpn_cluster_room", "Attachments for which this node's blocks have addresses.", left)
    yield _gauge("hpn_cluster_suspects", "Blocks that others took for a dead node's before the last look.", suspects)
    yield _gauge("hpn_cluster_looked_timestamp_seconds", "When this node last saw its blocks in the store.", last)


def _state(mine: Held, index: int) -> str:
    block = mine.block(index)
    return DRAINING if index in mine.draining else block.state if block else ""


def _room(directory: Path, mine: Held) -> int:
    contents = stores.open_in(directory.parent, directory.name, []).contents()
    known = pool(mine, contents.sets)
    return room(counted(mine, known, held_in(contents)), mine)


def _gauge(name: str, text: str, numbers: Mapping[tuple[str, ...], int], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["network", *labels])
    for values, number in sorted(numbers.items()):
        family.add_metric(values, number)
    return family
