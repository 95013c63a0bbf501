"""The view that a choice of addresses is made from."""

import json
import time
from dataclasses import dataclass

from base.protocol.result import Address
from base.protocol.spec import Key
from ipam.ranges import Span
from ipam.stores.files.table import Table
from ipam.stores.holdings import Lease, Lost


@dataclass
class TableBook:
    """The view of one choice (stores.Book)."""

    table: Table
    mine: tuple[Address, ...]
    key: Key | None = None

    @property
    def siblings(self) -> tuple[Address, ...]:
        # No index has containers, so this scans the file, and only networks with aligned addresses ask for it.
        return _siblings(self.table, self.key) if self.key else ()

    @property
    def last(self) -> tuple[Address, ...]:
        return self.table.index.last

    def holder(self, address: Address) -> str:
        line = self.table.index.pages.holder(address.version, int(address))
        if not line:
            return ""
        found = self.table.at(line).holding
        if isinstance(found, Lease):
            return found.owner.key.of(found.owner.pod, self.table.directory.name)
        if isinstance(found, Lost):
            return f"a lease that could not be read ({found.kept})"
        if found.boot:
            return f"nobody and kept back until the next boot: its last pod{_named(found.pod)} may use it still"
        until = time.strftime("%F %TZ", time.gmtime(found.until))
        if found.mac:
            return f"another host on the link (MAC {found.mac}), as a probe found: kept back until {until}"
        whom = f"for {found.sticky}" if found.sticky else "after its release"
        return f"nobody and kept back {whom}, until {until}"

    def first_free(self, span: Span) -> Address | None:
        return self.table.index.pages.first_free(span)

    def count(self, span: Span) -> int:
        return self.table.index.pages.count_held(span)


def _siblings(table: Table, key: Key) -> tuple[Address, ...]:
    """What all attachments of the key's container hold but the key's own."""
    # The quote excludes names that only end like this one; in any other place a quote has a backslash before it.
    # guard below: the-whole-name = f'{key.container_id}'.encode()
    text = f'"containerID":{json.dumps(key.container_id)}'.encode()
    found = list[Address]()
    for line in list(table.lines.containing(text, table.index.lines)):
        lease = table.at(head).holding if (head := table.head(line)) else None
        if isinstance(lease, Lease) and lease.owner.key != key:  # guard: not-its-own (owner)
            found += lease.ips
    return tuple(found)


def _named(pod: str) -> str:
    return f" ({pod})" if pod else ""
