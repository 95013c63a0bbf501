"""The results that libcni caches for a runtime: a file for each attachment, from its ADD to its DEL.

/var/lib/cni/results/<network>-<containerID>-<ifname>
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from base.kernel import sysfs
from base.protocol.spec import Json, Key
from base.state.remembered import Remembered

# libcni's default, which all runtimes use, and Multus' own directory.
RESULTS = ("/var/lib/cni/results", "/var/lib/cni/multus/results")


def interfaces(network: str, key: Key) -> frozenset[str] | None:
    """The names of the container's interfaces, according to the cached results.  None if the attachment's own result is
    missing: then the runtime does not cache its results here."""
    names = {name for folder in RESULTS for name in sysfs.names(folder)}
    if f"{network}-{key.container_id}-{key.ifname}" not in names:
        return None
    of_container = f"-{key.container_id}-"
    return frozenset(name.rpartition(of_container)[2] for name in names if of_container in name)


def all_interfaces() -> Iterator[tuple[str, str, str]]:
    """Each interface in all cached results: the network's name, the interface's name, and the path of the pod's
    namespace.  The path is empty for an interface of the host.  Unreadable results are passed over."""
    for path in (f"{folder}/{name}" for folder in RESULTS for name in sysfs.names(folder)):
        with suppress(OSError):
            yield from _INTERFACES.get(path)


def _interfaces_in(path: str) -> tuple[tuple[str, str, str], ...]:
    """The interfaces in one result; none if it has another form.  Raises OSError."""
    try:
        cached = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        return ()
    result = cached.get("result") if isinstance(cached, dict) else None
    found = result.get("interfaces") if isinstance(result, dict) else None
    return tuple(
        (f"{cached.get('networkName', '')}", f"{one.get('name', '')}", f"{one.get('sandbox', '')}")
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict)
    )


_INTERFACES = Remembered(_interfaces_in)


def result(network: str, key: Key) -> Json | None:
    """The whole chain's result of ADD, which the runtime passes to CHECK.  None if it is not cached, or not in the form
    of libcni 0.7 and newer ("kind": "cniCacheV1")."""
    for folder in RESULTS:
        with suppress(OSError, ValueError, RecursionError):
            cached = json.loads(Path(folder, f"{network}-{key.container_id}-{key.ifname}").read_bytes())
            if isinstance(cached, dict) and isinstance(cached.get("result"), dict):
                answer: Json = cached["result"]
                return answer
    return None
