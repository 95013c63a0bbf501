"""PCIe: what makes a NIC slower than it is."""

from collections.abc import Iterator

from ctl.doctor.checks.devices import alike, rails
from ctl.doctor.model import Facts, Finding, Severity

# From here on (Mbit/s) small read requests keep a NIC from its rate.
_FAST = 100_000
_GOOD = 4096


def pcie_link(facts: Facts) -> Iterator[Finding]:
    """A link that is slower or narrower than device and slot can: a bad seat, a riser, a setting of the firmware."""
    for nic in rails(facts):
        if nic.link and nic.most and (nic.link.speed < nic.most.speed or nic.link.width < nic.most.width):
            yield Finding(
                Severity.WARNING,
                f"{nic.path}/current_link_speed, current_link_width: {nic.link}; device and slot can do {nic.most}",
                "seat the card anew, look at riser and slot, and at the speed that the firmware's set-up allows",
            )


def pcie_read_request(facts: Facts) -> Iterator[Finding]:
    """Rails of one model that read different amounts at a time, or a fast one that reads little."""
    for nics in alike(facts).values():
        best = max(nic.read_request for nic in nics)
        for nic in nics:
            slow = nic.speed >= _FAST and nic.read_request < _GOOD
            if nic.read_request and (nic.read_request < best or slow):
                wanted = max(best, _GOOD if slow else 0)
                yield Finding(
                    Severity.WARNING if nic.read_request < best else Severity.NOTE,
                    f"{nic.path}/config, MaxReadReq: {nic.read_request} bytes; wanted is {wanted}",
                    f"setpci -s {nic.device.id} CAP_EXP+8.w={wanted.bit_length() - 8 << 12:x}:7000",
                )


def pcie_relaxed_ordering(facts: Facts) -> Iterator[Finding]:
    """Without it writes to memory wait for each other, which costs most to GPUs and on AMD's processors."""
    for nic in rails(facts):
        if nic.relaxed is False:
            yield Finding(
                Severity.NOTE,
                f"{nic.path}/config, Enable Relaxed Ordering: 0",
                f"setpci -s {nic.device.id} CAP_EXP+8.w=10:10, if the firmware or the kernel has not forbidden it",
            )


def pcie_ats(facts: Facts) -> Iterator[Finding]:
    """Rails of one model of which only some ask the IOMMU for addresses beforehand: one is slower than the others."""
    for model, nics in sorted(alike(facts).items()):
        known = [nic for nic in nics if nic.ats is not None]
        if len({nic.ats for nic in known}) > 1:
            values = ", ".join(f"{nic.path}/config, ATS Enable: {nic.ats:d}" for nic in known)
            yield Finding(
                Severity.WARNING,
                f"NICs {model}: {values}",
                "the same for all, then a reboot: mlxconfig -d PCI-ADDRESS set ATS_ENABLED=true, or =false; pci=noats "
                "on the kernel's command line switches it off everywhere",
            )


def pcie_acs(facts: Facts) -> Iterator[Finding]:
    """What a NIC and a GPU below one bridge write to each other goes up to the root complex and back."""
    for nic in rails(facts):
        for gpu in facts.hardware.gpus:
            shared = {*nic.place.above[1:]} & {*gpu.above}
            # The redirecting bridges are the ports below the switch that both share.
            ports = ({*nic.place.above, *gpu.above} - shared) & facts.hardware.redirecting.keys()
            if shared and ports:
                where = ", ".join(f"{facts.hardware.redirecting[port]}/config" for port in sorted(ports))
                commands = "; ".join(f"setpci -s {port} ECAP_ACS+6.w=0:c" for port in sorted(ports))
                yield Finding(
                    Severity.WARNING,
                    f"{where}: ACS redirects what {nic.device.id} and the GPU {gpu.address} send each other",
                    f"{commands}; not where virtual machines are given these devices",
                )
