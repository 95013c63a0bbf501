"""Interrupts of rails and VFs, and the processors that they go to."""

import re
from collections.abc import Iterator, Sequence

from ctl.doctor.checks.devices import rails
from ctl.doctor.machine import IRQBALANCE
from ctl.doctor.model import Facts, Finding, Nic, Process, Severity
from node.model import Kind


def irqbalance(facts: Facts) -> Iterator[Finding]:
    """irqbalance moves the interrupts of rails and VFs between processors, away from where they were put."""
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
                "systemctl disable --now irqbalance, or have it leave them alone: "
                + " ".join(f"--banmod={driver}" for driver in drivers),
            )


def _moves(process: Process, nic: Nic) -> bool:
    """Whether nothing on irqbalance's command line keeps it from this device's interrupts (man 1 irqbalance)."""
    given = " ".join(process.words)
    # As text: anybody may call a process irqbalance, and give it a number that is too long for int.
    banned = set(re.findall(r"(?:--banirq|-i)[= ]?0*([0-9]+)", given))
    modules = re.findall(r"(?:--banmod|-m)[= ]?(\S+)", given)
    has_script = re.search(r"(?:--policyscript|-l)\b", given)
    is_free = any(f"{number}" not in banned for number in nic.interrupts)
    return is_free and not has_script and nic.device.driver not in modules


def _short(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown


def irq_elsewhere(facts: Facts) -> Iterator[Finding]:
    """All interrupts of a rail go to processors of another NUMA node than its own, so each packet crosses over."""
    nodes = facts.machine.numa
    for nic in rails(facts) if len(nodes) > 1 else ():
        near = nodes.get(nic.device.numa, frozenset())
        if near and nic.affinity and all(cpus and not cpus & near for cpus in nic.affinity.values()):
            path, cpus = next(iter(nic.affinity.items()))
            yield Finding(
                Severity.WARNING,
                f"{path}: {_short(sorted(cpus))}; none of the {len(nic.affinity)} IRQs of {nic.device.id} goes to its "
                f"NUMA node, {nic.device.numa}",
                f"put what is in /sys/devices/system/node/node{nic.device.numa}/cpulist into smp_affinity_list of all, "
                "or use the script of the NIC's vendor",
            )
