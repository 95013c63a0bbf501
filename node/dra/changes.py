"""The requests that turn the API server's ResourceSlices of this node into the wanted ones; pure.

The scheduler uses a pool only while all of its slices are there with one generation.  So a change of several slices
gets a new generation, which the old slices do not have.  A change of one slice needs none.

Source: kubernetes, dynamic-resource-allocation/resourceslice.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from base.protocol.spec import Json
from node.dra import DRIVER, VERSION, names
from node.dra.slices import Pools


@dataclass
class Changes:
    """Slices to remove, to replace and to create, in this order.  The first are as they were read."""

    removed: list[Json] = field(default_factory=list)
    replaced: list[Json] = field(default_factory=list)
    created: list[Json] = field(default_factory=list)


def changes(node: str, uid: str, there: Sequence[Json], wanted: Pools) -> Changes:
    """The changes from the slices ``there`` to the pools ``wanted``.

    ``uid`` is that of the node's object, which owns the slices: they go with it.
    """
    by_pool, made = defaultdict[str, dict[str, Json]](dict), Changes()
    for one in there:
        by_pool[_pool(one)["name"]][one["metadata"]["name"]] = one
    for pool in {**by_pool, **wanted}:
        _of_pool(made, (node, uid, pool), by_pool[pool], wanted.get(pool, ()))
    return made


def _of_pool(made: Changes, whose: tuple[str, str, str], there: Mapping[str, Json], parts: Sequence[Json]) -> None:
    node, uid, pool = whose
    listed = [names.slice_name(node, pool, number) for number in range(len(parts))]
    generation = max((_pool(one)["generation"] for one in there.values()), default=0)
    made.removed += [one for name, one in there.items() if name not in listed]
    specs = {name: _spec(node, pool, generation, len(parts), part) for name, part in zip(listed, parts, strict=True)}
    changed = [name for name in listed if name in there and not _is_same(there[name]["spec"], specs[name])]
    missing = [name for name in listed if name not in there]
    if missing or len(changed) > 1:
        changed = [name for name in listed if name in there]
        for spec in specs.values():
            spec["pool"]["generation"] = generation + 1
    made.replaced += [_replaced(there[name], specs[name]) for name in changed]
    made.created += [_created(node, uid, name, specs[name]) for name in missing]


def _spec(node: str, pool: str, generation: int, number: int, part: Json) -> Json:
    about = {"name": pool, "generation": generation, "resourceSliceCount": number}
    return {"driver": DRIVER, "nodeName": node, "pool": about, **part}


def _created(node: str, uid: str, name: str, spec: Json) -> Json:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    metadata: Json = {"name": name, **({"ownerReferences": [owner]} if uid else {})}
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _replaced(there: Json, spec: Json) -> Json:
    metadata = {key: value for key, value in there["metadata"].items() if key != "managedFields"}
    times = {
        (device.get("name"), taint.get("key"), taint.get("value")): taint["timeAdded"]
        for device in there["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    if times:  # when a taint began; the API server gives the present time to one without it
        devices = [_with_times(device, times) for device in spec.get("devices", ())]
        spec = {**spec, "devices": devices} if devices else spec
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _with_times(device: Json, times: Mapping[Any, str]) -> Json:
    def timed(taint: Json) -> Json:
        time = times.get((device["name"], taint["key"], taint["value"]))
        return {**taint, "timeAdded": time} if time else taint

    return {**device, "taints": [timed(taint) for taint in device["taints"]]} if "taints" in device else device


def _is_same(there: Json, wanted: Json) -> bool:
    return {**there, **_plain(there)} == wanted


def _plain(spec: Json) -> Json:
    """The slice's devices without what the API server adds."""
    devices = spec.get("devices")
    if not devices:
        return {}
    return {"devices": [{**one, **({"taints": _untimed(one)} if "taints" in one else {})} for one in devices]}


def _untimed(device: Json) -> list[Json]:
    return [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]


def _pool(one: Json) -> Json:
    """The slice's pool; one without a name or number, which no API server stores, is replaced."""
    found = one["spec"].get("pool")
    about = found if isinstance(found, dict) else {}
    number = about.get("generation")
    return {**about, "name": str(about.get("name", "")), "generation": number if isinstance(number, int) else 0}
