"""The machine, and rails beside each other."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ctl.doctor.model import Facts, Finding, Nic, Severity
from hardware.model import Kind
from hardware.rdma_devices import ACTIVE

_OLDEST = (5, 14)
_WRITTEN = 1767225600  # 2026-01-01T00:00:00Z
_NTP = "run an NTP client, such as systemd-timesyncd or chrony"
_STRICT = 1  # Documentation/networking/ip-sysctl.rst, rp_filter


def rails(facts: Facts) -> tuple[Nic, ...]:
    """The PFs that are for pods: those with RDMA or VFs, but for what the host's default route leaves by."""
    pfs = [nic for nic in facts.hardware.nics if nic.device.kind is Kind.PF and not nic.device.reserved]
    return tuple(nic for nic in pfs if nic.device.rdma or nic.device.vfs)


def alike(facts: Facts) -> Mapping[str, Sequence[Nic]]:
    """Rails of one model, by its PCI vendor and device."""
    found = defaultdict[str, list[Nic]](list)
    for nic in rails(facts):
        found[f"{nic.device.vendor}:{nic.device.product}"].append(nic)
    return found


def kernel_too_old(facts: Facts) -> Iterator[Finding]:
    """Namespaces have no cookies there, so a pod that is dead may not be provably so before a reboot."""
    machine = facts.machine
    found = re.match(r"(\d+)\.(\d+)", machine.kernel)
    if found and tuple(map(int, found.groups())) < _OLDEST:
        evidence = f"{machine.kernel_path}: {machine.kernel}"
        yield Finding(Severity.WARNING, evidence, f"Linux {_OLDEST[0]}.{_OLDEST[1]} or later")


def clock_wrong(facts: Facts) -> Iterator[Finding]:
    """A clock that says a time before hpn was written, as one without a battery does after each boot."""
    if 0 < facts.machine.now < _WRITTEN:
        said = time.strftime("%F %TZ", time.gmtime(facts.machine.now))
        yield Finding(Severity.ERROR, f"the clock says {said}", f"{_NTP}; then hwclock --systohc")


def clock_unsynchronized(facts: Facts) -> Iterator[Finding]:
    """Nothing has told the kernel that its clock is right."""
    if not facts.machine.synchronized and facts.machine.now >= _WRITTEN:
        said = "adjtimex(2) says STA_UNSYNC: nothing keeps the clock right"
        yield Finding(Severity.NOTE, said, f"{_NTP}; with chrony its directive rtcsync")


def rp_filter(facts: Facts) -> Iterator[Finding]:
    """A pod with two interfaces in one subnet drops what comes in by the one that it would not answer by.  A new
    namespace has the host's values."""
    strict = [f"{path}: {value}" for path, value in facts.machine.rp_filter.items() if value == _STRICT]
    if not strict or any(value > _STRICT for value in facts.machine.rp_filter.values()):
        return
    by_pod = defaultdict[str, list[tuple[str, ...]]](list)
    for one in facts.state.attachments:
        if one.alive and one.pod and not one.has_rules:
            by_pod[one.pod].append(one.subnets)
    for pod, subnets in sorted(by_pod.items()):
        if shared := sorted({net for a, b in combinations(subnets, 2) for net in {*a} & {*b}}):
            yield Finding(
                Severity.WARNING,
                f"{', '.join(strict)}; pod {pod} has several interfaces in {', '.join(shared)}",
                'in the configurations "multiRail": true, or "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2"}',
            )


def mtu_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model with different MTUs: what is larger than the smallest is lost between them, or slow."""
    for model, nics in sorted(alike(facts).items()):
        known = [nic for nic in nics if nic.mtu and nic.device.link_type == "ether"]
        if len({nic.mtu for nic in known}) > 1:
            values = ", ".join(f"{nic.path}/net/{nic.device.netdevs[0]}/mtu: {nic.mtu}" for nic in known)
            most = max(nic.mtu for nic in known)
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                f"mtu: {most} in pfs of the device file, or ip link set IFNAME mtu {most}, if the switches take it",
            )


def speed_differs(facts: Facts) -> Iterator[Finding]:
    """A rail that is slower than others of its model holds up all of a job."""
    for model, nics in sorted(alike(facts).items()):
        best = max(nic.speed for nic in nics)
        for nic in nics:
            if 0 < nic.speed < best:
                yield Finding(
                    Severity.WARNING,
                    f"{nic.path}/net/{nic.device.netdevs[0]}/speed: {nic.speed}; another NIC {model} has {best}",
                    f"look at cable, transceiver and switch port; ethtool {nic.device.netdevs[0]}",
                )


def port_down(facts: Facts) -> Iterator[Finding]:
    """A rail's RDMA port that is not active, while that of another one of its model is."""
    for nics in alike(facts).values():
        ports = [(hca, port) for nic in nics for hca in nic.hcas for port in hca.ports]
        for hca, port in ports if any(port.state == ACTIVE for _, port in ports) else ():
            if port.state != ACTIVE:
                yield Finding(
                    Severity.WARNING,
                    f"{hca.path}/ports/{port.number}/state: {port.state_name}",
                    f"ip link set {port.netdev or 'IFNAME'} up; then look at cable, switch port and subnet manager",
                )


def traffic_class_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model whose packets are marked differently: switches treat them differently then."""
    for model, nics in sorted(alike(facts).items()):
        told = {path: value for nic in nics for path, value in nic.traffic_classes.items()}
        if len(set(told.values())) > 1:
            values = ", ".join(f"{path}: {value}" for path, value in sorted(told.items()))
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                "echo NUMBER into each of these files, the same for all",
            )


def vf_elsewhere(facts: Facts) -> Iterator[Finding]:
    """A VF's interface is in a namespace, and hpn has not put it there: another plugin's pod, or a stray."""
    ours = {one.device for one in facts.state.attachments if one.alive}
    for nic in facts.hardware.nics:
        if nic.device.kind is Kind.VF and nic.is_elsewhere and nic.device.id not in ours:
            yield Finding(
                Severity.NOTE,
                f"{nic.path}/net: the interface is in another namespace, and no attachment has {nic.device.id}",
                "nothing, if another CNI plugin has given it to a pod; else it comes home when that namespace ends",
            )


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
