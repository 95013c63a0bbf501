"""The interface that every store of leases implements (Store); access.py opens one.

A store holds the leases of one network and chooses no address.  It calls the caller's function on a consistent view and
commits the result, so a store that uses compare-and-swap may call the function again.

Each store is a folder in here that no module outside imports.  docs/develop/leases.md lists what a second store needs;
tests/unit/ipam/stores/test_store_contract.py tests it.
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
    """A network namespace: its inode, its cookie, and the mount and PID namespaces from which it was seen."""

    inode: int
    cookie: int
    mounts: int
    processes: int


# Returns those of the namespaces that are provably gone.  A namespace that cannot be searched for counts as alive.
Gone = Callable[[Collection[Sandbox]], Collection[Sandbox]]


@dataclass(frozen=True)
class Terms:
    """How long a released address stays reserved: ``cooldown`` seconds from everybody, ``ttl`` seconds for the
    ``sticky`` name."""

    cooldown: int = 0
    sticky: str = ""
    ttl: int = 0


@dataclass(frozen=True)
class Owner:
    """The attachment that owns a lease.  ``pod`` ("namespace/name") and ``netns`` (CNI_NETNS) are for people,
    ``sandbox`` is the namespace behind CNI_NETNS, ``terms`` apply after the release."""

    key: Key
    pod: str = ""
    netns: str = ""
    sandbox: Sandbox | None = None
    terms: Terms = Terms()


class Book(Protocol):
    """The view from which a caller chooses addresses."""

    @property
    def mine(self) -> tuple[Address, ...]:
        """The addresses that this owner holds already."""

    @property
    def last(self) -> tuple[Address, ...]:
        """The addresses allocated last, after which a search may start; only a hint."""

    @property
    def siblings(self) -> tuple[Address, ...]:
        """The addresses of the container's other attachments.  Each access searches all leases."""

    def holder(self, address: Address) -> str:
        """Describe the address's holder for a message; empty if the address is free."""

    def first_free(self, span: Span) -> Address | None:
        """The span's lowest free address."""

    def count(self, span: Span) -> int:
        """The number of the span's addresses that are not free: held, or kept back."""


# The spans of each range set.
Ranges = tuple[tuple[Span, ...], ...]
Choose = Callable[[Book], tuple[Ip, ...]]
# Picks the addresses to keep back, from those that other hosts use.  Both arguments map addresses to MACs: those in use
# now, and those kept back already.
KeepBack = Callable[[Mapping[Address, str], Mapping[Address, str]], Collection[Address]]


class Store(Protocol):
    """The leases of one network.  Every method raises IoFailure, and TryAgain while others keep the store busy."""

    def reserve(self, owner: Owner, choose: Choose, ranges: Ranges = ()) -> tuple[Ip, ...]:
        """Hold exactly the addresses that ``choose`` returns for the owner; durable on return.

        ``choose`` sees the earlier addresses of the owner's sticky name as the owner's own.  The store records
        ``ranges``, from which it chooses, for people.

        An exception of ``choose`` passes through, and nothing has changed.  Raises RecordUnreadable if the owner's
        lease cannot be read.
        """

    def decline(
        self, key: Key, taken: Mapping[Address, str], seconds: int, keep_back: KeepBack
    ) -> Mapping[Address, str]:
        """Remove from the key the addresses that other hosts use (with their MACs), like a decline in DHCP.  Reserve
        those that ``keep_back`` picks for so many seconds.

        Return all addresses that are kept back for this reason, with the MACs.
        """

    def release_conflicts(self) -> int:
        """Free the addresses that are kept back because other hosts use them; return their number."""

    def release(self, key: Key, *, unused: bool = False, in_use: bool = False) -> None:
        """Free what the key holds, if anything.

        ``unused`` addresses do not cool down.  Addresses that may be ``in_use`` are kept back until the next boot, or
        until a ``collect`` with ``probing``.

        Raises RecordUnreadable once, after the release, if the lease could not be read.
        """

    def check(self, key: Key) -> tuple[Address, ...]:
        """The addresses that the key holds.  Raises CheckFailed if there are none, or if its lease is unreadable."""

    def collect(
        self,
        valid: frozenset[Key] | None,
        attached: Callable[[], Collection[Key]] = tuple,
        *,
        probing: bool = False,
    ) -> int:
        """Free the leases of all keys that are not in ``valid``; return their number.  If ``valid`` is None, free the
        leases of an older boot and those of namespaces that are gone.

        With a list, spare the keys of ``attached`` too.  It is called after the leases were read, because an attachment
        has a record before it has a lease.  Also free addresses that were kept back for long enough; with ``probing``
        (every address is probed before use) those that may still be in use.

        Continues after errors and raises them as one at the end.
        """

    def rehearse(self, choose: Choose) -> None:
        """Check that ``reserve`` would serve a new owner: the store is writable and ``choose`` does not raise."""

    def look(self, look: Callable[[Book], T]) -> T:
        """Return what ``look`` returns.  While it runs, nothing in the store changes.  Its exceptions pass through."""

    def adopt(self, leases: "Sequence[Lease]", *, dry_run: bool = False) -> list[str]:
        """Hold leases that another IPAM gave, all or none; a lease that is here already is no error.

        Return a description of each collision, with leases here or among the new ones.  If there is any, nothing has
        changed.
        """

    def contents(self) -> "Contents":
        """All that the network holds, read without a lock and without a change.

        If the store cannot be read, ``Contents.problem`` gives the reason."""

    def verify(self) -> list[str]:
        """Describe each inconsistency of the store; change nothing."""


def none_gone(_boxes: Collection[Sandbox]) -> Collection[Sandbox]:
    """A ``Gone`` for callers that collect nothing."""
    return ()
