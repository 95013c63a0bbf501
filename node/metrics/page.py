"""The page for Prometheus: metric families of the daemon, the node's files and /sys.

Files are read as hpn inspect and hpn ipam read them: without a lock, and without a change.  Only the child process
that serves the page imports this, and prometheus_client with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from base.kernel import sysfs
from base.protocol.errors import CniError
from base.state.record import Record
from hardware import rdma_users
from hardware.model import Device
from hardware.ports import every
from ipam import inventory, stores
from ipam.cluster import node_blocks
from ipam.cluster.rules.block_math import candidates
from ipam.cluster.rules.counting import counted, held_in, pool, room
from ipam.stores import access
from node.blocks import networks_with_blocks
from node.health.status import ACTIVE
from node.metrics.commands import BOUNDS, Tally

# The kind of an unreadable record.
UNREADABLE = "unreadable"
# A block under an older name of the node: its addresses stay with their owners, and no more are allocated from it.
DRAINING = "draining"

Reader = Callable[[], Iterable[Metric]]


class _Families:
    """Metric families as a collector of a registry.

    The library's default collectors are left out: they would describe the child process.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # A pod may name its devices by any bytes.
            family.samples = [
                one._replace(labels={k: v.encode(errors="backslashreplace").decode() for k, v in one.labels.items()})
                for one in family.samples
            ]
            yield family


def make(
    known: Iterable[Metric], readers: Mapping[str, Reader], problems: Mapping[str, bool]
) -> tuple[bytes, tuple[str, ...]]:
    """The page of the ``known`` families and those of each topic's reader.

    The second result has a sentence with the reason for each reader that failed.
    """
    families, wrong = list(known), dict[str, str]()
    for topic, read in readers.items():
        try:
            families += list(read())
        except (OSError, CniError) as e:
            wrong[topic] = f"metrics: {topic} cannot be read: {e}"
    topics = {**problems, **{topic: topic in wrong for topic in readers}}
    numbers: dict[tuple[str, ...], int] = {(topic,): is_there for topic, is_there in topics.items()}
    families.append(_gauge("hpn_problems", "What hpn node cannot do now: 1, else 0.", numbers, "topic"))
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry), tuple(wrong.values())


def build(version: str) -> Iterator[Metric]:
    yield _gauge("hpn_build_info", "The version of hpn that answers.", {(version,): 1}, "version")


def commands(tally: Tally) -> Iterator[Metric]:
    """Numbers and durations of CNI commands since the start."""
    ended = CounterMetricFamily(
        "hpn_commands", "CNI commands that have ended, by error code; 0 is success.", labels=["verb", "kind", "code"]
    )
    for labels, number in sorted(tally.ended.items()):
        ended.add_metric(labels, number)
    lasted = HistogramMetricFamily(
        "hpn_command_duration_seconds", "How long CNI commands took, without the program's start.",
        labels=["verb", "kind"],
    )  # fmt: skip
    bounds = [*map(str, BOUNDS), "+Inf"]
    for pair, durations in sorted(tally.durations.items()):
        lasted.add_metric(pair, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.seconds)
    yield from (ended, lasted)


def devices(known: Mapping[str, tuple[int, Sequence[tuple[Device, str]]]]) -> Iterator[Metric]:
    """Each resource's number of devices; and its unhealthy ones, each with the reason."""
    number, unhealthy = dict[tuple[str, ...], int](), dict[tuple[str, ...], int]()
    for resource, (count, ill) in known.items():
        number |= {(resource, "healthy"): count - len(ill), (resource, "unhealthy"): len(ill)}
        for device, reason in ill:
            netdevs, rdma = ",".join(device.names or device.netdevs), ",".join(one.name for one in device.rdma)
            unhealthy[resource, device.id, netdevs, rdma, reason] = 1
    yield _gauge("hpn_devices", "Devices that a resource has.", number, "resource", "state")
    labels = ("resource", "device", "netdev", "rdma_dev", "reason")
    yield _gauge("hpn_device_info", "An unhealthy device, with the reason.", unhealthy, *labels)


def attachments(records: Iterable[tuple[Path, Record | None]]) -> Iterator[Metric]:
    """The number of attachments by network and kind."""
    counts = Counter[tuple[str, ...]](
        (path.parent.name, record.kind if record else UNREADABLE) for path, record in records
    )
    yield _gauge("hpn_attachments", "Attachments in the journal.", counts, "network", "kind")


