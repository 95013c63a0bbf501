"""Checks of the machine and of its rails, which are compared with each other."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ctl.doctor.model import Facts, Finding, Nic, Severity
from hardware.model import Kind
from hardware.rdma_devices import ACTIVE
from node.model import Sharing
from node.offer.offers import agrees

_OLDEST = (5, 14)
_WRITTEN = 1767225600  # 2026-01-01T00:00:00Z
_FAR = 60.0  # seconds
_NTP = "run an NTP client, such as systemd-timesyncd or chrony"
_STRICT = 1  # Documentation/networking/ip-sysctl.rst, rp_filter


def rails(facts: Facts) -> tuple[Nic, ...]:
    """The PFs for pods: those with RDMA or VFs, except the ones that carry the host's default route."""
    pfs = [nic for nic in facts.hardware.nics if nic.device.kind is Kind.PF and not nic.device.reserved]
    return tuple(nic for nic in pfs if nic.device.rdma or nic.device.vfs)


def alike(facts: Facts) -> Mapping[str, Sequence[Nic]]:
    """The rails of each model, by PCI vendor and device."""
    found = defaultdict[str, list[Nic]](list)
    for nic in rails(facts):
        found[f"{nic.device.vendor}:{nic.device.product}"].append(nic)
    return found


def kernel_too_old(facts: Facts) -> Iterator[Finding]:
    """Older kernels give namespaces no cookie, so some pods cannot be proven dead before a reboot."""
    machine = facts.machine
    found = re.match(r"(\d+)\.(\d+)", machine.kernel)
    if found and tuple(map(int, found.groups())) < _OLDEST:
        evidence = f"{machine.kernel_path}: {machine.kernel}"
        yield Finding(Severity.WARNING, evidence, f"install Linux {_OLDEST[0]}.{_OLDEST[1]} or later")


def clock_wrong(facts: Facts) -> Iterator[Finding]:
    """The clock shows a time before hpn was written, as after a boot without a battery."""
    if 0 < facts.machine.now < _WRITTEN:
        now = time.strftime("%F %TZ", time.gmtime(facts.machine.now))
        yield Finding(Severity.ERROR, f"the clock shows {now}", f"{_NTP}; then hwclock --systohc")


def clock_differs(facts: Facts) -> Iterator[Finding]:
    """The node's clock differs from that of the backend of its shared pools."""
    found = max((one.ahead for one in facts.state.blocks), key=abs, default=0.0)
    if abs(found) > _FAR:
        evidence = f"the clock is {abs(found) / 60:.0f} minutes {'ahead of' if found > 0 else 'behind'} the backend's"
        yield Finding(Severity.WARNING, evidence, f"{_NTP}; if this clock is right, on the backend's servers")


def clock_unsynchronized(facts: Facts) -> Iterator[Finding]:
    """No time source has reported to the kernel that its clock is right."""
    if not facts.machine.synchronized and facts.machine.now >= _WRITTEN:
        evidence = "adjtimex(2) reports STA_UNSYNC: no time source synchronizes the clock"
        yield Finding(Severity.NOTE, evidence, f"{_NTP}; chrony also needs its directive rtcsync")


def rp_filter(facts: Facts) -> Iterator[Finding]:
    """A pod with two interfaces in one subnet drops packets that arrive on the interface it would not reply on.

    A new namespace copies the host's values.
    """
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
                'set "multiRail": true in the configurations, or "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2"}',
            )


def mtu_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model have different MTUs.  Larger packets between them are lost or slow."""
    for model, nics in sorted(alike(facts).items()):
        known = [nic for nic in nics if nic.mtu and nic.device.link_type == "ether"]
        if len({nic.mtu for nic in known}) > 1:
            values = ", ".join(f"{nic.path}/net/{nic.device.netdevs[0]}/mtu: {nic.mtu}" for nic in known)
            most = max(nic.mtu for nic in known)
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                f"set mtu: {most} in pfs of the device file, or ip link set IFNAME mtu {most}, if the switches allow",
            )


def speed_differs(facts: Facts) -> Iterator[Finding]:
    """A rail is slower than others of its model, and delays a whole job."""
    for model, nics in sorted(alike(facts).items()):
        best = max(nic.speed for nic in nics)
        for nic in nics:
            if 0 < nic.speed < best:
                yield Finding(
                    Severity.WARNING,
                    f"{nic.path}/net/{nic.device.netdevs[0]}/speed: {nic.speed}; another NIC {model} reaches {best}",
                    f"check cable, transceiver and switch port: ethtool {nic.device.netdevs[0]}",
                )


def wiring_differs(facts: Facts) -> Iterator[Finding]:
    """A rail is at another switch port than most nodes', or without one, by LLDP.  Traffic takes a longer way."""
    for file, one in facts.wiring:
        yield Finding(Severity.WARNING, f"{file}: {one.evidence}", one.remedy)


