"""Checks of other controllers in the cluster, which act on the networks' definitions.  Pure."""

from collections.abc import Iterator
from typing import Final

from ctl.doctor.model import Facts, Finding, Severity

_OURS: Final = "hpn"


def policy_unenforced(facts: Facts) -> Iterator[Finding]:
    """No controller enforces a MultiNetworkPolicy on a network of hpn, and no event reports that."""
    cluster = facts.cluster
    if cluster is None or _OURS in cluster.controllers.enforced:
        return
    ours = {one.name for one in cluster.definitions if one.plugin == _OURS}
    for policy, network in cluster.controllers.policies:
        if network in ours:
            yield Finding(
                Severity.ERROR,
                f"MultiNetworkPolicy {policy} is for network {network}, whose type is hpn, and no DaemonSet has hpn in "
                "--network-plugins",
                "add it to that option of the policies' controller: --network-plugins=macvlan,hpn",
            )


def resource_injected(facts: Facts) -> Iterator[Finding]:
    """A pod with a claim gets a second device, or stays Pending, because a webhook also requests the network's."""
    cluster, file = facts.cluster, facts.node_file
    if not (cluster and cluster.controllers.injectors and file and file.settings):
        return
    by_claim = {one.full_name for one in file.settings.resources if one.by_dra}
    for one in cluster.definitions:
        if one.is_ours and one.resource in by_claim:
            yield Finding(
                Severity.NOTE,
                f"MutatingWebhookConfiguration {', '.join(cluster.controllers.injectors)} adds {one.resource} to the "
                f"limits of pods of NetworkAttachmentDefinition {one.name}, and {file.path} offers it by: dra",
                "leave namespaces with claims out of its namespaceSelector, or attach by chain mode",
            )
