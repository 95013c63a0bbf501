"""What every attachment holds: leases/ and quarantine/ of a network's directory (drawn in files.py)."""

from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path

from cni import durable
from cni.errors import RecordUnreadable
from cni.result import Address
from cni.spec import Json, Key
from ipam.stores import Owner
from ipam.stores.index import names


@dataclass(frozen=True)
class Lease:
    """What a lease's file says; two are equal where only the time differs."""

    owner: Owner
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    boot: str
    time: str = field(compare=False)

    @property
    def ips(self) -> tuple[Address, ...]:
        return tuple(address.ip for address in self.addresses)

    def body(self) -> Json:
        return {
            "containerID": self.owner.key.container_id,
            "ifname": self.owner.key.ifname,
            "addresses": [str(address) for address in self.addresses],
            "pod": self.owner.pod,
            "netns": self.owner.netns,
            "boot": self.boot,
            "time": self.time,
        }

    @classmethod
    def of(cls, body: Json) -> "Lease":
        """Raises KeyError, TypeError, ValueError where the body is not a lease's."""
        owner = Owner(Key(body["containerID"], body["ifname"]), body["pod"], body["netns"])
        return cls(owner, tuple(ip_interface(address) for address in body["addresses"]), body["boot"], body["time"])


class Documents:
    """One file for each lease; ``log`` gets a line for each that could not be read."""

    def __init__(self, network: Path, log: list[str]) -> None:
        self.directory = network / "leases"
        self.quarantine = network / "quarantine"
        self._log = log

    def read(self, key: Key) -> Lease | None:
        """The key's lease.  Raises RecordUnreadable, and then it has been set aside."""
        path = self._path(key)
        try:
            return self._parse(path)
        except RecordUnreadable as e:
            aside = durable.set_aside(path, self.quarantine)
            self._log.append(f"{e.msg}; moved to {aside}, its addresses stay held until {key} is deleted")
            raise

    def _parse(self, path: Path) -> Lease | None:
        body = durable.read(path)
        try:
            return None if body is None else Lease.of(body)
        except (KeyError, TypeError, ValueError) as e:
            raise RecordUnreadable(f"{path} is not a lease ({type(e).__name__}: {e})") from e

    def write(self, lease: Lease) -> None:
        durable.write(self._path(lease.owner.key), lease.body())

    def remove(self, key: Key) -> None:
        """Also what an interrupted write left; absent is fine."""
        durable.remove(self._path(key))

    def attachments(self) -> list[Key]:
        """Every key with a file here: a lease, one set aside, or what an interrupted write left."""
        files = {name.removesuffix(".tmp") for name in names(self.directory)} | self._aside()
        parts = (name.removesuffix(".json").partition(":") for name in sorted(files) if name.endswith(".json"))
        return [Key(container_id, ifname) for container_id, _, ifname in parts]

    def set_aside(self) -> set[str]:
        """The keys of those in quarantine/."""
        return {name.removesuffix(".json") for name in self._aside()}

    def clean(self) -> None:
        """Remove what interrupted writes left."""
        for name in names(self.directory):
            if name.endswith(".tmp"):
                (self.directory / name).unlink()

    def _aside(self) -> set[str]:
        # durable.set_aside appends a number.
        return {name.rpartition(".")[0] for name in names(self.quarantine)}

    def _path(self, key: Key) -> Path:
        return self.directory / f"{key}.json"