def port_down(facts: Facts) -> Iterator[Finding]:
    """A rail's RDMA port is not active, although a port of the same model is."""
    for nics in alike(facts).values():
        ports = [(hca, port) for nic in nics for hca in nic.hcas for port in hca.ports]
        for hca, port in ports if any(port.state == ACTIVE for _, port in ports) else ():
            if port.state != ACTIVE:
                yield Finding(
                    Severity.WARNING,
                    f"{hca.path}/ports/{port.number}/state: {port.state_name}",
                    f"ip link set {port.netdev or 'IFNAME'} up; then check cable, switch port and subnet manager",
                )


def traffic_class_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model mark packets differently, so switches treat them differently."""
    for model, nics in sorted(alike(facts).items()):
        classes = {path: value for nic in nics for path, value in nic.traffic_classes.items()}
        if len(set(classes.values())) > 1:
            values = ", ".join(f"{path}: {value}" for path, value in sorted(classes.items()))
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                "write the same number into each of these files: echo NUMBER >FILE",
            )


def vf_elsewhere(facts: Facts) -> Iterator[Finding]:
    """A VF's interface is in a namespace where hpn did not put it: another plugin's pod, or a leftover."""
    ours = {one.device for one in facts.state.attachments if one.alive}
    for nic in facts.hardware.nics:
        if nic.device.kind is Kind.VF and nic.is_elsewhere and nic.device.id not in ours:
            yield Finding(
                Severity.NOTE,
                f"{nic.path}/net: the interface is in another namespace, and no attachment holds {nic.device.id}",
                "nothing, if another CNI plugin moved it into a pod; otherwise it returns when that namespace ends",
            )


def vf_needed(facts: Facts) -> Iterator[Finding]:
    """The host has come to need a VF that the device file offers, mostly by an address of a DHCP client."""
    file = facts.node_file
    offered = (
        [one for one in file.settings.resources if one.sharing is Sharing.EXCLUSIVE] if file and file.settings else []
    )
    selectors = [selector for one in offered for selector in one.selectors]
    for nic in facts.hardware.nics:
        device = nic.device
        if file and device.kind is Kind.VF and device.used and any(agrees(one, device) for one in selectors):
            name = next(iter(device.netdevs), device.id)
            yield Finding(
                Severity.WARNING,
                f"{nic.path}/net/{name}: {device.used}, so no pod gets this VF of {file.path}",
                "exclude VFs in NetworkManager or systemd-networkd; then, unless the host needs it: ip address flush "
                f"dev {name}",
            )


def pfc_differs(facts: Facts) -> Iterator[Finding]:
    """Rails of one model treat priorities differently: one of them loses packets, or its switch port stops."""
    for model, nics in sorted(alike(facts).items()):
        settings = {f"{nic.path}/net/{nic.device.netdevs[0]}": nic.dcb for nic in nics if nic.dcb}
        if len(set(settings.values())) > 1:
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {'. '.join(f'{path}: {dcb}' for path, dcb in sorted(settings.items()))}",
                "dcb pfc set dev IFNAME prio-pfc PRIORITY:on, dcb app replace dev IFNAME dscp-prio DSCP:PRIORITY: set "
                "the same for all, to match the switches",
            )


def traffic_class_lossy(facts: Facts) -> Iterator[Finding]:
    """RDMA uses a DSCP whose priority has no flow control, although another priority has it."""
    for nic in rails(facts):
        dcb = nic.dcb
        if not dcb or not dcb.pfc:
            continue
        for path, value in nic.traffic_classes.items():
            found = re.search(r"tclass=(\d+)", value)
            dscp = int(found[1]) >> 2 if found else -1  # the lowest two bits are ECN's
            priority = dict(dcb.dscp).get(dscp)
            if priority is not None and priority not in dcb.pfc:
                yield Finding(
                    Severity.WARNING,
                    f"{path}: {value}, which is DSCP {dscp} with priority {priority}; "
                    f"{nic.path}/net/{nic.device.netdevs[0]} has {dcb}",
                    f"dcb pfc set dev {nic.device.netdevs[0]} prio-pfc {priority}:on, if the switches do the "
                    "same; else write another number into the file: four times a DSCP whose priority has PFC",
                )
