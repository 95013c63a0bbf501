"""What a network holds: leases, addresses kept back after a release, and what is left of leases that were damaged.

Every store speaks of these, whatever it keeps them in.  Pure, but for the id of this boot.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface

from cni.protocol.result import Address
from cni.protocol.spec import Json, Key
from cni.state import durable
from ipam.ranges import Span


@dataclass(frozen=True)
class Sandbox:
    """A network namespace: its inode, its cookie, and the namespaces of mounts and processes it was seen from."""

    inode: int
    cookie: int
    mounts: int
    processes: int


# Picks those namespaces that are provably gone; a namespace that cannot be looked for counts as alive.
Gone = Callable[[Collection[Sandbox]], Collection[Sandbox]]


@dataclass(frozen=True)
class Terms:
    """After its release nobody gets an address for ``cooldown`` seconds, and for ``ttl`` seconds only the same
    ``sticky`` name gets it."""

    cooldown: int = 0
    sticky: str = ""
    ttl: int = 0


@dataclass(frozen=True)
class Owner:
    """Whom a lease is for: the attachment's key, its pod ("namespace/name") and CNI_NETNS for people, the namespace
    that CNI_NETNS was, and what happens to the addresses after their release."""

    key: Key
    pod: str = ""
    netns: str = ""
    sandbox: Sandbox | None = None
    terms: Terms = Terms()


@dataclass(frozen=True)
class Lease:
    """What an attachment holds; two are equal where only the time differs."""

    owner: Owner
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    boot: str
    time: str = field(compare=False)

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def as_json(self) -> Json:
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
    """What is known of a lease that could not be read: its addresses stay held until its key is deleted."""

    digest: bytes  # of the key, which nobody can read any more
    ips: tuple[Address, ...]
    boot: str
    kept: str  # where the damaged lease is, for people

    def as_json(self) -> Json:
        return {
            "unreadable": self.kept,
            "key": self.digest.hex(),
            "boot": self.boot,
            "addresses": [str(address) for address in self.ips],
        }


@dataclass(frozen=True)
class Kept:
    """Addresses kept back after their release: from everybody until ``cool``, and until ``until`` from everybody but
    their sticky name.

    With ``mac`` another host on the link was found to have the address, so it is not ours to give.  With ``boot`` the
    pod that had it may still use it, and nobody gets it in that boot without a probe.
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
    def of(cls, lease: Lease, now: int, *, cools: bool, in_use: bool = False) -> "Kept | None":
        """What is kept back of a lease that is released now; None where its addresses are free at once."""
        if in_use and lease.addresses:
            return cls(lease.addresses, lease.owner.pod, now, now, until=now, boot=durable.boot_id())
        terms = lease.owner.terms
        cool = now + (terms.cooldown if cools else 0)
        kept = cls(lease.addresses, lease.owner.pod, now, cool, terms.sticky, max(cool, now + terms.ttl))
        return None if kept.is_over(now) or not lease.addresses else kept

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def is_over(self, now: int) -> bool:
        if self.boot:
            return self.boot != durable.boot_id()
        # A clock that was set back must not keep the addresses for years.
        return not self.released <= now < self.until

    def as_json(self) -> Json:
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
    """A holding as it was read back.  ``line`` is its number in the store; ``is_over`` says that its holder is provably
    dead, or that it was kept back for long enough."""

    line: int
    holding: Holding
    is_over: bool


@dataclass(frozen=True)
class Contents:
    """All that a network holds, for people and for migration: read without a lock."""

    name: str
    place: str
    listed: tuple[Listed, ...] = ()
    # The ranges of each set, as the latest ADD had them; empty where they are not known.
    sets: tuple[tuple[Span, ...], ...] = ()
    # Lines that could not be read, and files that were set aside.
    unreadable: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()
    problem: str = ""  # why nothing could be read
