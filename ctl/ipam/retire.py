"""hpn ipam retire: remove all that the cluster's backend holds of a network without pods.

The blocks go first, and numbers reserved for names, then the pool layout, which fixes the network's addresses.  A node
makes a removed block again while it has a lease (reconcile/heartbeat.py), so pods that were overlooked keep theirs.
"""

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure
from base.table import abridged
from ctl.command_line import as_document
from ctl.ipam import pods, release
from ctl.screen import text
from ipam.cluster import BLOCK, POOL, Documents
from ipam.cluster.rules.documents import layout_name
from ipam.cluster.rules.network import FOLDER
from ipam.cluster.rules.overview import named, overviews

_PODS: Final = 3  # pods that a refusal names


def answer(options: argparse.Namespace, documents: Documents) -> tuple[str, int]:
    """Return the command's output and exit status.  Raises IoFailure, BackendRefused, Unreachable, InvalidConfig."""
    network, blocks = options.network, documents.listed(BLOCK)
    if named(overviews(documents.listed(POOL), blocks), network) is None:
        raise IoFailure(f"no network {network} in the cluster's backend; see: hpn ipam show --cluster")
    why = "" if options.force else _use(options.kubeconfig, network)
    names = {layout_name(name) for name in (network, f"{network}/{FOLDER}")}
    own = [one for one in blocks if one.name.rpartition(".")[0] in names]
    done = [] if why else release.retire(documents, own)
    has_failed = any(one.what == release.FAILED for one in done)
    is_gone = not why and not has_failed and _remove_layouts(documents, names)
    status = 0 if is_gone else 1
    if options.json:
        refused = {"refused": why} if why else {}
        body = {"network": network, **refused, "layout": not is_gone, "blocks": [one.to_json() for one in done]}
        return as_document(body), status
    if why:
        return text([f"{why}; nothing is removed"]), status
    lines = [one.words(dry_run=False) for one in done]
    left = "its pool layout stays, because something changed meanwhile; repeat the command"
    return text([*lines, f"network {network}: {'its pool layout is removed' if is_gone else left}"]), status


def _use(kubeconfig: Path | None, network: str) -> str:
    """Why the network may still be in use; empty if no pod of the API server has an address of it."""
    if kubeconfig is None:
        return "it is unknown whether a pod has an address of the network; name --kubeconfig, or add --force"
    found = [f"{one.pod}:{one.ifname}" for one in pods.of_all_pods(kubeconfig) if one.network == network]
    return f"pods have addresses of network {network}: {abridged(found, _PODS)}; delete them first" if found else ""


def _remove_layouts(documents: Documents, names: Collection[str]) -> bool:
    """Remove these pool layouts, the network's and that of its reserved numbers; return False if one changed
    meanwhile."""
    own = [one for one in documents.listed(POOL) if one.name in names]
    return all(documents.remove(one) for one in own)
