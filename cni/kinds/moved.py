"""What the journal keeps of a moved device, whatever its kind: what it was on the host, and what it is to be."""

from dataclasses import dataclass
from typing import Final, Protocol

from cni.kernel import bpf
from cni.kernel.links import IFF_ALLMULTI, IFF_NOARP, IFF_PROMISC, IFF_UP, Link
from cni.parts.rdma import Devices
from cni.protocol.spec import Json

# A person sets them, and no move does away with any but the first.
FLAGS: Final = IFF_UP | IFF_NOARP | IFF_PROMISC | IFF_ALLMULTI


@dataclass(frozen=True)
class Netdev:
    """A netdev as the host had it; ``flags`` of ``FLAGS``.  ``programs`` are the ids of the BPF programs that XDP and
    tcx ran for it; no program gets the id of an earlier one."""

    name: str
    mac: str
    mtu: int
    txqlen: int
    alias: str
    flags: int
    altnames: tuple[str, ...]
    programs: tuple[int, ...] = ()

    @classmethod
    def of(cls, link: Link) -> "Netdev":
        """Of a link in our namespace.  Raises OSError."""
        flags, programs = link.flags & FLAGS, (*link.xdp_programs.values(), *bpf.on_tcx(link.index))
        return cls(link.name, link.mac, link.mtu, link.txqlen, link.alias, flags, link.altnames, programs)

    @classmethod
    def from_json(cls, body: Json | None) -> "Netdev | None":
        """Of a plan's ``home``, whose tuples JSON turned into lists; a record of an older version has no programs."""
        if body is None:
            return None
        lists = {key: tuple(body.get(key, ())) for key in ("altnames", "programs")}
        return cls(**{**body, **lists})


@dataclass(frozen=True)
class Software:
    """A link that no device is behind, so that it has no bus address: of this kind, known by its ifindex on the host,
    and by the one that it is given in the pod, which no other link has there.  ``over`` is the ifindex of the host's
    link that it is over or whose peer it is; 0 for none, and for one in another namespace."""

    kind: str
    at_home: int
    in_pod: int
    over: int = 0

    @classmethod
    def of(cls, link: Link, in_pod: int) -> "Software":
        return cls(link.kind, link.index, in_pod, link.parent if link.parent_nsid is None else 0)


class Moved(Protocol):
    """What a plan says of the device: its bus address, or what is known of a link without one, and whether the device
    is there still; the netdev's name on the host, and all that it was there (None: a userspace driver has the device);
    the MTU it gets in the pod (0: it keeps its own), its ifindex there (0: not known yet), and the RDMA devices that
    move with it."""

    @property
    def software(self) -> Software | None: ...
    @property
    def device(self) -> str: ...
    @property
    def exists(self) -> bool: ...
    @property
    def netdev(self) -> str: ...
    @property
    def home(self) -> Netdev | None: ...
    @property
    def mtu(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def rdma(self) -> Devices: ...
