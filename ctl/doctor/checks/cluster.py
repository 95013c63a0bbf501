"""Checks of the cluster: resources of networks, and this node's blocks of addresses."""

from collections.abc import Iterator
from typing import Final

from ctl.doctor.model import Facts, Finding, Severity


def resource_nobody_has(facts: Facts) -> Iterator[Finding]:
    """A network names a resource that no node offers.  Its pods stay Pending."""
    cluster = facts.cluster
    for one in cluster.definitions if cluster else ():
        if cluster and one.resource and one.resource not in cluster.offered:
            yield Finding(
                Severity.ERROR,
                f"NetworkAttachmentDefinition {one.name} names the resource {one.resource}, which none of the "
                f"{cluster.nodes} nodes offers",
                "offer it (resources in the device file, or in another device plugin's), or correct the annotation "
                "k8s.v1.cni.cncf.io/resourceName",
            )


def names_unlisted(facts: Facts) -> Iterator[Finding]:
    """Authors of NetworkAttachmentDefinitions may name every device of the node.  That is right if they are its
    administrators."""
    ours = [one.name for one in facts.cluster.definitions if one.is_ours] if facts.cluster else []
    if ours and facts.without_names:
        yield Finding(
            Severity.NOTE,
            f"{facts.without_names} has no allowedNames, so NetworkAttachmentDefinitions for hpn ({len(ours)}, such as "
            f"{ours[0]}) may name every network, master, PF and device",
            "if other people than the node's administrators write them, list the permitted names in allowedNames",
        )


# Seconds.  A node sends a heartbeat every 600 s; others may reclaim its blocks after 3600 s.
_LONG: Final = 1800.0


def blocks_unseen(facts: Facts) -> Iterator[Finding]:
    """Other nodes may suspect this node and reclaim its blocks; until then it gets no new ones."""
    for one in facts.state.blocks:
        if one.silent:
            evidence = f"{one.file}: the store of these blocks cannot be read: {one.silent}"
            yield Finding(
                Severity.ERROR, evidence, "follow this message; new pods get addresses until the node's blocks are full"
            )
        elif one.seen > _LONG:
            evidence = f"{one.file}: this node last read its blocks from the store {one.seen / 60:.0f} minutes ago"
            yield Finding(Severity.ERROR, evidence, "systemctl restart hpn-node, which reads them at once")


def block_lost(facts: Facts) -> Iterator[Finding]:
    """Another node owns a block whose addresses pods of this node still use."""
    for one in facts.state.blocks:
        if lost := one.states.get("lost", 0):
            evidence = f"{one.file}: {lost} of its blocks now belong to other nodes, and pods here use their addresses"
            yield Finding(
                Severity.ERROR, evidence, "delete these pods: hpn ipam show lists them, hpn ipam blocks the new owners"
            )


def blocks_full(facts: Facts) -> Iterator[Finding]:
    """The next ADD must claim a block from the store, and the cluster may have none left."""
    for one in facts.state.blocks:
        if not one.room:
            evidence = f"{one.file}: this node's blocks ({one.states.get('held', 0)}) have no address left"
            yield Finding(
                Severity.WARNING, evidence, "check whether the cluster has free blocks: hpn ipam show --cluster"
            )
