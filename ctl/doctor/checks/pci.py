"""Checks of PCIe and interrupts: settings that slow a NIC down."""

import re
from collections.abc import Iterator, Sequence

from base.table import abridged
from ctl.doctor.checks.devices import alike, rails
from ctl.doctor.machine import IRQBALANCE
from ctl.doctor.model import Facts, Finding, Nic, Process, Severity
from hardware.model import Kind

# Mbit/s.  From this rate on, small read requests slow a NIC down.
_FAST = 100_000
_GOOD = 4096


def pcie_link(facts: Facts) -> Iterator[Finding]:
    """A link is slower or narrower than device and slot support: a bad seat, a riser, or a firmware setting."""
    for nic in rails(facts):
        if nic.link and nic.most and (nic.link.speed < nic.most.speed or nic.link.width < nic.most.width):
            yield Finding(
                Severity.WARNING,
                f"{nic.path}/current_link_speed, current_link_width: {nic.link}; device and slot support {nic.most}",
                "reseat the card; check riser and slot, and the speed limit in the firmware's set-up",
            )


def pcie_read_request(facts: Facts) -> Iterator[Finding]:
    """Rails of one model use read requests of different sizes, or a fast rail uses small ones."""
    for nics in alike(facts).values():
        best = max(nic.read_request for nic in nics)
        for nic in nics:
            slow = nic.speed >= _FAST and nic.read_request < _GOOD
            if nic.read_request and (nic.read_request < best or slow):
                wanted = max(best, _GOOD if slow else 0)
                yield Finding(
                    Severity.WARNING if nic.read_request < best else Severity.NOTE,
                    f"{nic.path}/config, MaxReadReq: {nic.read_request} bytes; it should be {wanted}",
                    f"setpci -s {nic.device.id} CAP_EXP+8.w={wanted.bit_length() - 8 << 12:x}:7000",
                )


def pcie_relaxed_ordering(facts: Facts) -> Iterator[Finding]:
    """Without relaxed ordering, writes to memory wait for each other.  GPUs and AMD processors lose most."""
    for nic in rails(facts):
        if nic.relaxed is False:
            yield Finding(
                Severity.NOTE,
                f"{nic.path}/config, Enable Relaxed Ordering: 0",
                f"setpci -s {nic.device.id} CAP_EXP+8.w=10:10, unless the firmware or the kernel forbids it",
            )


def pcie_ats(facts: Facts) -> Iterator[Finding]:
    """Only some rails of one model use the IOMMU's address translation in advance (ATS), so their speeds differ."""
    for model, nics in sorted(alike(facts).items()):
        known = [nic for nic in nics if nic.ats is not None]
        if len({nic.ats for nic in known}) > 1:
            values = ", ".join(f"{nic.path}/config, ATS Enable: {nic.ats:d}" for nic in known)
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                "set the same for all, then reboot: mlxconfig -d PCI-ADDRESS set ATS_ENABLED=true, or =false; "
                "pci=noats on the kernel's command line disables it everywhere",
            )


def pcie_acs(facts: Facts) -> Iterator[Finding]:
    """Writes between a NIC and a GPU below one bridge make a detour through the root complex."""
    for nic in rails(facts):
        for gpu in facts.hardware.gpus:
            shared = {*nic.place.above[1:]} & {*gpu.above}
            # The redirecting bridges are the ports below the shared switch.
            ports = ({*nic.place.above, *gpu.above} - shared) & facts.hardware.redirecting.keys()
            if shared and ports:
                where = ", ".join(f"{facts.hardware.redirecting[port]}/config" for port in sorted(ports))
                commands = "; ".join(f"setpci -s {port} ECAP_ACS+6.w=0:c" for port in sorted(ports))
                yield Finding(
                    Severity.WARNING,
                    f"{where}: ACS redirects traffic between {nic.device.id} and the GPU {gpu.address}",
                    f"{commands}; but not if virtual machines use these devices",
                )


def irqbalance(facts: Facts) -> Iterator[Finding]:
    """irqbalance may move the interrupts of rails and VFs away from their processors."""
    ours = {nic.device.id for nic in rails(facts)}
    ours |= {nic.device.id for nic in facts.hardware.nics if nic.device.kind is Kind.VF}
    for process in facts.machine.processes:
        if process.name != IRQBALANCE:
            continue
        if free := [nic for nic in facts.hardware.nics if nic.device.id in ours and _moves(process, nic)]:
            numbers = sorted(number for nic in free for number in nic.interrupts)
            drivers = sorted({nic.device.driver for nic in free})
            yield Finding(
                Severity.WARNING,
                f"{process.path}/cmdline: {' '.join(process.words)}; it may move IRQs {_short(numbers)} of "
                f"{', '.join(nic.device.id for nic in free)}",
                "systemctl disable --now irqbalance, or exclude them with its options: "
                + " ".join(f"--banmod={driver}" for driver in drivers),
            )


def _moves(process: Process, nic: Nic) -> bool:
    """True if no option of irqbalance protects this device's interrupts (man 1 irqbalance)."""
    given = " ".join(process.words)
    # As text: a user's process may have this name, and a number that is too long for int.
    banned = set(re.findall(r"(?:--banirq|-i)[= ]?0*([0-9]+)", given))
    modules = re.findall(r"(?:--banmod|-m)[= ]?(\S+)", given)
    has_script = re.search(r"(?:--policyscript|-l)\b", given)
    is_free = any(f"{number}" not in banned for number in nic.interrupts)
    return is_free and not has_script and nic.device.driver not in modules


def _short(numbers: Sequence[int]) -> str:
    return abridged([*map(str, numbers)], 8)


def irq_elsewhere(facts: Facts) -> Iterator[Finding]:
    """All interrupts of a rail go to processors of another NUMA node, so each packet crosses between nodes."""
    nodes = facts.machine.numa
    for nic in rails(facts) if len(nodes) > 1 else ():
        near = nodes.get(nic.device.numa, frozenset())
        if near and nic.affinity and all(cpus and not cpus & near for cpus in nic.affinity.values()):
            path, cpus = next(iter(nic.affinity.items()))
            yield Finding(
                Severity.WARNING,
                f"{path}: {_short(sorted(cpus))}; none of the {len(nic.affinity)} IRQs of {nic.device.id} goes to its "
                f"NUMA node, {nic.device.numa}",
                f"write /sys/devices/system/node/node{nic.device.numa}/cpulist into smp_affinity_list of all, or use "
                "the script of the NIC's vendor",
            )
