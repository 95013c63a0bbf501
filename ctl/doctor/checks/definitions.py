"""What the cluster's objects ask for, and may name."""

from collections.abc import Iterator

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
                "offer it (resources in node.yaml of hpn node, or the other device plugin's file), or correct the "
                "annotation k8s.v1.cni.cncf.io/resourceName",
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
