"""The results that libcni caches for a runtime: a file for each attachment, from its ADD to its DEL.

/var/lib/cni/results/<network>-<containerID>-<ifname>
"""

import os
from contextlib import suppress

from cni.protocol.spec import Key

# libcni's default, which all runtimes use, and Multus' own directory.
RESULTS = ("/var/lib/cni/results", "/var/lib/cni/multus/results")


def interfaces(network: str, key: Key) -> frozenset[str] | None:
    """The names of the interfaces that plugins have made for the container, as far as results are cached.

    None if the attachment's own result is not there: then the runtime does not keep its results here.
    """
    names = set[str]()
    for folder in RESULTS:
        with suppress(OSError):
            names.update(os.listdir(folder))
    if f"{network}-{key.container_id}-{key.ifname}" not in names:
        return None
    of_container = f"-{key.container_id}-"
    return frozenset(name.rpartition(of_container)[2] for name in names if of_container in name)
