"""A round over the node's ResourceSlices, in a child process: what pods have, what the API server has, what changes."""

import hashlib
import json
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from typing import Final

from base.protocol.errors import BackendRefused, CniError, InvalidConfig, TryAgain
from base.protocol.spec import Json
from base.table import abridged
from node.dra import DRIVER, VERSION, api, devices, ledger, names, slices
from node.dra.changes import Changes, changes, stranger
from node.dra.publisher import Known, Report, View
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
        try:
            held = ledger.holds(view.kubelet)
        except CniError as e:
            return Report(None, e.msg)
        withheld = ledger.withheld(view.offers, held, view.allocated)
        if view.is_look and withheld == view.withheld:
            return Report(withheld, is_look=True)
        if other := _other_driver(view):
            return Report(
                withheld,
                f"{other} is another driver with the name {DRIVER}, to which kubelet may give this node's claims.  No "
                "slice changes until that one ends; remove the node from its DaemonSet",
            )
    try:
        with closing(api.opened(view.kubeconfig)) as server:
            own = server.own_node() if view.offers else {}
            withheld |= _allocatable(view.offers, own)
            known, notes, strangers = _publish(server, view, withheld, own)
            return Report(withheld, node=server.node, notes=notes, strangers=strangers, known=known)
    except CniError as e:
        why = f"the node's ResourceSlices cannot be brought up to date: {e.msg}"
        return Report(withheld, why, is_barred=isinstance(e, BackendRefused | InvalidConfig))


def _allocatable(offers: Iterable[Offer], own: Json) -> frozenset[Name]:
    """The units of resources that the node's object still has from a device plugin, after which the scheduler goes.
    kubelet brings it up to date every 10 s.  If the amount stays, another plugin offers the resource."""
    found = (own.get("status") or {}).get("allocatable") or {}
    names = {name for name, amount in found.items() if amount != "0"}
    return frozenset(
        (offer.resource.full_name, unit.id)
        for offer in offers
        if offer.resource.full_name in names
        for unit in offer.units
    )


def _other_driver(view: View) -> object:
    """The socket of another program with the driver's name, if there is one."""
    with suppress(OSError):
        return directory.resources(directory.others(view.kubelet / "plugins_registry")).get(DRIVER)
    return None


def _publish(
    server: api.Api, view: View, withheld: frozenset[Name], own: Json
) -> tuple[Mapping[str, Known], tuple[str, ...], tuple[str, ...]]:
    """Return the slices, remarks, and remarks on other programs.  Raises BackendRefused, Unreachable, TryAgain."""
    # An older list can lack a slice that must go.  Else the next round sees what this one has missed.
    may_be_old = not (withheld or view.leaves)
    newest = max((version for version, _ in view.known.values()), key=_order, default="0")
    since = newest if may_be_old else ""
    listed = {str(about["name"]): (stranger(server.node, about), about) for about in server.slices(since)}
    there = {name: about for name, (of_another, about) in listed.items() if not of_another}
    strangers = tuple(_about([of_another for of_another, _ in listed.values() if of_another]))
    versions = {name: about["resourceVersion"] for name, about in there.items()}
    if view.is_same and withheld == view.withheld and versions == {name: one for name, (one, _) in view.known.items()}:
        return view.known, (), strangers
    root, known = cache(devices.root), dict[str, Known]()
    facts = slices.Facts(server.node, root, lambda of, one: view.unhealthy.get((of.full_name, one.id), ""))
    uid, left_out = str((own.get("metadata") or {}).get("uid", "")), defaultdict[str, list[str]](list)
    features, stems = _features(server, view), defaultdict[str, list[str]](list)
    for name in there:
        stems[names.stem_of(name)].append(name)
    entries, problems = slices.entries(server.node, view.offers, withheld), list[CniError]()
    for pool, parts in slices.pools(entries, facts, features, lambda one, why: left_out[why].append(one)):
        found = stems.pop(names.stem(server.node, pool), [])
        digests = {names.slice_name(server.node, pool, number): _digest(parts, number) for number in range(len(parts))}
        wanted = {name: (versions.get(name), digest) for name, digest in digests.items()}
        if {name: view.known.get(name) for name in {*found, *wanted}} != wanted:
            try:
                full = [one for name in found if (one := server.slice(name))]
                new = _apply(server, changes(server.node, uid, pool, full, parts))
            except (BackendRefused, TryAgain) as e:  # the other pools can do without this one
                problems.append(e)
                continue
            versions |= {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in full} | new
        known |= {name: (versions[name], digest) for name, digest in digests.items()}
    for name in [name for left in stems.values() for name in left]:
        try:
            server.delete({"metadata": there[name]})
        except BackendRefused as e:
            problems.append(e)
    if problems:
        raise problems[0]
    return known, tuple(f"{', '.join(ids)}: {why}" for why, ids in left_out.items()), strangers


def _about(strangers: Sequence[str]) -> Iterator[str]:
    if strangers:
        yield (
            f"ResourceSlices of driver {DRIVER} on this node that hpn node did not make, and leaves: "
            f"{abridged(strangers, _NAMED)}; the scheduler may allocate their devices, which no pod gets.  End the "
            f"program, then: kubectl delete resourceslice {' '.join(one.split()[0] for one in strangers[:_NAMED])}"
        )


def _order(version: str) -> tuple[int, str]:
    """The order of resourceVersions, which are numbers (KEP-5504)."""
    return len(version), version


def _digest(parts: Sequence[Json], number: int) -> bytes:
    """A digest of a pool's slice with this number."""
    return hashlib.sha256(json.dumps([len(parts), parts[number]]).encode()).digest()


def _apply(server: api.Api, made: Changes) -> dict[str, str]:
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
