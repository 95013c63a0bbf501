"""Checks of the networks' addresses: a range that each node has, and ranges that overlap.  Pure."""

from collections.abc import Iterator
from itertools import combinations

from ctl.doctor.model import Addresses, Facts, Finding, Severity

_SHARE = (
    'set "cluster": {"backend": "kubernetes"} in its ipam, after: kubectl apply -k packaging/kubernetes/cluster; where '
    "pods have addresses of it, first: hpn ipam import --from node FILE"
)
_APART = (
    'change the ranges, or "exclude" these addresses in one network; if the links are separate, set "overlaps": true '
    "in ipam of one"
)


def range_on_each_node(facts: Facts) -> Iterator[Finding]:
    """Every node allocates the same addresses to its pods."""
    cluster = facts.cluster
    if cluster is None or cluster.nodes < 2:
        return
    for one in cluster.definitions:
        for addresses in () if cluster.of_one_node & {*one.resources} else one.addresses:
            if addresses.unrequested and not (addresses.is_shared or addresses.overlaps):
                yield Finding(
                    Severity.ERROR,
                    f"NetworkAttachmentDefinition {one.name}: its ipam has no cluster, so each of the "
                    f"{cluster.nodes} nodes allocates {', '.join(map(str, addresses.unrequested))}",
                    _SHARE,
                )


def pools_overlap(facts: Facts) -> Iterator[Finding]:
    """Two networks can allocate one address."""
    named = {one.network: one for one in reversed(_all(facts))}
    spans = {network: list(one.spans) for network, one in named.items()}
    for one in _all(facts):
        spans[one.network] += one.of_node
    for one, other in combinations(sorted(named.values(), key=lambda of: of.network), 2):
        shared = [(a, b) for a in spans[one.network] for b in spans[other.network] if a.overlaps(b)]
        if shared and not (one.overlaps or other.overlaps):
            yield Finding(
                Severity.WARNING,
                f"{one.source}: {shared[0][0]} of network {one.network} overlaps {shared[0][1]} of network "
                f"{other.network} ({other.source})",
                _APART,
            )


def pool_of_own_address(facts: Facts) -> Iterator[Finding]:
    """Another node can allocate an address of this one, or a pod here could not reach the host."""
    for one in {of.network: of for of in reversed(_all(facts))}.values():
        for address, ifname in sorted(facts.own_addresses.items(), key=lambda pair: f"{pair[0]}"):
            if any(address in span for span in one.spans):
                yield Finding(
                    Severity.ERROR if one.is_shared else Severity.WARNING,
                    f"{one.source}: network {one.network} has {address}, which is this node's own ({ifname})",
                    f'"exclude": ["{address}"] in the network\'s range, for every node\'s own addresses',
                )


def _all(facts: Facts) -> list[Addresses]:
    """The addresses of all known networks: of definitions, files and attachments."""
    definitions = facts.cluster.definitions if facts.cluster else ()
    return [*(one for of in definitions for one in of.addresses), *facts.addresses]
