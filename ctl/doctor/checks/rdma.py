"""Checks of RDMA: the kernel's mode, and the needs of programs in pods."""

from collections.abc import Iterator

from base.protocol.memlock import KEEP
from cni import attachment_state
from ctl.doctor.machine import RUNTIMES
from ctl.doctor.model import Facts, Finding, Severity
from hardware.model import Kind
from hardware.rdma_devices import ACTIVE, Hca
from node.model import Resource, Sharing, Verbs

# In a fuller GID table, a few more pods find no free entry.
_FULL = 0.9
_NO_GUID = "0000:0000:0000:0000"
_WANTS = {"exclusive": "exclusive", "shared": "shared", "rxe": "shared"}


def rdma_mode(facts: Facts) -> Iterator[Finding]:
    """A configuration needs the other mode: ADD fails, or containers cannot open their RDMA device."""
    hardware = facts.hardware
    if not hardware.rdma_mode:
        return
    for source, wanted in _wishes(facts):
        if wanted != hardware.rdma_mode:
            yield Finding(
                Severity.ERROR,
                f"{source}, but {hardware.rdma_mode_path} shows {hardware.rdma_mode} mode",
                f"rdma system set netns {wanted}, while no network namespace but the host's exists; for later boots "
                f"set rdmaNamespaces: {wanted} in the device file",
            )


def _wishes(facts: Facts) -> Iterator[tuple[str, str]]:
    """The sources that need an RDMA mode, each with that mode."""
    attached = [(one.file, one.conf) for one in facts.state.attachments if one.alive]
    for source, conf in (*((one.source, one.conf) for one in facts.networks if not one.refused), *attached):
        rdma = conf.get("rdma")
        mode = rdma.get("mode") if isinstance(rdma, dict) else None
        if isinstance(mode, str) and mode in _WANTS:
            yield f"{source}: rdma.mode is {mode}", _WANTS[mode]
    file = facts.node_file
    if file and file.settings:
        if file.settings.rdma_exclusive is not None:
            wanted = "exclusive" if file.settings.rdma_exclusive else "shared"
            yield f"{file.path}: rdmaNamespaces is {wanted}", wanted
        for one in file.settings.resources:
            if one.sharing is Sharing.SHARED and one.verbs is not Verbs.NONE:
                yield f"{file.path}: {one.source} shares one RDMA device among containers", "shared"


def rdma_absent(facts: Facts) -> Iterator[Finding]:
    """The kernel has no RDMA, so the RDMA checks are silent.  This is an error if a network needs RDMA."""
    if facts.hardware.rdma_mode or facts.hardware.rdma_mode_path in dict(facts.unread):
        return
    needing = [source for source, _ in _wishes(facts)]
    needing += [
        f"{one.source}: rdma.required"
        for one in facts.networks
        if isinstance(rdma := one.conf.get("rdma"), dict) and rdma.get("required") is True
    ]
    evidence = f"{facts.hardware.rdma_mode_path} does not exist: the kernel has no RDMA"
    remedy = "load the NIC's RDMA driver: modprobe mlx5_ib"
    if needing:
        yield Finding(Severity.ERROR, f"{evidence}; {'; '.join(needing)}", remedy)
    else:
        yield Finding(Severity.NOTE, evidence, f"nothing, if no pod needs RDMA; else {remedy}")


def rdma_cm_missing(facts: Facts) -> Iterator[Finding]:
    """Containers get no such node, and ib_write_bw -R finds no event channel."""
    hardware = facts.hardware
    if hardware.rdma_cm or hardware.rdma_cm_path in dict(facts.unread):
        return
    # An EFA has no RDMA CM, and its port no link layer.
    layers = {port.link_layer for nic in hardware.nics for hca in nic.hcas for port in hca.ports}
    if hardware.rdma_mode and any(nic.device.rdma for nic in hardware.nics) and layers != {"Unknown"}:
        yield Finding(
            Severity.WARNING,
            f"{hardware.rdma_cm_path} does not exist",
            "modprobe rdma_ucm; for the next boot: echo rdma_ucm >/etc/modules-load.d/rdma_ucm.conf",
        )


