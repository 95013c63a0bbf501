"""Who holds an address, by one readlink: addresses/ and index of a network's directory (drawn in files.py)."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cni import durable
from cni.result import Address

# So many held addresses met, and one listing is cheaper than asking on.
PROBES = 128


class Index:
    """Links from addresses to the lease of the key that holds them; the caller has the lock."""

    def __init__(self, network: Path) -> None:
        self.directory = network / "addresses"
        self._mark = network / "index"

    def holder(self, address: Address | str) -> str:
        """The key that holds the address, empty if none does."""
        try:
            return os.readlink(self.directory / str(address)).rpartition("/")[2].removesuffix(".json")  # noqa: PTH115
        except FileNotFoundError:
            return ""

    def addresses(self) -> list[str]:
        """Every address that is held."""
        return names(self.directory)

    def held_by(self, key: str) -> list[str]:
        """Every address the key holds; reads the whole index."""
        return [address for address in self.addresses() if self.holder(address) == key]

    def put(self, address: Address | str, key: str) -> None:
        if self.holder(address) != key:
            (self.directory / str(address)).symlink_to(f"../leases/{key}.json")

    def drop(self, address: Address | str, key: str) -> None:
        if self.holder(address) == key:
            (self.directory / str(address)).unlink()

    @property
    def trusted(self) -> bool:
        """Whether it agrees with the leases: no change was cut short, and no power."""
        try:
            return self._mark.read_bytes() == durable.boot_id().encode()
        except FileNotFoundError:
            return False

    def distrust(self) -> None:
        self._mark.unlink(missing_ok=True)

    def trust(self) -> None:
        # In place and not synced: half of it, or what an older boot left, is no boot's id.
        self._mark.write_text(durable.boot_id())

    def rebuild(self, held: Mapping[str, str], unreadable: Collection[str]) -> None:
        """Agree with the leases: every address in ``held`` has its key, and no other address any key but those
        whose lease could not be read, for which these links are all that is known."""
        self.distrust()
        durable.directory(self.directory)
        for address in self.addresses():
            key = self.holder(address)
            if held.get(address) != key and (address in held or key not in unreadable):
                self.drop(address, key)
        for address, key in held.items():
            self.put(address, key)
        self.trust()


@dataclass
class IndexBook:
    """A stores.Book for one choice."""

    index: Index
    mine: tuple[Address, ...]
    last: tuple[Address, ...]
    probes: int = 0

    def holder(self, address: Address) -> str:
        return self.index.holder(address)

    def is_held(self, address: Address) -> bool:
        if self.probes == PROBES:
            return str(address) in self._listing
        self.probes += 1
        return bool(self.holder(address))

    @cached_property
    def _listing(self) -> frozenset[str]:
        return frozenset(self.index.addresses())


def names(directory: Path) -> list[str]:
    """The directory's entries, none if it is absent."""
    try:
        return os.listdir(directory)  # noqa: PTH208  # names, not paths: there may be 60,000
    except FileNotFoundError:
        return []