def pools(data_dirs: Iterable[Path]) -> Iterator[Metric]:
    """The size of each range of each network, and its addresses that are not free.  Raises IoFailure."""
    size, held = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for network in (found for folder in data_dirs for found in inventory.networks(folder, stores.none_gone)):
        for one in inventory.pools(network):
            labels = network.name, ",".join(one["ranges"])
            held[labels] += sum(one[word] for word in inventory.STATES)
            if one["size"] is not None:
                size[labels] += one["size"]
    text = "Addresses of a range that are not free: held, or kept back."
    yield _gauge("hpn_pool_addresses", "Addresses that a range has, free or not.", size, "network", "range")
    yield _gauge("hpn_pool_leases", text, held, "network", "range")


def blocks(data_dirs: Iterable[Path], suspected: Mapping[str, int]) -> Iterator[Metric]:
    """This node's blocks of each network, and their free room.  Raises IoFailure, RecordUnreadable."""
    number, last = Counter[tuple[str, ...]](), dict[tuple[str, ...], int]()
    left, every_block = dict[tuple[str, ...], int](), dict[tuple[str, ...], int]()
    for directory in networks_with_blocks(data_dirs):
        if mine := node_blocks.read(directory):
            states = [DRAINING if block.index in mine.draining else block.state for block in mine.blocks]
            number.update((mine.network, state) for state in states)
            contents = access.open_in(directory.parent, directory.name, []).contents()
            known = pool(mine, contents.sets)
            have = counted(mine, known, held_in(contents))
            # Unknown with reserved numbers only, or without the ranges.
            if have.free and mine.blocks:
                left[mine.network,] = room(have, mine)
                every_block[mine.network,] = sum(one.last - one.first + 1 for one in candidates(known.sets, mine.size))
            last[mine.network,] = mine.looked
    suspects = {labels: suspected.get(labels[0], 0) for labels in last}
    yield _gauge("hpn_cluster_blocks", "Blocks that this node has of a shared network.", number, "network", "state")
    yield _gauge("hpn_cluster_room", "Attachments for which this node's blocks have addresses.", left, "network")
    text = "Blocks that the network's ranges have, for all nodes."
    yield _gauge("hpn_cluster_pool_blocks", text, every_block, "network")
    text = "Blocks of this node that others suspected before its last round."
    yield _gauge("hpn_cluster_suspects", text, suspects, "network")
    text = "When this node last saw its blocks in the backend."
    yield _gauge("hpn_cluster_looked_timestamp_seconds", text, last, "network")


def _gauge(name: str, text: str, numbers: Mapping[tuple[str, ...], int], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in sorted(numbers.items()):
        family.add_metric(values, number)
    return family


def ports(records: Sequence[Record], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Iterator[Metric]:
    """Each RDMA port's state and counters.

    Some ports exist in pods only.  If these cannot be read, ``remark`` gets a sentence with the reason.
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


def users(records: Iterable[Record], remark: Callable[[str], None]) -> Iterator[Metric]:
    """Each pod's resources of the RDMA devices in our namespace; the users that are no pod are left out.

    ``remark`` gets a sentence if pods are in another PID namespace.  Raises OSError.
    """
    pods = {key: numbers for key, numbers in rdma_users.uses(records, remark).items() if not key[1].other}
    texts = {
        "qp": "Queue pairs that a pod's threads have made on an RDMA device.",
        "mr": "Memory regions that a pod's threads have made on an RDMA device.",
        "cq": "Completion queues that a pod's threads have made on an RDMA device.",
        "objects": "Objects of an RDMA device that a pod's cgroup is charged for.",
        "objects_peak": "The most objects of an RDMA device that a pod's cgroup was charged for at once.",
    }
    for resource, text in texts.items():
        held: dict[tuple[str, ...], int] = {
            (device, user.namespace, user.pod, user.uid): numbers.get(resource, 0)
            for (device, user), numbers in pods.items()
            if resource in (*rdma_users.RESOURCES, *numbers)
        }
        yield _gauge(f"hpn_pod_rdma_{resource}", text, held, "rdma_dev", "namespace", "pod", "uid")
