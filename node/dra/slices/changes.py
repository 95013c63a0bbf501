"""The requests that turn the API server's ResourceSlices of this node into the wanted ones; pure.

The scheduler uses a pool only while all of its slices are there with one generation.  So a change of several slices
gets a new generation, which the old slices do not have.  A change of one slice needs none.

Source: kubernetes, dynamic-resource-allocation/resourceslice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from base.protocol.spec import Json
from node.dra import DRIVER, VERSION
from node.dra.slices import names


@dataclass(frozen=True)
class Changes:
    """Slices to remove, to replace and to create, in this order.  The first are as they were read."""

    removed: list[Json]
    replaced: list[Json]
    created: list[Json]


def changes(node: str, uid: str, pool: str, there: Sequence[Json], parts: Sequence[Json]) -> Changes:
    """The changes of a pool, from the slices ``there`` to its wanted ``parts`` (content.py).

    ``uid`` is that of the node's object, which owns the slices: they go with it.
    """
    known = {str(one["metadata"]["name"]): one for one in there}
    listed = [names.slice_name(node, pool, number) for number in range(len(parts))]
    generation = max((_generation(one) for one in there), default=0)
    specs = {name: _spec(node, pool, generation, len(parts), part) for name, part in zip(listed, parts, strict=True)}
    changed = [name for name in listed if name in known and not _is_same(known[name]["spec"], specs[name])]
    missing = [name for name in listed if name not in known]
    if missing or len(changed) > 1:
        changed = [name for name in listed if name in known]
        for spec in specs.values():
            spec["pool"]["generation"] = generation + 1
    return Changes(
        [one for name, one in known.items() if name not in listed],
        [_replaced(known[name], specs[name]) for name in changed],
        [_created(node, uid, name, specs[name]) for name in missing],
    )


def stranger(node: str, about: Json) -> str:
    """The name of a slice that another program made, with the writers that the API server names; empty for ours.
    ``about`` is its metadata."""
    if names.is_ours(node, str(about["name"])):
        return ""
    writers = sorted({str(field["manager"]) for field in about.get("managedFields") or () if "manager" in field})
    return f"{about['name']} (by {', '.join(writers) or 'an unknown program'})"


def _spec(node: str, pool: str, generation: int, number: int, part: Json) -> Json:
    about = {"name": pool, "generation": generation, "resourceSliceCount": number}
    return {"driver": DRIVER, "nodeName": node, "pool": about, **part}


def _created(node: str, uid: str, name: str, spec: Json) -> Json:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    metadata: Json = {"name": name, **({"ownerReferences": [owner]} if uid else {})}
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _replaced(there: Json, spec: Json) -> Json:
    times = {
        (device.get("name"), taint.get("key"), taint.get("value")): taint["timeAdded"]
        for device in there["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    if times:  # when a taint began; the API server gives the present time to one without it
        devices = [_with_times(device, times) for device in spec.get("devices", ())]
        spec = {**spec, "devices": devices} if devices else spec
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": there["metadata"], "spec": spec}


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


def _generation(one: Json) -> int:
    number = _pool(one).get("generation")
    return number if isinstance(number, int) else 0


def _pool(one: Json) -> Json:
    found = one["spec"].get("pool")
    return found if isinstance(found, dict) else {}
