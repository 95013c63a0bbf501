"""Attachments and pools, as the journal and the leases have them.

They are read as hpn inspect and hpn ipam show read them: without a lock and without changing anything.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from cni.state.record import Record
from ipam import inventory, stores

# The kind of a record that cannot be read.
UNREADABLE = "unreadable"


def attachments(records: Iterable[tuple[Path, Record | None]]) -> Iterator[Metric]:
    """How many attachments each network has of each kind."""
    counts = Counter((path.parent.name, record.kind if record else UNREADABLE) for path, record in records)
    yield _gauge("hpn_attachments", "Attachments in the journal.", "kind", counts)


def pools(data_dirs: Iterable[Path]) -> Iterator[Metric]:
    """What each range of each network has, and what of it is not free.  Raises IoFailure."""
    size, held = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for network in (one for folder in data_dirs for one in inventory.networks(folder, stores.none_gone)):
        for pool in inventory.pools(network):
            labels = network.name, ",".join(pool["ranges"])
            held[labels] += sum(pool[word] for word in inventory.STATES)
            if pool["size"] is not None:
                size[labels] += pool["size"]
    yield _gauge("hpn_pool_addresses", "Addresses that a range has, free or not.", "range", size)
    yield _gauge("hpn_pool_leases", "Addresses of a range that are not free: held, or kept back.", "range", held)


def _gauge(name: str, text: str, label: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    """Of each network and ``label`` a number."""
    family = GaugeMetricFamily(name, text, labels=["network", label])
    for labels, number in sorted(counts.items()):
        family.add_metric(labels, number)
    return family
