"""What the runtime remembers of a container's interfaces: libcni keeps every plugin's result in a file until its DEL.

/var/lib/cni/results/<network>-<containerID>-<ifname>
"""

import os
from contextlib import suppress

from cni.protocol.spec import Key

# libcni's default, which all runtimes keep to, and Multus' own.
RESULTS = ("/var/lib/cni/results", "/var/lib/cni/multus/results")


def interfaces(network: str, key: Key) -> frozenset[str] | None:
    """The names of the interfaces that plugins have made for the container.  None where nothing is certain: a runtime
    that keeps its results here has the attachment's own there, too."""
    names = set[str]()
    for folder in RESULTS:
        with suppress(OSError):
            names.update(os.listdir(folder))
    if f"{network}-{key.container_id}-{key.ifname}" not in names:
        return None
    of_container = f"-{key.container_id}-"
    return frozenset(name.rpartition(of_container)[2] for name in names if of_container in name)
