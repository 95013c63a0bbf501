"""What the cluster has for this node: networks with their resources, and blocks of addresses."""

from collections.abc import Iterator
from typing import Final

from ctl.doctor.model import Facts, Finding, Severity


def resource_nobody_has(facts: Facts) -> Iterator[Finding]:
    """A pod of this network asks for a resource, and stays Pending for ever."""
    cluster = facts.cluster
    for one in cluster.definitions if cluster else ():
        if cluster and one.resource and one.resource not in cluster.offered:
            yield Finding(
                Severity.ERROR,
                f"NetworkAttachmentDefinition {one.name} names the resource {one.resource}, of which none of the "
                f"{cluster.nodes} nodes has any",
                "offer it (resources in the device file, or in the other device plugin's), or correct the annotation "
                "k8s.v1.cni.cncf.io/resourceName",
            )


def names_unlisted(facts: Facts) -> Iterator[Finding]:
    """Whoever may write a definition may name whatever the node has: fine where that is the node's administrator."""
    ours = [one.name for one in facts.cluster.definitions if one.is_ours] if facts.cluster else []
    if ours and facts.without_names:
        yield Finding(
            Severity.NOTE,
            f"{facts.without_names} has no allowedNames, so NetworkAttachmentDefinitions for hpn ({len(ours)}, such as "
            f"{ours[0]}) may name every network, master, PF and device",
            "where others than the node's administrator write them, list in allowedNames what they may name",
        )


# Seconds.  A node looks every 600, and others may have its blocks after 3600.
_LONG: Final = 1800.0


def blocks_unseen(facts: Facts) -> Iterator[Finding]:
    """Others may take this node for dead, and its addresses; and it gets no more blocks."""
    for one in facts.state.blocks:
        if one.silent:
            evidence = f"{one.file}: the store that has these blocks does not answer as it should: {one.silent}"
            yield Finding(Severity.ERROR, evidence, "what the message says; new pods get addresses while there is room")
        elif one.seen > _LONG:
            evidence = f"{one.file}: this node last saw its blocks in the store {one.seen / 60:.0f} minutes ago"
            yield Finding(Severity.ERROR, evidence, "systemctl restart hpn-node, which looks at once")


def block_lost(facts: Facts) -> Iterator[Finding]:
    """Another node has taken a block while pods of this one had addresses of it."""
    for one in facts.state.blocks:
        if lost := one.states.get("lost", 0):
            evidence = f"{one.file}: {lost} of its blocks are another node's by now, and pods have addresses of them"
            yield Finding(
                Severity.ERROR, evidence, "delete these pods: hpn ipam show says which, hpn ipam blocks whose"
            )


def blocks_full(facts: Facts) -> Iterator[Finding]:
    """The next ADD has to ask the store for a block, and the cluster may have none."""
    for one in facts.state.blocks:
        if not one.room:
            evidence = f"{one.file}: this node's blocks ({one.states.get('held', 0)}) have no address left"
            yield Finding(
                Severity.WARNING, evidence, "hpn ipam show --cluster says whether the cluster has blocks left"
            )
