"""The results that libcni caches for a runtime: a file for each attachment, from its ADD to its DEL.

/var/lib/cni/results/<network>-<containerID>-<ifname>
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.kernel import files, sysfs
from base.protocol.spec import Json, Key
from base.state import remembered

# libcni's default, which all runtimes use, and Multus' own directory.
RESULTS = ("/var/lib/cni/results", "/var/lib/cni/multus/results")

_MOST: Final = 1 << 26  # bytes of a result


def interfaces(network: str, key: Key) -> frozenset[str] | None:
    """The names of the container's interfaces, according to the cached results.  None if the attachment's own result is
    missing: then the runtime does not cache its results here."""
    names = {name for folder in RESULTS for name in sysfs.names(folder)}
    if f"{network}-{key.container_id}-{key.ifname}" not in names:
        return None
    of_container = f"-{key.container_id}-"
    return frozenset(name.rpartition(of_container)[2] for name in names if of_container in name)


@dataclass(frozen=True, eq=False)
class Cached:
    """One result: the network's name, and each interface: its name and the path of its pod's namespace.  The path is
    empty for an interface of the host."""

    network: str
    interfaces: tuple[tuple[str, str], ...]


def results() -> Iterator[Cached]:
    """All cached results, without unreadable ones.  One that was not changed since an earlier call is the same object.
    Raises OSError only for a shortage."""
    for folder in RESULTS:
        try:
            found = remembered.files(folder, _cached)
        except OSError as e:
            found = [(folder, e)]
        for _, one in found:
            if isinstance(one, Cached):
                yield one
            elif isinstance(one, OSError):
                sysfs.refuse_short(one)


def _cached(path: str) -> Cached:
    """One result, without interfaces if it has another form.  Raises OSError."""
    try:
        cached = json.loads(files.read(path, _MOST))
    except (ValueError, RecursionError):
        cached = None
    result = cached.get("result") if isinstance(cached, dict) else None
    found = result.get("interfaces") if isinstance(result, dict) else None
    listed = [one for one in (found if isinstance(found, list) else ()) if isinstance(one, dict)]
    network = f"{cached.get('networkName', '')}" if listed else ""
    return Cached(network, tuple((f"{one.get('name', '')}", f"{one.get('sandbox', '')}") for one in listed))


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
