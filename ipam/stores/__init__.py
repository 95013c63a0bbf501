"""Where the leases of a network are kept: what every store must do (Store).  access.py opens one.

A store holds the leases of one network.  Who gets which address is never its decision: it is handed a function, runs it
on a consistent view and commits what the function returns.  So a store that has to try again (compare and swap) may
call the function again.

Each store is a folder in here, and nobody outside imports from it.  What a second one would need is in
docs/develop/leases.md; what it has to do is in tests/unit/ipam/stores/test_store_contract.py.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from base.protocol.result import Address, Ip
from base.protocol.spec import Key
from ipam.ranges import Span

if TYPE_CHECKING:
    # VERSION needs no lease.
    from ipam.stores.holdings import Contents, Lease

T = TypeVar("T")

# Seconds to wait for a store that others use.  A change takes a fraction of a millisecond, nearly all of it the disk's.
LOCK_TIMEOUT: Final = 10.0


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


class Book(Protocol):
    """The view a choice is made from."""

    @property
    def mine(self) -> tuple[Address, ...]:
        """What this owner holds already."""

    @property
    def last(self) -> tuple[Address, ...]:
        """The addresses given last: a hint to start after, and possibly of no use."""

    @property
    def siblings(self) -> tuple[Address, ...]:
        """What other attachments of this owner's container hold; asking costs a search through all leases."""

    def holder(self, address: Address) -> str:
        """In words, who holds the address; empty if nobody does."""

    def first_free(self, span: Span) -> Address | None:
        """The span's lowest address that nobody holds."""

    def count(self, span: Span) -> int:
        """How many addresses of the span are not free: held, or kept back."""


# The addresses that each range set has to give.
Ranges = tuple[tuple[Span, ...], ...]
Choose = Callable[[Book], tuple[Ip, ...]]
# Picks from the addresses that other hosts answer for those to keep back.  It is given these and what is kept back
# already, each with MACs.
KeepBack = Callable[[Mapping[Address, str], Mapping[Address, str]], Collection[Address]]


class Store(Protocol):
    """The leases of one network.  Every method raises IoFailure, and TryAgain if others keep it busy."""

    def reserve(self, owner: Owner, choose: Choose, ranges: Ranges = ()) -> tuple[Ip, ...]:
        """Hold the addresses that ``choose`` picks for the owner, and nothing else; permanent when this returns.

        ``choose`` sees what the owner's sticky name had before as the owner's own.  ``ranges`` are the ranges that it
        picks from; they are kept for people.

        What ``choose`` raises passes through, and nothing has changed.  Raises RecordUnreadable if the owner has a
        lease that cannot be read.
        """

    def decline(
        self, key: Key, taken: Mapping[Address, str], seconds: int, keep_back: KeepBack
    ) -> Mapping[Address, str]:
        """Take from the key the addresses that other hosts have, with their MACs, as a client declines them in DHCP.
        Those that ``keep_back`` picks go to nobody for so many seconds.

        All addresses that are kept back like this then, with the MACs.
        """

    def release_conflicts(self) -> int:
        """Free the addresses that were kept back because other hosts had them; how many."""

    def release(self, key: Key, *, unused: bool = False, in_use: bool = False) -> None:
        """Free whatever the key holds; it is fine if that is nothing.

        ``unused`` addresses do not cool down.  Addresses that may be ``in_use`` are kept back until the next boot, or
        until ``collect`` is told that they are probed for before anybody gets them.

        Raises RecordUnreadable, once and after the release, if the lease could not be read.
        """

    def check(self, key: Key) -> tuple[Address, ...]:
        """The addresses the key holds.  Raises CheckFailed if there are none, or if its lease cannot be read."""

    def collect(
        self,
        valid: frozenset[Key] | None,
        attached: Callable[[], Collection[Key]] = tuple,
        *,
        probing: bool = False,
    ) -> int:
        """Free the leases of all keys that are not in ``valid``; if that is None, free the leases of an older boot and
        those whose namespace is gone.

        With a list, the keys of ``attached`` are spared too.  That is called after the leases were read, because an
        attachment has a record before it has a lease.  Addresses that were kept back for long enough go as well.  With
        ``probing``, when every address is probed for before it is given, those go too that may still be in use.

        How many leases.  Goes on after errors and raises them as one at the end.
        """

    def rehearse(self, choose: Choose) -> None:
        """See that ``reserve`` would serve a newcomer: the store can be written and ``choose`` does not raise."""

    def look(self, look: Callable[[Book], T]) -> T:
        """What ``look`` returns, which sees what is held and may act by that: nothing changes before it returns.

        What it raises passes through.
        """

    def adopt(self, leases: "Sequence[Lease]", *, dry_run: bool = False) -> list[str]:
        """Hold what another IPAM gave, all or nothing; a lease that is here already is fine.

        In words, what collides with leases here or among the new ones; if anything does, nothing has changed.
        """

    def contents(self) -> "Contents":
        """All that the network holds, read without a lock and without changing anything.

        A store that cannot be read is no error: ``Contents.problem`` says why."""

    def verify(self) -> list[str]:
        """In words, what is wrong with the store; nothing is changed."""


def none_gone(_boxes: Collection[Sandbox]) -> Collection[Sandbox]:
    """For callers that collect nothing."""
    return ()
