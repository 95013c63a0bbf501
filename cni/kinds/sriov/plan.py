"""What the journal keeps of a device that is moved: what it was on the host, and what it is to be."""

from dataclasses import asdict, dataclass, replace

from cni.kernel import sysfs
from cni.kernel.vf import Vf
from cni.kinds.moved import Netdev
from cni.parts.rdma import Devices
from cni.protocol.spec import Json


@dataclass(frozen=True)
class Port:
    """What an InfiniBand function has beside the netdev: its driver, its RDMA devices by name, and the mode that
    its netdev was in."""

    driver: str
    rdma: tuple[str, ...]
    mode: str


@dataclass(frozen=True)
class Plan:
    """One device, known by its PCI address and, because another may come to be there, its ``incarnation``
    (kernel/sysfs.py).

    ``pf`` is its PF's address and ``number`` its index there; empty and -1 for a PF that is moved itself.
    ``netdev`` is its name on the host, and ``home`` all that it was there; empty and None where a userspace driver
    has the device.  ``before`` and ``wanted`` are attributes on the PF (kernel/vf.py), ``mac`` what the netdev
    itself gets, ``rdma`` what moves with it, ``rdma_devs`` the names of the RDMA devices that the pod has, moved or
    shared, ``port`` what there is besides where the link is InfiniBand, and ``index`` its ifindex in the pod once it
    is there.
    """

    device: str
    incarnation: int
    pf: str
    number: int
    netdev: str
    home: Netdev | None
    before: Vf
    wanted: Json
    mac: str
    mtu: int
    rdma: Devices
    rdma_devs: list[str]
    port: Port | None = None
    index: int = 0

    @property
    def software(self) -> None:
        """Device.Moved: there is a function behind each."""
        return None

    @property
    def exists(self) -> bool:
        return sysfs.incarnation(self.device) == self.incarnation

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Json) -> "Plan":
        """Of ``to_json``, which JSON turned tuples into lists of."""
        port = body["port"] and Port(**{**body["port"], "rdma": tuple(body["port"]["rdma"])})
        return cls(
            **{**body, "home": Netdev.from_json(body["home"]), "port": port, "before": Vf.from_json(body["before"])}
        )

    def at(self, index: int) -> "Plan":
        return replace(self, index=index)
