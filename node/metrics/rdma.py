"""RDMA ports on the page: which are active, and what they have counted."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from cni.kernel import sysfs
from cni.state.record import Record
from node.health import ACTIVE
from node.metrics.ports import every


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