def memlock(facts: Facts) -> Iterator[Finding]:
    """Containers inherit their runtime's limit of locked memory, unless hpn node raises it by CDI.  Without
    CAP_IPC_LOCK they cannot register more."""
    if not any(nic.device.rdma for nic in facts.hardware.nics):
        return
    settings = facts.node_file.settings if facts.node_file else None
    kept = [one.full_name for one in settings.resources if _keeps_limit(one)] if settings else []
    if settings and not kept:
        return
    way = f"set cdi: true, or by: dra, in the device file for {', '.join(kept)}; or " if kept else ""
    for process in facts.machine.processes:
        if process.name in RUNTIMES and process.memlock is not None:
            yield Finding(
                Severity.WARNING,
                f"{process.path}/limits of {process.name}: Max locked memory is {process.memlock} bytes",
                f"{way}set LimitMEMLOCK=infinity below [Service] with systemctl edit {process.name}, and restart it; "
                "or give IPC_LOCK to containers that run as root",
            )


def _keeps_limit(resource: Resource) -> bool:
    """Whether containers get its RDMA devices with their runtime's limit, and the file does not want that."""
    gives_rdma = resource.verbs is not Verbs.NONE and resource.kind != "accelerator"
    return gives_rdma and not (resource.cdi or resource.by_dra) and resource.memlock != KEEP


def gid_table_full(facts: Facts) -> Iterator[Finding]:
    """Addresses of further macvlans and ipvlans will get no GID."""
    for table in facts.hardware.tables:
        if table.size and table.used >= _FULL * table.size:
            yield Finding(
                Severity.WARNING,
                f"{table.path}: {table.used} of {table.size} entries are used",
                "attach fewer pods to this device, or use VFs, which have a table each; hpn gc, if dead pods hold some",
            )


def vf_guid_zero(facts: Facts) -> Iterator[Finding]:
    """The port of an InfiniBand VF without a GUID never becomes active.  Over Ethernet, RDMA CM fails.  mlx5 derives
    the GUID from the MAC that the VF's PF had for it when the driver was bound."""
    for nic in facts.hardware.nics:
        device = nic.device
        for hca in nic.hcas if device.kind is Kind.VF else ():
            if hca.node_guid == _NO_GUID:
                remedy = "set guids: true in pfs of the device file, or guid in the network's configuration"
                if device.link_type != "infiniband":
                    pf, at = device.pf_netdev or "PF", f"/sys/bus/pci/drivers/{device.driver}"
                    remedy = f"ip link set {pf} vf {device.index} mac MAC; echo {device.id} >{at}/unbind, >{at}/bind"
                yield Finding(Severity.WARNING, f"{hca.path}/node_guid: {hca.node_guid}", remedy)


def vf_port_down(facts: Facts) -> Iterator[Finding]:
    """The port of an InfiniBand VF with a GUID is not active, although its PF's is."""
    active = {nic.device.id for nic in facts.hardware.nics if any(map(_is_active, nic.hcas))}
    for nic in facts.hardware.nics:
        device = nic.device
        if device.kind is not Kind.VF or device.link_type != "infiniband" or device.pf not in active:
            continue
        for hca in nic.hcas:
            if hca.node_guid != _NO_GUID and hca.ports and not _is_active(hca):
                yield Finding(
                    Severity.WARNING,
                    f"{hca.path}/ports/{hca.ports[0].number}/state: {hca.ports[0].state_name}; the PF's is active",
                    f"ip link set {device.pf_netdev or 'PF'} vf {device.index} state auto, or guids: true in pfs of "
                    "the device file; if it stays, the subnet manager does not support virtual ports",
                )


def _is_active(hca: Hca) -> bool:
    return any(port.state == ACTIVE for port in hca.ports)


def device_nodes_differ(facts: Facts) -> Iterator[Finding]:
    """A container may not open its RDMA device, because the device was renumbered after Allocate."""
    for one in facts.state.attachments:
        if one.lost_nodes and one.state == attachment_state.ATTACHED:
            yield Finding(
                Severity.WARNING,
                f"{one.file}: {one.title}: {one.device} has lost {', '.join(one.lost_nodes)}",
                "delete the pod: its successor gets the present device nodes; or set cdi: true in the device file",
            )
