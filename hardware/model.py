"""A device of this node that a pod can be given, as a value."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a device is."""

    PF = "pf"  # a PCI function that is no VF, whether it can have VFs or not
    VF = "vf"
    SF = "sf"  # a device of the auxiliary bus that has an interface
    NETDEV = "netdev"  # an interface without a device below it: a bond, a VLAN, a veth
    ACCELERATOR = "accelerator"  # a PCI function of class 12, a VF too, which no interface belongs to: an FPGA


@dataclass(frozen=True)
class RdmaDevice:
    """An RDMA device and its character devices; a path is empty where the kernel has none.

    - ``uverbs``, ``umad``, ``issm``: "/dev/infiniband/uverbs0", and the same of each port for the other two.
    """

    name: str
    uverbs: str = ""
    umad: tuple[str, ...] = ()
    issm: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """One device of the node that a pod can be given.

    - ``id``: its bus address ("0000:3b:00.2", "mlx5_core.sf.4"), or for a NETDEV its interface's name.
    - ``vendor``, ``product``: four hexadecimal digits without 0x, as sysfs has them; of an SF its PCI parent's.
    - ``netdevs``: its interfaces in the host's namespace, without representors of other functions; none while a pod
      has them.
    - ``names``: what its interfaces are called on the host, also while a pod has them.
    - ``link_type``: "ether" or "infiniband"; of a VF or SF whose interface is not there, its PF's.
    - ``pf``: the PCI address of its PF or parent; its own for a PF, empty for a NETDEV.
    - ``pf_netdev``: that function's interface (the uplink representor's in switchdev mode); empty if it has none.
    - ``index``: of a VF its number on the PF, of an SF its sfnum; -1 otherwise.
    - ``vfs``: how many VFs a PF has now.
    - ``numa``: its NUMA node, -1 where the machine does not say.
    - ``pkeys``: the first one of each InfiniBand port, without the membership bit.
    - ``vdpa``: the type of its vDPA device, "vhost" or "virtio"; empty without one.
    - ``reserved``: why the host cannot spare it (it has the default route); empty if it can.
    - ``used``: what else the host would lose with its interface (it has an address); empty for nothing.
    """

    id: str
    kind: Kind
    vendor: str = ""
    product: str = ""
    driver: str = ""
    netdevs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    link_type: str = ""
    rdma: tuple[RdmaDevice, ...] = ()
    pf: str = ""
    pf_netdev: str = ""
    index: int = -1
    vfs: int = 0
    numa: int = -1
    acpi_index: str = ""
    pkeys: frozenset[int] = frozenset()
    vdpa: str = ""
    reserved: str = ""
    used: str = ""

    @property
    def needed(self) -> str:
        """Why no pod may have it whole, as ADD would refuse it (hardware/needed.py); empty if one may."""
        return self.reserved or self.used
