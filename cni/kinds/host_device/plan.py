"""What the journal keeps of a host's interface in a pod."""

from dataclasses import asdict, dataclass

from cni.kernel import sysfs
from cni.kinds.moved import Netdev, Software
from cni.parts.rdma import Devices
from cni.protocol.spec import Json


@dataclass(frozen=True)
class Plan:
    """One interface (cni/kinds/moved.py's ``Moved``).

    ``device`` is the bus address, and ``incarnation`` tells the device from another that may come to be there; empty
    and 0 where there is ``software`` in its place.  ``pci`` is the PCI function that the device is or is a part of,
    ``pf`` that function's PF if it is a VF.  ``home`` is all that the interface was on the host, None where a userspace
    driver has the device.
    """

    device: str
    incarnation: int
    pci: str
    pf: str
    netdev: str
    home: Netdev | None
    software: Software | None
    mtu: int
    rdma: Devices
    rdma_devs: list[str]
    index: int = 0

    @property
    def exists(self) -> bool:
        """Whether the device is there still; of software that is not to be told from here."""
        return self.software is not None or sysfs.incarnation(self.device) == self.incarnation

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Json) -> "Plan":
        """Of ``to_json``, which JSON turned tuples into lists of."""
        software = body["software"] and Software(**body["software"])
        return cls(**{**body, "home": Netdev.from_json(body["home"]), "software": software})
