"""The checks of hpn doctor: each is a pure function from facts to findings.

docs/user/operations.md explains each finding by its id.
"""

from collections.abc import Mapping
from typing import Final

from ctl.doctor.checks import claims, devices, node, pci, programs, rdma, state
from ctl.doctor.model import Check

# Causes that keep pods from starting come first.
CHECKS: Final[Mapping[str, Check]] = {
    "plugin-missing": programs.plugin_missing,
    "plugin-differs": programs.plugin_differs,
    "daemon-differs": programs.daemon_differs,
    "socket-dead": programs.socket_dead,
    "agent-missing": programs.agent_missing,
    "way": programs.way,
    "resource-twice": programs.resource_twice,
    "resource-nobody-has": node.resource_nobody_has,
    "names-unlisted": node.names_unlisted,
    "configuration-refused": node.configuration_refused,
    "runtime-too-old": node.runtime_too_old,
    "node-file-refused": node.node_file_refused,
    "file-renamed": node.file_renamed,
    "node-not-running": node.node_not_running,
    "node-not-as-asked": node.node_not_as_asked,
    "slices-missing": claims.slices_missing,
    "slices-foreign": claims.slices_foreign,
    "rdma-mode": rdma.rdma_mode,
    "rdma-absent": rdma.rdma_absent,
    "rdma-cm-missing": rdma.rdma_cm_missing,
    "memlock": rdma.memlock,
    "gid-table-full": rdma.gid_table_full,
    "vf-guid-zero": rdma.vf_guid_zero,
    "device-nodes-differ": rdma.device_nodes_differ,
    "state-unsafe": state.state_unsafe,
    "record-unreadable": state.record_unreadable,
    "leases-unreadable": state.leases_unreadable,
    "attachment-dead": state.attachment_dead,
    "attachment-incomplete": state.attachment_incomplete,
    "attachment-stranded": state.attachment_stranded,
    "claim-unreadable": claims.claim_unreadable,
    "claim-waits": claims.claim_waits,
    "claim-gone": claims.claim_gone,
    "claim-stale": claims.claim_stale,
    "pool-nearly-full": state.pool_nearly_full,
    "blocks-unseen": state.blocks_unseen,
    "block-lost": state.block_lost,
    "blocks-full": state.blocks_full,
    "disk-nearly-full": state.disk_nearly_full,
    "kernel-too-old": devices.kernel_too_old,
    "clock-wrong": devices.clock_wrong,
    "clock-unsynchronized": devices.clock_unsynchronized,
    "rp-filter": devices.rp_filter,
    "mtu-differs": devices.mtu_differs,
    "speed-differs": devices.speed_differs,
    "port-down": devices.port_down,
    "traffic-class-differs": devices.traffic_class_differs,
    "traffic-class-lossy": devices.traffic_class_lossy,
    "pfc-differs": devices.pfc_differs,
    "vf-elsewhere": devices.vf_elsewhere,
    "irqbalance": pci.irqbalance,
    "irq-elsewhere": pci.irq_elsewhere,
    "pcie-link": pci.pcie_link,
    "pcie-read-request": pci.pcie_read_request,
    "pcie-relaxed-ordering": pci.pcie_relaxed_ordering,
    "pcie-ats": pci.pcie_ats,
    "pcie-acs": pci.pcie_acs,
    "not-readable": programs.not_readable,
}
