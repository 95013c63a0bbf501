"""The types that a store of leases and its callers share; access.py opens a store.

A store holds the leases of one network and chooses no address.  It calls the caller's function on a consistent view and
commits the result.  Modules outside know a store by these types only.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from base.protocol.result import Address, Ip
from base.protocol.spec import Key
from base.state.locks import SHARED
from ipam.ranges import Span

if TYPE_CHECKING:
    from ipam.stores.files.store import FileStore

    Store = FileStore
else:
    Store = object  # for annotations only: VERSION needs no store

# Seconds to wait for a store that others use.  A change takes a fraction of a millisecond, nearly all of it the disk's.
# A slow disk, or a request to a cluster's backend, takes far more, and all pods of a network take turns.
LOCK_TIMEOUT: Final = SHARED


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
    """How long a released address stays reserved: ``cooldown`` seconds from all pods, ``ttl`` seconds for the
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


def none_gone(_boxes: Collection[Sandbox]) -> Collection[Sandbox]:
    """A ``Gone`` for callers that collect nothing."""
    return ()
