"""What else a container holds of this network: its other attachments' leases.

No index has containers, so this scans the file, and only networks with aligned addresses ask for it.
"""

import json

from cni.protocol.result import Address
from cni.protocol.spec import Key
from ipam.stores.files.table import Table
from ipam.stores.holdings import Lease


def addresses(table: Table, key: Key) -> tuple[Address, ...]:
    """Of all attachments of the key's container but the key's own.  Raises OSError, IoFailure."""
    # The quote excludes names that only end like this one; in any other place a quote has a backslash before it.
    # guard below: the-whole-name = f'{key.container_id}'.encode()
    text = f'"containerID":{json.dumps(key.container_id)}'.encode()
    found = list[Address]()
    for line in list(table.lines.containing(text, table.index.lines)):
        lease = table.at(head).holding if (head := table.head(line)) else None
        if isinstance(lease, Lease) and lease.owner.key != key:  # guard: not-its-own (owner)
            found += lease.ips
    return tuple(found)
