"""What a place that keeps leases must do; files.py is the one on this node's disk.

A store holds the leases of one network.  Who gets which address is never its decision: it is handed a
function, runs it on a consistent view and commits what that returns, so that a store which has to try again
(compare and swap) may call it again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from cni.protocol.result import Address, Ip
from cni.protocol.spec import Key
from ipam.ranges import Span


@dataclass(frozen=True)
class Sandbox:
    """A network namespace: its inode, its cookie, and the namespaces of mounts and processes it was seen from."""

    inode: int
    cookie: int
    mounts: int
    processes: int


# Those of the namespaces that are provably gone: none that is alive, whatever cannot be seen.
Gone = Callable[[Collection[Sandbox]], Collection[Sandbox]]


@dataclass(frozen=True)
class Terms:
    """For how many seconds from its release on nobody gets an address, and nobody but who has the same name."""

    cooldown: int = 0
    sticky: str = ""
    ttl: int = 0


@dataclass(frozen=True)
class Owner:
    """Whom a lease is for: its key, for people the pod ("namespace/name") and CNI_NETNS, and what that was."""

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
        """What other attachments of this owner's container hold; to ask costs a search through the leases."""

    def holder(self, address: Address) -> str:
        """The key that holds the address, empty if none does."""

    def first_free(self, span: Span) -> Address | None:
        """The span's lowest address that no key holds."""


# What each range set has to give.
Ranges = tuple[tuple[Span, ...], ...]
Choose = Callable[[Book], tuple[Ip, ...]]
# Which of the addresses that others answer for are kept back: asked with those, and what is kept back so, and the MACs.
Believe = Callable[[Mapping[Address, str], Mapping[Address, str]], Collection[Address]]


class Store(Protocol):
    """The leases of one network.  Every method raises IoFailure, and TryAgain if others keep it busy."""

    def reserve(self, owner: Owner, choose: Choose, ranges: Ranges = ()) -> tuple[Ip, ...]:
        """Make what ``choose`` picks, and nothing else, the owner's; permanent when this returns.

        To a sticky one, what its name had before is its own.  ``ranges`` is what it picks from, kept for people.

        What ``choose`` raises passes through and nothing has changed.  Raises RecordUnreadable where the
        owner has a lease that cannot be read.
        """

    def concede(self, key: Key, taken: Mapping[Address, str], seconds: int, believe: Believe) -> Mapping[Address, str]:
        """Take from the key what other hosts have, with their MACs; what ``believe`` picks of it goes to nobody for so
        long.  All that is kept back so then, with the MACs."""

    def pardon(self) -> int:
        """Free what was kept back because other hosts had it; how many addresses."""

    def release(self, key: Key, *, unused: bool = False, in_use: bool = False) -> None:
        """Free whatever the key holds; nothing is fine.  What was never used does not cool down, and what may be in use
        still is given to nobody in this boot, unless ``collect`` is told that a probe comes before that.

        Raises RecordUnreadable, once and after the release, where the lease could not be read.
        """

    def check(self, key: Key) -> tuple[Address, ...]:
        """The addresses the key holds.  Raises CheckFailed if there are none or they are not surely its own."""

    def collect(
        self,
        valid: frozenset[Key] | None,
        attached: Callable[[], Collection[Key]] = tuple,
        *,
        probing: bool = False,
    ) -> int:
        """Free what no key of ``valid`` holds or, if that is None, what is of an older boot or whose namespace is gone.

        With a list the keys of ``attached`` are spared too.  It is asked after the leases were read, for an attachment
        has a record before it has a lease.  What was kept back after its release for long enough goes as well, and
        with ``probing``, for who asks the link before it gives an address, what only may be in use.

        How much it was.  Goes on after errors and raises them as one at the end.
        """

    def rehearse(self, choose: Choose) -> None:
        """Whether ``reserve`` would serve a newcomer: the store can be written and ``choose`` does not raise."""
