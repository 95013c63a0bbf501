"""A device of this node for a pod, as a value."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a device."""

    PF = "pf"  # a PCI function that is not a VF, with or without VFs
    VF = "vf"
    SF = "sf"  # a device of the auxiliary bus with an interface
    NETDEV = "netdev"  # an interface without a device below it: a bond, a VLAN, a veth
    ACCELERATOR = "accelerator"  # a PCI function of class 12, possibly a VF, without an interface: an FPGA


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device and its character devices; a path is empty if the kernel has none.

    - ``uverbs``, ``umad``, ``issm``: "/dev/infiniband/uverbs0"; for the other two, one per port.
    """

    name: str
    uverbs: str = ""
    umad: tuple[str, ...] = ()
    issm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the node for a pod.

    - ``id``: its bus address ("0000:3b:00.2", "mlx5_core.sf.4"), or a NETDEV's interface name.
    - ``vendor``, ``product``: four hexadecimal digits without 0x, as in sysfs; an SF has its PCI parent's.
    - ``netdevs``: its interfaces in the host's namespace, without representors of other functions; none while a pod has
      them.
    - ``names``: its interfaces' names on the host, also while a pod has them; ``altnames``: their altnames, likewise.
    - ``link_type``: "ether" or "infiniband"; for a VF or SF without a visible interface, its PF's.
    - ``pf``: the PCI address of its PF or parent; its own for a PF, empty for a NETDEV.
    - ``pf_netdev``: that function's interface (the uplink representor in switchdev mode); empty if it has none.
      ``pf_altnames``: the altnames of that function.
    - ``index``: a VF's number on the PF, an SF's sfnum; -1 otherwise.
    - ``vfs``: a PF's current number of VFs.
    - ``numa``: its NUMA node, -1 if the machine does not report one.
    - ``pkeys``: the first key of each InfiniBand port, without the membership bit.
    - ``vdpa``: its vDPA device's type, "vhost" or "virtio"; empty without one.
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
    altnames: tuple[str, ...] = ()
    link_type: str = ""
    rdma: tuple[RdmaDevice, ...] = ()
    pf: str = ""
    pf_netdev: str = ""
    pf_altnames: tuple[str, ...] = ()
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
        """Why no pod may have the whole device, as ADD would refuse it (hardware/needed.py); empty if one may."""
        return self.reserved or self.used
