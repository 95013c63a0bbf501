"""hpn ipam import into a pool that the cluster shares, and export out of it."""

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from base.protocol.errors import InvalidConfig
from base.protocol.location import path_of
from base.protocol.result import Address
from base.protocol.spec import Json, Key, network_of
from ipam import config
from ipam.cluster.node_blocks import HELD
from ipam.cluster.reconcile import adopt
from ipam.cluster.reconcile.adopt import Moved
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import Network
from ipam.cluster.rules.overview import spans_in
from ipam.inventory import state
from ipam.stores import Store
from ipam.stores.holdings import Lease


def network(document: Any, file: Path, data_dir: Path) -> Network:
    """Return the shared network of a configuration or a NetworkAttachmentDefinition.  Raises CniError."""
    for plugin in _plugins(document):
        if not isinstance(plugin.get("ipam"), dict) or not plugin["ipam"].get("cluster"):
            continue
        name, pool = network_of(plugin), config.load(plugin, {})
        if pool.cluster:
            return Network(name, str(path_of(f"{data_dir}/{name}")), pool.cluster, pool)
    raise InvalidConfig(f"{file} has no network configuration with ipam.cluster; name the network's new one")


def enter(
    into: Network, store: Store, leases: Sequence[Lease], others: Sequence[Lease], log: list[str], *, dry_run: bool
) -> Moved:
    """Hold the leases, and claim the blocks of these and of all leases here.

    ``others`` are leases of other nodes.  Raises as ipam.cluster.reconcile.adopt.enter.
    """
    contents = store.contents()
    listed = contents.listed
    given = {ip: "a lease that is here" for one in listed if state(one) != "free" for ip in one.holding.ips}
    given |= _named(leases)
    wrong = [*store.adopt(leases, dry_run=True), *adopt.conflicts(into, given, _named(others), contents)]
    if wrong or dry_run:
        return Moved((), tuple(wrong)) if wrong else adopt.enter(into, given, log, dry_run=True)
    before = {one.holding.owner.key for one in listed if isinstance(one.holding, Lease)}
    # The leases first: a claimed block serves any address without a lease.
    if wrong := store.adopt(leases):
        return Moved((), tuple(wrong))
    try:
        moved = adopt.enter(into, given, log, dry_run=False)
    except BaseException:
        _release(store, leases, before)
        raise
    if moved.conflicts:
        _release(store, leases, before)
    return moved


def blocks_in_words(into: Network, moved: Moved, *, dry_run: bool) -> list[str]:
    """Return a line for each block."""
    verb, lines = "would have" if dry_run else "has", list[str]()
    for index in moved.blocks:
        block = Block(into.name, index, into.cluster.size, "", "", "")
        spans = ", ".join(str(span) for subnet in into.subnets for span in spans_in(subnet, [block]))
        lines.append(f"this node {verb} block {index}: {spans}")
    return lines


def leave(data_dir: Path, name: str, *, dry_run: bool) -> list[str]:
    """Make the network this node's own; return the ranges that it keeps, as JSON, and notes.  Raises CniError."""
    has = adopt.leave(path_of(f"{data_dir}/{name}"), name, dry_run=dry_run)
    blocks = [Block(name, one.index, has.size, one.node, "", "") for one in has.blocks if one.state == HELD]
    lost = [one.index for one in has.blocks if one.state != HELD]
    kept = (
        f"the backend still lists these {len(blocks)} blocks for node {has.node}; when no node has blocks of "
        f"{name} any more: hpn ipam release-node {has.node} {name} --force"
    )
    ranges = [
        {"subnet": subnet, "rangeStart": f"{span.address(span.first)}", "rangeEnd": f"{span.address(span.last)}"}
        for subnet in has.subnets
        for span in spans_in(subnet, blocks)
    ]
    return [
        *map(json.dumps, ranges),
        *(f"block {index} is no longer this node's, so it is in none of these" for index in lost),
        kept,
    ]


def _named(leases: Sequence[Lease]) -> dict[Address, str]:
    return {ip: f"{one.owner.key} {one.owner.pod}".rstrip() for one in leases for ip in one.ips}


def _release(store: Store, leases: Sequence[Lease], before: Collection[Key]) -> None:
    """Release the leases that are new."""
    for one in leases:
        if one.owner.key not in before:
            store.release(one.owner.key, unused=True)


def _plugins(document: Any) -> Iterator[Json]:
    """Yield the configurations of its plugins, each as libcni builds it."""
    spec = document.get("spec") if isinstance(document, dict) else None
    if isinstance(spec, dict) and isinstance(spec.get("config"), str):
        try:
            document = json.loads(spec["config"])
        except (ValueError, RecursionError) as e:
            raise InvalidConfig(f"spec.config of the NetworkAttachmentDefinition is not JSON ({e})") from e
    if not isinstance(document, dict):
        return
    common = {key: document[key] for key in ("cniVersion", "name") if key in document}
    plugins = document.get("plugins", [document])
    yield from (common | plugin for plugin in plugins if isinstance(plugin, dict)) if isinstance(plugins, list) else ()
