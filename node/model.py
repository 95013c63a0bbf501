"""The values of hpn node: devices and resources, units and offers, and a device file's settings.

``config`` reads resources from a file.  ``offer`` assigns the devices of hardware/inventory.py to them, and decides
what a container gets for the IDs that kubelet allocates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from base.protocol.memlock import Limit
from hardware.model import Device, Kind

# IDs of one resource.  kubelet reads messages of up to 4 MiB; this many IDs with their NUMA nodes fill half of that.
MOST: Final = 50_000
# What a node's administrator does for another number of VFs while pods have VFs.
DRAIN: Final = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data"
THEN: Final = "then run: systemctl reload hpn-node (in a DaemonSet: delete its pod), then: kubectl uncordon NODE"


class ConfigRefused(Exception):
    """hpn node cannot use the configuration; the message names the reason and the remedy."""


class Sharing(Enum):
    """How many containers may use a device at a time: one, or many."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True)
class PfName:
    """One entry of ``pfNames`` or ``rootDevices``: a PF, by interface name or PCI address.

    ``indexes`` limits the entry to these VFs or SFs of the PF; None means all.  They are ranges, because an SF's number
    has up to 32 bits.  A selector has at most one entry per name.
    """

    name: str
    indexes: tuple[range, ...] | None = None

    def has(self, index: int) -> bool:
        """Whether the entry covers the PF's VF or SF with this index."""
        return self.indexes is None or any(index in part for part in self.indexes)


@dataclass(frozen=True)
class Selector:
    """Selects the devices that match every field that is not empty, by any one of the field's values.

    - ``rdma``: only devices with an RDMA device; ``vdpa``: only devices with a vDPA device of this type.
    - ``netdevs``: matches one of ``Device.names`` or ``altnames``.
    - ``pf_names``, ``pf_addresses``: match the device's PF, by name or altname in any case, or by PCI address.  A PF is
      not its own VF, so neither selects a PF.
    """

    kinds: frozenset[Kind] = frozenset()
    vendors: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    acpi_indexes: frozenset[str] = frozenset()
    netdevs: frozenset[str] = frozenset()
    pf_names: tuple[PfName, ...] = ()
    pf_addresses: tuple[PfName, ...] = ()
    link_types: frozenset[str] = frozenset()
    pkeys: frozenset[int] = frozenset()
    rdma: bool = False
    vdpa: str = ""


class Verbs(StrEnum):
    """Which RDMA character devices a container gets for an ID."""

    CHOSEN = "chosen"  # of the allocated device: uverbs, and rdma_cm
    MANAGEMENT = "management"  # also umad and issm, with which a container can manage the whole InfiniBand subnet
    ALL = "all"  # of every device of the resource, as with k8s-rdma-shared-dev-plugin
    DIRECTORY = "directory"  # everything in /dev/infiniband, as with k8s-rdma-sriov-dev-plugin
    NONE = "none"


@dataclass(frozen=True)
class Resource:
    """What pods request from kubelet by one name.

    - ``prefix``, ``name``: the two parts of the extended resource's name, "rdma" and "hca_shared_devices_b".
    - ``count``: how many containers may share each device; with ``pooled``, how many may share all of them.
    - ``pooled``: each ID ("0" to "count - 1") stands for all devices of the resource, as in the shared plugins.
    - ``selectors``: the resource selects a device if any of them matches.
    - ``topology``: whether kubelet learns the NUMA nodes.
    - ``cdi``: containers get devices by CDI name instead of by device node.
    - ``extra``: additional members of ``PCIDEVICE_..._INFO``, by address or for "*".
    - ``source``: the resource's place in the file, for messages: "resourceList[2]".
    - ``kind``: the word of hpn's own file for its devices: "vf", "master"; empty for another dialect.
    - ``by_dra``: whether ResourceSlices offer its devices, and not the device plugin.
    - ``memlock``: the limit of locked memory for its containers; empty if the file has none.
    - ``takes_network``: its devices may have addresses and routes of the host, which their pods take.
    """

    prefix: str
    name: str
    sharing: Sharing
    selectors: tuple[Selector, ...]
    count: int = 1
    pooled: bool = False
    verbs: Verbs = Verbs.CHOSEN
    topology: bool = True
    cdi: bool = False
    vhost_net: bool = False
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    source: str = ""
    kind: str = ""
    by_dra: bool = False
    memlock: Limit = ""
    takes_network: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.prefix}/{self.name}"


@dataclass(frozen=True, slots=True)
class Unit:
    """One ID that kubelet may allocate, and the devices behind it.

    The ID is the device's own if it is exclusive, "<id>-<number>" if it is shared, and "<number>" in a pooled resource.
    Units of the same devices share one tuple.
    """

    id: str
    devices: tuple[Device, ...]

    @property
    def numa(self) -> frozenset[int]:
        """The NUMA nodes of the devices, without unknown ones."""
        return frozenset(device.numa for device in self.devices if device.numa >= 0)


@dataclass(frozen=True)
class Offer:
    """A resource with the units that this node has now."""

    resource: Resource
    units: tuple[Unit, ...]


def devices_of(units: Iterable[Unit]) -> tuple[Device, ...]:
    """The units' devices, each once.  A tuple that many units share is read once."""
    lists = {id(unit.devices): unit.devices for unit in units}
    return tuple({device.id: device for devices in lists.values() for device in devices}.values())


@dataclass(frozen=True)
class Grant:
    """What a container gets for its IDs: the device plugin API's ContainerAllocateResponse.

    - ``nodes``: paths of device nodes, the same inside the container, for reading and writing.
    - ``cdi``: qualified CDI names ("hpn.io/net=nvidia.com_rail0_0000:3b:00.2").
    """

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True)
class PfRule:
    """How the file wants the selected PFs.  None, or false for ``guids``, leaves a property as it is.

    - ``source``: the rule's place in the file: "pfs[2]".
    - ``mtu``: bytes; of the PF's interface and of its VFs'.
    - ``trust``: whether the PF trusts its VFs.
    - ``guids``: whether InfiniBand VFs without GUIDs get them.
    """

    selector: Selector
    source: str
    num_vfs: int | None = None
    mtu: int | None = None
    trust: bool | None = None
    guids: bool = False


@dataclass(frozen=True)
class Settings:
    """The contents of a device file, in any of the four dialects.

    - ``dialect``: the program that the file is for: "hpn", "k8s-rdma-shared-dev-plugin".
    - ``down_after``, ``up_after``: seconds that a link must be down, or up, before kubelet learns it.
    - ``left_out``: a sentence per resource in the file that hpn does not offer, with reason and remedy.
    - ``notes``: sentences with other remarks on the file.
    - ``pfs``: the rules for PFs.
    - ``rdma_exclusive``: whether an RDMA device is in one network namespace at a time; None leaves the mode as it is.
    - ``lldp``: whether the neighbors of PFs are heard.
    - ``labels``: whether the Node gets labels by its rails; ``hca_label``: and the label ``rdma=hca``.
    """

    resources: tuple[Resource, ...]
    dialect: str
    down_after: float = 10.0
    up_after: float = 30.0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pfs: tuple[PfRule, ...] = ()
    rdma_exclusive: bool | None = None
    lldp: bool = False
    labels: bool = False
    hca_label: bool = False
