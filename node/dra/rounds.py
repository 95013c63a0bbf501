"""A round over the node's ResourceSlices, in a child process: what pods have, what the API server has, what changes."""

import signal
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from base.protocol.errors import CniError, TryAgain
from base.protocol.spec import Json
from node.dra import DRIVER, VERSION, api, devices, ledger, names, slices
from node.dra.changes import changes
from node.dra.publisher import Report, View
from node.dra.slices import Features
from node.kubelet.allocations import Name
from node.model import Offer, Sharing

_MOST: Final = 300  # seconds for a round
_PROBE: Final = "probe"


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
    try:
        with closing(api.opened(view.kubeconfig)) as server:
            own = server.own_node() if view.offers else {}
            withheld |= _allocatable(view.offers, own)
            return Report(withheld, node=server.node, notes=_publish(server, view, withheld, own))
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


def _publish(server: api.Api, view: View, withheld: frozenset[Name], own: Json) -> tuple[str, ...]:
    """Return remarks.  Raises StoreRefused, Unreachable, TryAgain."""
    facts = slices.Facts(server.node, devices.root, lambda of, one: view.unhealthy.get((of.full_name, one.id), ""))
    entries = [*slices.entries(server.node, view.offers, withheld)]
    wanted, notes = slices.pools(entries, facts, _features(server, view))
    there = server.slices()
    made = changes(server.node, str((own.get("metadata") or {}).get("uid", "")), there, wanted)
    for one in made.removed:
        server.delete(one)
    late = [one for one in made.replaced if server.replace(one) is None]
    late += [one for one in made.created if server.create(one) is None]
    if late:
        name = late[0]["metadata"]["name"]
        raise TryAgain(f"another program made or changed {name}; if this stays: kubectl delete resourceslice {name}")
    return tuple(notes)


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
