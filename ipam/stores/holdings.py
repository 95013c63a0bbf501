"""What a network holds: leases, addresses kept back after a release, and what is left of leases that were damaged.

Every store speaks of these, whatever it keeps them in.  Pure; the caller says what time it is and which boot.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface

from base.protocol.result import Address
from base.protocol.spec import Json
from ipam.ranges import Span
from ipam.stores import Owner


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
    """What is known of a lease that could not be read: its addresses stay held until its key is deleted."""

    digest: bytes  # of the key, which nobody can read any more
    ips: tuple[Address, ...]
    boot: str
    kept: str  # where the damaged lease is, for people

    def to_json(self) -> Json:
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
    def of(cls, lease: Lease, now: int, boot: str, *, unused: bool = False, in_use: bool = False) -> "Kept | None":
        """What is kept back of a lease that is released now; None where its addresses are free at once."""
        if in_use and lease.addresses:
            return cls(lease.addresses, lease.owner.pod, now, now, until=now, boot=boot)
        terms = lease.owner.terms
        # A lease of an older boot does not cool down: by now nobody on the link remembers its address.
        # guard below: cool (unused else 0), unused (unused)
        cool = now + (terms.cooldown if lease.boot == boot and not unused else 0)
        kept = cls(lease.addresses, lease.owner.pod, now, cool, terms.sticky, max(cool, now + terms.ttl))
        return None if kept.is_over(now, boot) or not lease.addresses else kept

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def is_over(self, now: int, boot: str) -> bool:
        if self.boot:
            return self.boot != boot
        # A clock that was set back must not keep the addresses for years.
        return not self.released <= now < self.until  # guard: clock-set-back (released), kept-until = True

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
