"""A round over the node's ResourceSlices, in a child process: what pods have, what the API server has, what changes."""

import json
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from typing import Final

from base.protocol.errors import CniError, StoreRefused, TryAgain
from base.protocol.spec import Json
from base.table import abridged
from node.dra import DRIVER, VERSION, api, devices, ledger, names, slices
from node.dra.changes import Changes, changes, pool_of, stranger
from node.dra.publisher import Report, View
from node.dra.slices import Features
from node.kubelet import directory
from node.kubelet.allocations import Name
from node.model import Offer, Sharing

_MOST: Final = 300  # seconds for a round
_PROBE: Final = "probe"
_NAMED: Final = 8  # slices that one sentence names


def publish(view: View) -> Report:
    """Do a round.  For a child process."""
    signal.alarm(_MOST)
    withheld = frozenset[Name]()
    if view.offers:
        if (held := ledger.holds(view.kubelet)) is None:  # guard: without-an-answer = False
            return Report(
                None,
                f"kubelet lists no pods' devices at {view.kubelet}/pod-resources/kubelet.sock, and a device in a slice "
                "could be a pod's.  No slice changes until it does.  In a container, mount that directory",
            )
        withheld = ledger.withheld(view.offers, held, view.allocated)
        if view.is_look and withheld == view.withheld:
            return Report(withheld, is_look=True)
        if other := _other_driver(view):  # guard: another-driver
            return Report(
                withheld,
                f"{other} is another driver with the name {DRIVER}, to which kubelet may give this node's claims.  No "
                "slice changes until that one ends; remove the node from its DaemonSet",
            )
    try:
        with closing(api.opened(view.kubeconfig)) as server:
            own = server.own_node() if view.offers else {}
            withheld |= _allocatable(view.offers, own)
            notes, strangers = _publish(server, view, withheld, own)
            return Report(withheld, node=server.node, notes=notes, strangers=strangers)
    except CniError as e:
        return Report(withheld, f"the node's ResourceSlices cannot be brought up to date: {e.msg}")


def _allocatable(offers: Iterable[Offer], own: Json) -> frozenset[Name]:
    """The units of resources that the node's object still has from a device plugin, after which the scheduler goes.
    kubelet brings it up to date every 10 s.  If the amount stays, another plugin offers the resource."""
    found = (own.get("status") or {}).get("allocatable") or {}
    names = {name for name, amount in found.items() if amount != "0"}
    return frozenset(
        (offer.resource.full_name, unit.id)
        for offer in offers
        if offer.resource.full_name in names  # guard: still-allocatable = False
        for unit in offer.units
    )


def _other_driver(view: View) -> object:
    """The socket of another program with the driver's name, if there is one."""
    with suppress(OSError):
        return directory.resources(directory.others(view.kubelet / "plugins_registry")).get(DRIVER)
    return None


def _publish(
    server: api.Api, view: View, withheld: frozenset[Name], own: Json
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return remarks, and those on slices of other programs.  Raises StoreRefused, Unreachable, TryAgain."""
    facts = slices.Facts(server.node, devices.root, lambda of, one: view.unhealthy.get((of.full_name, one.id), ""))
    uid, left_out = str((own.get("metadata") or {}).get("uid", "")), defaultdict[str, list[str]](list)
    features = _features(server, view)
    there, strangers = defaultdict[str, list[bytes]](list), list[str]()
    for pool, of_another, one in server.slices(partial(_kept, server.node)):
        if of_another:  # guard: of-another-program
            strangers.append(of_another)
        else:
            there[pool].append(one)
    entries, problems = slices.entries(server.node, view.offers, withheld), list[CniError]()
    wanted = slices.pools(entries, facts, features, lambda one, why: left_out[why].append(one))
    without = ((pool, ()) for pool in tuple(there))  # nothing is left of the pools that were wanted
    for pool, parts in chain[tuple[str, Sequence[Json]]](wanted, without):
        try:
            _apply(server, changes(server.node, uid, pool, _decoded(there.pop(pool, ())), parts))
        except (StoreRefused, TryAgain) as e:  # the other pools can do without this one
            problems.append(e)
    if problems:
        raise problems[0]
    return tuple(f"{', '.join(ids)}: {why}" for why, ids in left_out.items()), tuple(_about(strangers))


def _about(strangers: Sequence[str]) -> Iterator[str]:
    if strangers:
        yield (
            f"ResourceSlices of driver {DRIVER} on this node that hpn node did not make, and leaves: "
            f"{abridged(strangers, _NAMED)}; the scheduler may allocate their devices, which no pod gets.  End the "
            f"program, then: kubectl delete resourceslice {' '.join(one.split()[0] for one in strangers[:_NAMED])}"
        )


def _kept(node: str, one: Json) -> tuple[str, str, bytes]:
    """A slice's pool, ``stranger``, and the slice without what only the API server needs."""
    of_another = stranger(node, one)
    one["metadata"].pop("managedFields", None)
    return pool_of(one), of_another, json.dumps(one).encode()


def _decoded(kept: Iterable[bytes]) -> list[Json]:
    return [json.loads(one) for one in kept]


def _apply(server: api.Api, made: Changes) -> None:
    """Send the changes.  Raises StoreRefused, Unreachable; TryAgain if another program changed a slice just now."""
    for one in made.removed:
        server.delete(one)
    late = [one for one in made.replaced if server.replace(one) is None]
    late += [one for one in made.created if server.create(one) is None]
    for one in late:
        name = one["metadata"]["name"]
        raise TryAgain(f"another program made or changed {name}; if this stays: kubectl delete resourceslice {name}")


def _features(server: api.Api, view: View) -> Features:
    """What the API server stores of a device with everything."""
    if not view.unhealthy and not any(_is_special(offer) for offer in view.offers):
        return Features()
    counters = [{"counterSet": _PROBE, "counters": {_PROBE: {"value": "1"}}}]
    device = {
        "name": _PROBE,
        "allowMultipleAllocations": True,
        "capacity": {slices.SHARES: {"value": "1", "requestPolicy": {"default": "1", "validValues": ["1"]}}},
        "consumesCounters": counters,
        "taints": [{"key": slices.TAINT, "value": _PROBE, "effect": "NoSchedule"}],
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


def _is_special(offer: Offer) -> bool:
    return offer.resource.sharing is Sharing.SHARED or offer.resource.kind == "pf"
