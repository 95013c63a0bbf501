"""What a node offers to its pods through kubelet, as values: devices, resources, and what one ID stands for.

The rest of this package turns one of these into another: ``config`` reads resources; ``offer`` puts the devices of
hardware/inventory.py into them, and decides what a container gets for its IDs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from hardware.model import Device, Kind

# IDs of one resource.  kubelet reads no message of more than 4 MiB, and so many IDs with their NUMA node take half of
# that.
MOST: Final = 50_000


class Sharing(Enum):
    """Who may have a device: one container, or many at a time."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True)
class PfName:
    """One entry of ``pfNames`` or ``rootDevices``: a PF, by its interface's name or its PCI address, and of its VFs or
    SFs those with one of these indexes; None for all of them.

    Ranges, because an SF's number may have 32 bits.  A selector has at most one entry for a name.
    """

    name: str
    indexes: tuple[range, ...] | None = None

    def has(self, index: int) -> bool:
        """Whether it means the PF's VF or SF of this index."""
        return self.indexes is None or any(index in part for part in self.indexes)


@dataclass(frozen=True)
class Selector:
    """Which devices: those that agree with every field that is not empty, and with one value of it.

    - ``rdma``: only those with an RDMA device; ``vdpa``: only those with a vDPA device of this type.
    - ``netdevs``: one of ``Device.names``; ``pf_names``: that of its PF, in any case;
      ``pf_addresses``: its PF's PCI address.  A PF is no VF of itself, so neither of these two selects one.
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

    CHOSEN = "chosen"  # of the chosen device: uverbs, and rdma_cm
    MANAGEMENT = "management"  # umad and issm too: with these a container can manage the whole InfiniBand subnet
    ALL = "all"  # of every device of the resource, as k8s-rdma-shared-dev-plugin gives them
    DIRECTORY = "directory"  # all that is in /dev/infiniband, as the old plugin's mode hca gives it
    NONE = "none"


@dataclass(frozen=True)
class Resource:
    """What pods ask for by one name.

    - ``prefix``, ``name``: together the extended resource's name, "rdma" and "hca_shared_devices_b".
    - ``count``: how many containers may share each device; for ``pooled`` how many may share all of them.
    - ``pooled``: an ID stands for all devices of the resource ("0" to "count - 1"), as with the peers' shared plugins.
    - ``selectors``: a device belongs to it if one of them agrees.
    - ``topology``: whether kubelet is told the NUMA nodes.
    - ``cdi``: devices are given by CDI names and not by device nodes.
    - ``extra``: what ``PCIDEVICE_..._INFO`` says besides, by address or for "*".
    - ``source``: where it stands in the file, for messages: "resourceList[2]".
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

    @property
    def full_name(self) -> str:
        return f"{self.prefix}/{self.name}"


@dataclass(frozen=True)
class Unit:
    """One ID that kubelet may give to a container, and the devices that it stands for.

    Exclusive: the device's own id.  Shared: "<id>-<number>", or "<number>" for all devices of a pooled resource.  Units
    of the same devices have one tuple of them.
    """

    id: str
    devices: tuple[Device, ...]

    @property
    def numa(self) -> frozenset[int]:
        """The NUMA nodes of its devices; empty where unknown."""
        return frozenset(device.numa for device in self.devices if device.numa >= 0)


@dataclass(frozen=True)
class Offer:
    """A resource, and the units of it that this node has now."""

    resource: Resource
    units: tuple[Unit, ...]


def devices_of(units: Iterable[Unit]) -> tuple[Device, ...]:
    """The devices of the units, each once; of many units with a long tuple it is gone through once."""
    lists = {id(unit.devices): unit.devices for unit in units}
    return tuple({device.id: device for devices in lists.values() for device in devices}.values())


@dataclass(frozen=True)
class Grant:
    """What a container gets for the IDs that kubelet chose: DevicePlugin's ContainerAllocateResponse.

    - ``nodes``: paths of device nodes, the same inside, for reading and writing.
    - ``cdi``: qualified CDI names ("hpn.io/net=nvidia.com_rail0_0000:3b:00.2").
    """

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True)
class PfRule:
    """What PFs shall be like.  What is None, or false for ``guids``, is left as it is.

    - ``source``: where it stands in the file: "pfs[2]".
    - ``mtu``: bytes; of the PF's interface and of its VFs'.
    - ``trust``: whether the PF trusts its VFs; ``guids``: whether InfiniBand VFs without GUIDs get ones.
    """

    selector: Selector
    source: str
    num_vfs: int | None = None
    mtu: int | None = None
    trust: bool | None = None
    guids: bool = False


@dataclass(frozen=True)
class Settings:
    """A whole configuration file, of whichever of the four dialects.

    - ``dialect``: whose file it is, by the program's name: "hpn", "k8s-rdma-shared-dev-plugin".
    - ``down_after``, ``up_after``: seconds that a link stays down, or up, before kubelet is told.
    - ``left_out``: a sentence for each resource that the file asks for and nobody gets, with the reason and the remedy.
    - ``notes``: what else a person should know of the file, a sentence each.
    - ``pfs``: what PFs are made to be.
    - ``rdma_exclusive``: whether an RDMA device is to be in one network namespace at a time; None leaves it as it is.
    """

    resources: tuple[Resource, ...]
    dialect: str
    down_after: float = 10.0
    up_after: float = 30.0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pfs: tuple[PfRule, ...] = ()
    rdma_exclusive: bool | None = None


class Refused(Exception):
    """The configuration cannot be taken; the message says why, and what to write."""
