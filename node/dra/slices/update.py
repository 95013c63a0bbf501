"""The requests that bring the API server's ResourceSlices of this node up to date."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from base.protocol.errors import BackendRefused, CniError, TryAgain
from base.protocol.spec import Json
from node.dra import DRIVER, VERSION
from node.dra.api import Api
from node.dra.slices import names
from node.dra.slices.changes import Changes, changes
from node.dra.slices.content import SHARES, TAINT, Features
from node.dra.slices.view import Known

_PROBE: Final = "probe"


class Update:
    """An update of the slices at ``server``, which ``known`` had after the last round."""

    def __init__(self, server: Api, uid: str, known: Mapping[str, Known]) -> None:
        """``uid`` is that of the node's object, which owns the slices."""
        self._server, self._uid, self._known = server, uid, known

    def all(self, there: Mapping[str, Json], wanted: Iterable[tuple[str, Sequence[Json]]]) -> dict[str, Known]:
        """Update each pool, and remove the slices of other pools.  Return the slices as they are then.

        ``there`` are the slices' metadata, by name.  A refused pool leaves the others their update.  Raises the first
        refusal (BackendRefused, TryAgain), Unreachable.
        """
        by_stem = defaultdict[str, dict[str, str]](dict)
        for name, about in there.items():
            by_stem[names.stem_of(name)][name] = about["resourceVersion"]
        known, refusals = dict[str, Known](), list[CniError]()
        for pool, parts in wanted:
            try:
                known |= self._pool(pool, parts, by_stem.pop(names.stem(self._server.node, pool), {}))
            except (BackendRefused, TryAgain) as e:
                refusals.append(e)
        for name in [name for left in by_stem.values() for name in left]:
            try:
                self._server.delete({"metadata": there[name]})
            except BackendRefused as e:
                refusals.append(e)
        if refusals:
            raise refusals[0]
        return known

    def _pool(self, pool: str, parts: Sequence[Json], versions: Mapping[str, str]) -> dict[str, Known]:
        """Change the pool's slices, which have these ``versions``, unless they are known to be as wanted."""
        node = self._server.node
        digests = {names.slice_name(node, pool, number): _digest(parts, number) for number in range(len(parts))}
        wanted = {name: (versions.get(name), digest) for name, digest in digests.items()}
        if {name: self._known.get(name) for name in {*versions, *wanted}} != wanted:
            full = [one for name in versions if (one := self._server.slice(name))]
            read = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in full}
            sent = _apply(self._server, changes(node, self._uid, pool, full, parts))
            versions = {**versions, **read, **sent}
        return {name: (versions[name], digest) for name, digest in digests.items()}


def _digest(parts: Sequence[Json], number: int) -> bytes:
    """A digest of a pool's slice with this number."""
    return hashlib.sha256(json.dumps([len(parts), parts[number]]).encode()).digest()


def _apply(server: Api, made: Changes) -> dict[str, str]:
    """Send the changes, and return the new versions of slices by name.  Raises BackendRefused, Unreachable; TryAgain if
    another program changed a slice just now."""
    for one in made.removed:
        server.delete(one)
    sent = [(one, server.replace(one)) for one in made.replaced]
    sent += [(one, server.create(one)) for one in made.created]
    for one, stored in sent:
        if stored is None:
            it = one["metadata"]["name"]
            raise TryAgain(f"another program made or changed {it}; if this stays: kubectl delete resourceslice {it}")
    return {one["metadata"]["name"]: stored["resourceVersion"] for one, stored in sent if stored}


def features(server: Api) -> Features:
    """What the API server stores of a device with everything."""
    counters = [{"counterSet": _PROBE, "counters": {_PROBE: {"value": "1"}}}]
    device = {
        "name": _PROBE,
        "allowMultipleAllocations": True,
        "capacity": {SHARES: {"value": "1", "requestPolicy": {"default": "1", "validValues": ["1"]}}},
        "consumesCounters": counters,
        "taints": [{"key": TAINT, "value": _PROBE, "effect": "NoSchedule"}],
    }
    pool = names.of_node(server.node, _PROBE)
    about = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    wanted = {"driver": DRIVER, "nodeName": server.node, "pool": about, "devices": [device]}
    metadata = {"name": names.slice_name(server.node, pool, 0)}
    made = {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": wanted}
    spec: Json = server.would_store(made).get("spec") or {}
    stored: Json = next(iter(spec.get("devices") or ()), {})
    is_shared = bool(stored.get("allowMultipleAllocations")) and "requestPolicy" in f"{stored.get('capacity')}"
    return Features("taints" in stored, is_shared, "consumesCounters" in stored)
