"""The page as Prometheus reads it.  Only the process that serves it imports this, and prometheus_client with it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from base.protocol.errors import CniError
from hardware.model import Device
from node.metrics.commands import BOUNDS, Tally

Reader = Callable[[], Iterable[Metric]]


class _Families:
    """What was read, in the form that a registry asks for.

    The library's default collectors are left out: they would show the process that makes the page.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)
        for family in self._families:
            family.samples = [one._replace(labels=_as_text(one.labels)) for one in family.samples]

    def collect(self) -> Iterable[Metric]:
        return self._families


def _as_text(labels: Mapping[str, str]) -> dict[str, str]:
    """With escapes for bytes that are no UTF-8: a pod may name its devices by any, and journal and /sys have them."""
    return {name: value.encode(errors="backslashreplace").decode() for name, value in labels.items()}


def make(
    known: Iterable[Metric], readers: Mapping[str, Reader], problems: Mapping[str, bool]
) -> tuple[bytes, tuple[str, ...]]:
    """The page: what is ``known`` already, and what the reader of each topic finds.

    With it comes a sentence for each reader that failed, which says why.
    """
    families, wrong = list(known), dict[str, str]()
    for topic, read in readers.items():
        try:
            families += list(read())
        except (OSError, CniError) as e:
            wrong[topic] = f"metrics: {topic} cannot be read: {e}"
    families += _problems({**problems, **{topic: topic in wrong for topic in readers}})
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry), tuple(wrong.values())


def build(version: str) -> Iterator[Metric]:
    info = GaugeMetricFamily("hpn_build_info", "The version of hpn that answers.", labels=["version"])
    info.add_metric([version], 1)
    yield info


def commands(tally: Tally) -> Iterator[Metric]:
    """What CNI commands told since the start."""
    yield _ended(tally)
    yield _lasted(tally)


def _ended(tally: Tally) -> Metric:
    ended = CounterMetricFamily(
        "hpn_commands", "CNI commands that have ended, by error code; 0 is success.", labels=["verb", "kind", "code"]
    )
    for labels, number in sorted(tally.ended.items()):
        ended.add_metric(labels, number)
    return ended


def _lasted(tally: Tally) -> Metric:
    lasted = HistogramMetricFamily(
        "hpn_command_duration_seconds", "How long CNI commands took, without the program's start.",
        labels=["verb", "kind"],
    )  # fmt: skip
    bounds = [*map(str, BOUNDS), "+Inf"]
    for pair, durations in sorted(tally.durations.items()):
        lasted.add_metric(pair, list(zip(bounds, accumulate(durations.counts), strict=True)), durations.seconds)
    return lasted


def devices(known: Mapping[str, tuple[int, Sequence[tuple[Device, str]]]]) -> Iterator[Metric]:
    """How many devices each resource has; and its unhealthy ones, each with the reason."""
    number = GaugeMetricFamily("hpn_devices", "Devices that a resource has.", labels=["resource", "state"])
    info = GaugeMetricFamily(
        "hpn_device_info", "An unhealthy device, and why it is.",
        labels=["resource", "device", "netdev", "rdma_dev", "reason"],
    )  # fmt: skip
    for resource, (count, ill) in sorted(known.items()):
        number.add_metric([resource, "healthy"], count - len(ill))
        number.add_metric([resource, "unhealthy"], len(ill))
        for device, reason in ill:
            info.add_metric([resource, *_named(device), reason], 1)
    yield from (number, info)


def _named(device: Device) -> tuple[str, str, str]:
    """Its id, its interfaces and its RDMA devices."""
    return device.id, ",".join(device.names or device.netdevs), ",".join(rdma.name for rdma in device.rdma)


def _problems(problems: Mapping[str, bool]) -> Iterator[Metric]:
    family = GaugeMetricFamily("hpn_problems", "What hpn node cannot do now: 1, else 0.", labels=["topic"])
    for topic, is_there in sorted(problems.items()):
        family.add_metric([topic], is_there)
    yield family
