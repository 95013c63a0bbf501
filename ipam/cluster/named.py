"""Addresses that a name has on every node: of the host numbers that are set aside for names.

These numbers are a network of their own to the store, NETWORK/sticky (no network can be called that), with a grid and
with blocks of one number.  So all that is true of blocks is true of them: one owner each, suspicion, the look, the file
beside the leases, in a directory ``sticky``.  Whose a number is stands in its document, and here.

A node that has the name's number asks nobody.  claimed.py asks the store, and handing.py gives numbers up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from cni.protocol.errors import PoolExhausted, TryAgain
from cni.protocol.result import Address
from ipam.cluster import held, limits
from ipam.cluster.giving import AskFirst, Network
from ipam.cluster.held import HELD
from ipam.pool import Cluster, Pool
from ipam.stores import Book

T = TypeVar("T")

FOLDER: Final = "sticky"


def directory_in(directory: Path | str) -> str:
    """Where all is that this node has of the numbers set aside, in a network's directory."""
    return f"{directory}/{FOLDER}"


@dataclass
class Named(Network):
    """The numbers that ``network`` has set aside, for an attachment of the name ``whose``, for which its number is kept
    for ``keep`` seconds."""

    network: Network = field(kw_only=True)
    whose: str = field(kw_only=True)
    keep: int = field(kw_only=True)

    @classmethod
    def of(cls, network: Network, whose: str, keep: int) -> "Named":
        aside = network.pool.aside or Pool(())
        pool = replace(network.pool, sets=aside.sets, rails=aside.rails)
        about = f"{network.name}/{FOLDER}", directory_in(network.directory), Cluster(network.cluster.store, 1)
        return cls(*about, pool, network=network, whose=whose, keep=keep)

    def own(self, requested: Sequence[Address]) -> Pool:  # noqa: ARG002  # those made of a MAC: no number has them
        """The pool with the one number that the name has on this node.  To be called under the lock of the leases.

        Raises as Network.own.
        """
        if network := held.read(self.network.directory):
            self.network.refuse_another(network)  # guard: other-numbers
        mine = self._known()
        # guard below: given-up = (b for b in mine.blocks if b.node == mine.node)
        held_here = (b for b in mine.blocks if (b.state, b.node) == (HELD, mine.node))
        number = next((b for b in held_here if b.whose == self.whose), None)
        if not number or not set(self.subnets) <= set(mine.subnets):
            raise AskFirst(f"this node does not have the number of {self.whose}")
        self.mine = mine
        return limits.limited(self.pool, 1, [number.index])

    def _more(self, ask: Callable[[], T], need: PoolExhausted | AskFirst, log: list[str]) -> T:
        if isinstance(need, PoolExhausted):
            # The name has a number here, and another attachment has its address.
            raise TryAgain(
                f"the address that {self.whose} has on all nodes is not free on this one, for another attachment has "
                f"that name and lives, or its last one may: delete it ({need.msg})"
            ) from need
        from ipam.cluster import claimed  # noqa: PLC0415  # asks the store

        return claimed.have_number(self, ask, log)

    def _with_room(self, ask: Callable[[], T], log: list[str]) -> T:
        """And give up, after a look, what no pod has here any more: it may be that nobody else does (handing.py)."""
        given = super()._with_room(ask, log)
        if self.has_looked:
            from ipam.cluster import handing  # noqa: PLC0415

            handing.give_up(self, log)
        return given

    def _is_low(self, _book: Book) -> bool:
        return False
