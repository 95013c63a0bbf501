"""A round over the node's ResourceSlices, in a child process: what pods have, what the API server has, what it gets."""

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from typing import Final

from base.protocol.errors import BackendRefused, CniError, InvalidConfig
from base.protocol.spec import Json
from base.table import abridged
from hardware import functions
from node.dra import DRIVER, api
from node.dra.slices import content, ledger, update
from node.dra.slices.changes import stranger
from node.dra.slices.content import Facts, Features
from node.dra.slices.view import Report, View
from node.kubelet import directory
from node.kubelet.allocations import Name
from node.model import Offer, Sharing

_MOST: Final = 300  # seconds for a round
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
            return _publish(server, view, withheld, own)
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


def _publish(server: api.Api, view: View, withheld: frozenset[Name], own: Json) -> Report:
    """Make the slices as wanted, if they are not.  Raises BackendRefused, Unreachable, TryAgain."""
    there, strangers = _listed(server, view, withheld)
    report = Report(withheld, node=server.node, strangers=strangers, known=view.known)
    versions = {name: version for name, (version, _) in view.known.items()}
    is_known = versions == {name: about["resourceVersion"] for name, about in there.items()}
    if view.is_same and withheld == view.withheld and is_known:
        return report
    facts = Facts(
        server.node,
        cache(functions.root),
        lambda of, one: view.unhealthy.get((of.full_name, one.id), ""),
        view.neighbors,
    )
    left_out = defaultdict[str, list[str]](list)
    wanted = content.pools(
        content.entries(server.node, view.offers, withheld),
        facts,
        update.features(server) if view.unhealthy or any(map(_is_special, view.offers)) else Features(),
        lambda one, why: left_out[why].append(one),
    )
    made = update.Update(server, str((own.get("metadata") or {}).get("uid", "")), view.known)
    known = made.all(there, wanted)
    return replace(report, known=known, notes=tuple(f"{', '.join(ids)}: {why}" for why, ids in left_out.items()))


def _listed(server: api.Api, view: View, withheld: frozenset[Name]) -> tuple[dict[str, Json], tuple[str, ...]]:
    """The metadata of our slices by name, and a remark on those of other programs."""
    # An older list can lack a slice that must go.  Else the next round sees what this one has missed.
    may_be_old = not (withheld or view.leaves)
    newest = max((version for version, _ in view.known.values()), key=_order, default="0")
    listed = [(about, stranger(server.node, about)) for about in server.slices(newest if may_be_old else "")]
    ours = {str(about["name"]): about for about, of_another in listed if not of_another}
    return ours, tuple(_about([of_another for _, of_another in listed if of_another]))


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


def _is_special(offer: Offer) -> bool:
    return offer.resource.sharing is Sharing.SHARED or offer.resource.kind == "pf"
