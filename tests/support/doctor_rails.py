"""The cases of doctor_cases.py about the machine and its devices; CASES has all."""

from collections.abc import Iterator

from support.doctor_cases import CASES, NOTE, WARNING, case, changed
from support.doctor_node import ALIVE, GPU_PORT, PFS, PORTS, VF, Node, space

from base.protocol.spec import Key
from ctl.doctor.model import Severity
from hardware import neighbors
from hardware.neighbors import Neighbor

__all__ = ["CASES"]


@case
def kernel_too_old(node: Node) -> Iterator[Severity]:
    with changed(node.at("proc/sys/kernel/osrelease"), "5.4.0-216-generic\n"):
        yield WARNING


@case
def rp_filter(node: Node) -> Iterator[Severity]:
    node.at("proc/sys/net/ipv4/conf/default/rp_filter").write_text("1\n")
    node.save(ALIVE, key=Key(ALIVE.key.container_id, "hpn1"), result={"ips": [{"address": "10.1.0.3/24"}]})
    yield WARNING
    node.save(ALIVE, rules=[{"table": 100}])


@case
def mtu_differs(node: Node) -> Iterator[Severity]:
    with changed(node.pci(PFS[1]) / "net/rail1/mtu", "1500\n"):
        yield WARNING


@case
def speed_differs(node: Node) -> Iterator[Severity]:
    with changed(node.pci(PFS[1]) / "net/rail1/speed", "100000\n"):
        yield WARNING


@case
def wiring_differs(node: Node) -> Iterator[Severity]:
    heard = {pf: Neighbor("mac", "02:00:00:00:00:01", "ifname", f"Eth{pf[5:7]}", "leaf0") for pf in PFS}
    neighbors.write({PFS[0]: heard[PFS[0]]}, node.at(f"{neighbors.FILE}".lstrip("/")))
    yield WARNING
    neighbors.write(heard, node.at(f"{neighbors.FILE}".lstrip("/")))


@case
def port_down(node: Node) -> Iterator[Severity]:
    with changed(node.pci(PFS[1]) / "infiniband/mlx5_1/ports/1/state", "1: DOWN\n"):
        yield WARNING


@case
def traffic_class_differs(node: Node) -> Iterator[Severity]:
    paths = [node.at(f"sys/class/infiniband/mlx5_{number}/tc/1/traffic_class") for number in (0, 1)]
    for path, value in zip(paths, (106, 0), strict=True):
        path.write_text(f"Global tclass={value}\n")
    yield WARNING
    paths[1].write_text("Global tclass=106\n")


@case
def irq_elsewhere(node: Node) -> Iterator[Severity]:
    for number, cpus in ((0, "0-3"), (1, "4-7")):
        node.at(f"sys/devices/system/node/node{number}/cpulist").write_text(f"{cpus}\n")
    (node.pci(PFS[0]) / "msi_irqs/50").write_text("msix\n")
    for irq, cpus in ((40, "4"), (50, "6-7"), (41, "2")):
        node.at(f"proc/irq/{irq}/effective_affinity_list").write_text(f"{cpus}\n")
    yield WARNING
    node.at("proc/irq/50/effective_affinity_list").write_text("3,6\n")


@case
def vf_elsewhere(node: Node) -> Iterator[Severity]:
    node.sys.into_a_pod(node.pci(VF))
    yield NOTE
    node.sys.home(node.pci(VF))


@case
def irqbalance(node: Node) -> Iterator[Severity]:
    node.process(700, "irqbalance", "8388608", "--foreground", "--banirq=40")
    yield WARNING
    node.process(700, "irqbalance", "8388608", "--foreground", "--banmod=mlx5_core")


@case
def pcie_link(node: Node) -> Iterator[Severity]:
    with changed(node.pci(PFS[0]) / "current_link_width", "8\n"):
        yield WARNING


@case
def pcie_read_request(node: Node) -> Iterator[Severity]:
    config = node.pci(PFS[0]) / "config"
    config.write_bytes(space(read_request=512))
    yield WARNING
    config.write_bytes(space())


@case
def pcie_relaxed_ordering(node: Node) -> Iterator[Severity]:
    config = node.pci(PFS[0]) / "config"
    config.write_bytes(space(relaxed=False))
    yield NOTE
    config.write_bytes(space())


@case
def pcie_ats(node: Node) -> Iterator[Severity]:
    for number, value in enumerate((0x8000, 0x0001)):  # enabled; not, and smallest pages of 8 KiB
        (node.pci(PFS[number]) / "config").write_bytes(space(ats=value))
    yield WARNING
    (node.pci(PFS[0]) / "config").write_bytes(space())  # as with firmware that does not offer it


@case
def pcie_acs(node: Node) -> Iterator[Severity]:
    for port in (PORTS[PFS[1]], GPU_PORT):  # the first has no GPU nearby
        (node.pci(port) / "config").write_bytes(space(acs=0x1D))
    yield WARNING
    (node.pci(GPU_PORT) / "config").write_bytes(space(acs=0x11))
