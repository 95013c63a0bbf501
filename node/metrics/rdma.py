"""RDMA ports and their counters, as /sys/class/infiniband has them, and which pod has the device.

The journal says whose a device is that one attachment has for itself.  A device that many share is nobody's.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from cni.kernel import sysfs
from cni.state.record import Record
from node.health import ACTIVE
from node.metrics import inside

# A pod's namespace and name; both empty for nobody.
Owner = tuple[str, str]
_NOBODY: Final = ("", "")
# A port's device by name, its number, its directory, and the pod that has the device.
Port = tuple[str, str, str, Owner]
# How old hw_counters may be, in milliseconds: no counter.
_NONE: Final = frozenset({"lifespan"})


def ports(records: Sequence[Record], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Iterator[Metric]:
    """Whether each port is active, and what it has counted; first those that the host sees, then those that only pods
    see.  ``remark`` is told why these are missing.

    VFs that no attachment has are left out: with thousands of them that would be most of the page, and they count
    nothing.
    """
    active, counted = _families()
    seen = set(sysfs.names(f"{root}/class/infiniband"))
    _add(active, counted, _all(f"{root}/class/infiniband", _owners(records)))
    for record in records:
        # Of two devices with one name, which some kernels allow in different namespaces, the page has one.
        hidden = {name: owner for name, owner in _owners([record]).items() if name not in seen}
        seen |= hidden.keys()
        _add(active, counted, _inside(record, hidden, remark))
    yield from (active, counted)


def _inside(record: Record, hidden: Mapping[str, Owner], remark: Callable[[str], None]) -> Iterator[Port]:
    """The ports of an attachment's devices that the host does not see."""
    if hidden:
        with inside.sysfs(record, remark) as root:
            found = _all(f"{root}/class/infiniband", hidden) if root else ()
            yield from (port for port in found if port[0] in hidden)


def _families() -> tuple[GaugeMetricFamily, CounterMetricFamily]:
    active = GaugeMetricFamily(
        "hpn_rdma_port_active", "Whether an RDMA device's port is active: 1, else 0.", labels=["rdma_dev", "port"]
    )
    counted = CounterMetricFamily(
        "hpn_rdma_port_counter", "What an RDMA device's port has counted, as the kernel names it.",
        labels=["rdma_dev", "port", "counter", "namespace", "pod"],
    )  # fmt: skip
    return active, counted


def _add(active: GaugeMetricFamily, counted: CounterMetricFamily, ports: Iterable[Port]) -> None:
    for name, port, path, owner in ports:
        active.add_metric([name, port], sysfs.line(f"{path}/state").endswith(f": {ACTIVE}"))
        for counter, value in sorted(_counters(path).items()):
            counted.add_metric([name, port, counter, *owner], value)


def _owners(records: Iterable[Record]) -> Mapping[str, Owner]:
    """The pods that have RDMA devices for themselves, by the devices' names."""
    return {
        name: (namespace, pod)
        for record in records
        if record.of_this_boot and (record.rxe or record.link.get("device"))
        for namespace, _, pod in [record.pod.partition("/")]
        for name in record.rdma_devs
    }


def _all(folder: str, owners: Mapping[str, Owner]) -> Iterator[Port]:
    for name in sysfs.names(folder):
        if name in owners or not os.path.exists(f"{folder}/{name}/device/physfn"):
            for port in sysfs.names(f"{folder}/{name}/ports"):
                yield name, port, f"{folder}/{name}/ports/{port}", owners.get(name, _NOBODY)


def _counters(port: str) -> Mapping[str, int]:
    """What is a number in its counters and hw_counters."""
    return {
        name: int(text)
        for folder in ("hw_counters", "counters")
        for name in sysfs.names(f"{port}/{folder}")
        if name not in _NONE and (text := sysfs.line(f"{port}/{folder}/{name}")).isdecimal()
    }
