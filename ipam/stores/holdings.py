"""The holdings of a network: leases, addresses kept back after a release, and remains of damaged leases.

All stores share these types.  Pure: the caller passes the time and the boot id.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface

from base.protocol.result import Address
from base.protocol.spec import Json
from ipam.ranges import Span
from ipam.stores import Owner


@dataclass(frozen=True)
class Lease:
    """The addresses of an attachment.  Equality ignores the time."""

    owner: Owner
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    boot: str
    time: str = field(compare=False)

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def to_json(self) -> Json:
        return {
            "containerID": self.owner.key.container_id,
            "ifname": self.owner.key.ifname,
            "boot": self.boot,
            "time": self.time,
            **({"sandbox": vars(self.owner.sandbox)} if self.owner.sandbox else {}),
            **{name: value for name, value in vars(self.owner.terms).items() if value},
            "addresses": [str(address) for address in self.addresses],
            "pod": self.owner.pod,
            "netns": self.owner.netns,
        }


@dataclass(frozen=True)
class Lost:
    """The remains of an unreadable lease: its addresses stay held until its key is deleted."""

    digest: bytes  # of the key, which is no longer readable
    ips: tuple[Address, ...]
    boot: str
    kept: str  # the file with the damaged lease, for people

    def to_json(self) -> Json:
        return {
            "unreadable": self.kept,
            "key": self.digest.hex(),
            "boot": self.boot,
            "addresses": [str(address) for address in self.ips],
        }


@dataclass(frozen=True)
class Kept:
    """Addresses reserved after their release: until ``cool`` from all pods, then until ``until`` for their sticky
    name.  Times are in seconds since the epoch.

    With ``mac``, a probe found another host on the link that uses the address.  With ``boot``, its last pod may still
    use it, so in that boot it is not allocated without a probe.
    """

    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    pod: str
    released: int
    cool: int
    sticky: str = ""
    until: int = 0
    mac: str = ""
    boot: str = ""

    @classmethod
    def of(cls, lease: Lease, now: int, boot: str, *, unused: bool = False, in_use: bool = False) -> "Kept | None":
        """What to keep back of a lease released now; None if its addresses are free at once."""
        if in_use and lease.addresses:
            return cls(lease.addresses, lease.owner.pod, now, now, until=now, boot=boot)
        terms = lease.owner.terms
        # A lease of an older boot does not cool down: by now no host on the link has its address cached.
        cool = now + (terms.cooldown if lease.boot == boot and not unused else 0)
        kept = cls(lease.addresses, lease.owner.pod, now, cool, terms.sticky, max(cool, now + terms.ttl))
        return None if kept.is_over(now, boot) or not lease.addresses else kept

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def is_over(self, now: int, boot: str) -> bool:
        if self.boot:
            return self.boot != boot
        # If the clock was set back, the addresses must not stay reserved for years.
        return not self.released <= now < self.until

    def to_json(self) -> Json:
        return {
            "released": self.released,
            "cool": self.cool,
            "sticky": self.sticky,
            "until": self.until,
            **({"mac": self.mac} if self.mac else {}),
            **({"boot": self.boot} if self.boot else {}),
            "addresses": [str(address) for address in self.addresses],
            "pod": self.pod,
        }


Holding = Lease | Lost | Kept


@dataclass(frozen=True)
class Listed:
    """A holding as read from the store, at that ``line``.  ``is_over``: its owner is provably dead, or its reservation
    has expired."""

    line: int
    holding: Holding
    is_over: bool


@dataclass(frozen=True)
class Contents:
    """All that a network holds, for people and for migration; read without a lock."""

    name: str
    place: str
    listed: tuple[Listed, ...] = ()
    # The ranges of each set at the latest ADD; empty if unknown.
    sets: tuple[tuple[Span, ...], ...] = ()
    # For each set, the interface of this node with its subnet; empty if the configuration has it.
    parents: tuple[str, ...] = ()
    # The unreadable lines, and the files in quarantine.
    unreadable: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()
    problem: str = ""  # why the leases could not be read
