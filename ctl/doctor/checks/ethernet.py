"""Ethernet's priorities: rails that lose what others keep."""

import re
from collections.abc import Iterator

from ctl.doctor.checks.devices import alike, rails
from ctl.doctor.model import Facts, Finding, Severity


def pfc_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model that treat priorities differently: one of them loses packets, or its switch port stops."""
    for model, nics in sorted(alike(facts).items()):
        told = {f"{nic.path}/net/{nic.device.netdevs[0]}": nic.dcb for nic in nics if nic.dcb}
        if len(set(told.values())) > 1:
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {'. '.join(f'{path}: {dcb}' for path, dcb in sorted(told.items()))}",
                "dcb pfc set dev IFNAME prio-pfc PRIORITY:on, dcb app replace dev IFNAME dscp-prio DSCP:PRIORITY: the "
                "same for all, and as the switches have it",
            )


def traffic_class_lossy(facts: Facts) -> Iterator[Finding]:
    """RDMA is marked with a DSCP whose priority has no flow control, and another priority has."""
    for nic in rails(facts):
        for path, value in nic.traffic_classes.items() if nic.dcb and nic.dcb.pfc else ():
            found = re.search(r"tclass=(\d+)", value)
            dscp = int(found[1]) >> 2 if found else -1  # the lowest two bits are ECN's
            priority = dict(nic.dcb.dscp).get(dscp) if nic.dcb else None
            if nic.dcb and priority is not None and priority not in nic.dcb.pfc:
                yield Finding(
                    Severity.WARNING,
                    f"{path}: {value}, so DSCP {dscp}, of priority {priority}; {nic.path}/net/{nic.device.netdevs[0]} "
                    f"has {nic.dcb}",
                    f"dcb pfc set dev {nic.device.netdevs[0]} prio-pfc {priority}:on, if the switches have that; else "
                    "another NUMBER into the file: four times a DSCP whose priority has PFC",
                )
