"""What the cluster's objects ask for."""

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
