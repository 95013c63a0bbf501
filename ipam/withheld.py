"""Addresses that the store counts as free, and that another user of this node has.

- This node itself, on the attachment's master, or on another interface of its link.  No probe finds that on the master,
  because a macvlan cannot reach its host.  On another interface the address is on another link.
- host-local, between an import and the change of the network's configuration.  Its directory is the file IMPORTED_FROM,
  a link, beside the leases.
"""

import os
from dataclasses import dataclass

from base.protocol.result import Address
from ipam.ranges import Span
from ipam.stores import Book
from ipam.stores.access import IMPORTED_FROM


@dataclass(frozen=True)
class Withheld:
    """A view (stores.Book) that also counts these addresses as held.

    ``directory`` is that of the network's state.  ``master`` is a name or an altname.  Without one, this node's
    addresses on all interfaces count.
    """

    book: Book
    directory: str
    master: str = ""

    @property
    def mine(self) -> tuple[Address, ...]:
        return self.book.mine

    @property
    def last(self) -> tuple[Address, ...]:
        return self.book.last

    @property
    def siblings(self) -> tuple[Address, ...]:
        return self.book.siblings

    def holder(self, address: Address) -> str:
        return self.book.holder(address) or self._other_user(address)

    def first_free(self, span: Span) -> Address | None:
        while (address := self.book.first_free(span)) and self._other_user(address):
            span = Span(span.version, int(address) + 1, span.last)
        return address

    def count(self, span: Span) -> int:
        return self.book.count(span)

    def _other_user(self, address: Address) -> str:
        """Describe the address's user beside this store; empty if there is none."""
        from base.kernel import local  # noqa: PLC0415  # CHECK, DEL and VERSION need no socket

        has = local.interface_with(address)
        if has and (not self.master or local.is_on_link_of(has, self.master)):
            return f"this node itself, on {has}"
        file = f"{self.directory}/{IMPORTED_FROM}/{address}"
        return f"a pod of host-local's ({os.path.realpath(file)})" if os.path.lexists(file) else ""
