"""Controllers of others in the cluster that act on the networks' definitions, from the API server.

A controller of MultiNetworkPolicies enforces them only on networks whose plugin's type its option names
(multi-networkpolicy-iptables, --network-plugins).  The network-resources-injector adds the resource of a pod's networks
to its limits.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from base.protocol.spec import Json
from ctl.api_objects import inside
from ctl.doctor.model import Controllers

if TYPE_CHECKING:
    from base.kubernetes.client import Client

_POLICIES: Final = tuple(f"/apis/k8s.cni.cncf.io/{one}/multi-networkpolicies" for one in ("v1beta1", "v1beta2"))
_DAEMONS: Final = "/apis/apps/v1/daemonsets"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_FOR: Final = "k8s.v1.cni.cncf.io/policy-for"
_PLUGINS: Final = re.compile(r"--network-plugins[=\s]\s*(\S+)")
_INJECTOR: Final = "network-resources-injector"


def controllers(server: "Client") -> Controllers:
    """What the API server reports; nothing of a kind that it does not know.  Raises Unreachable, BackendRefused."""
    policies = dict.fromkeys(found for path in _POLICIES for one in server.listed(path) for found in _networks(one))
    # Without policies, nothing of the daemons is of interest.
    daemons = server.listed(_DAEMONS) if policies else ()
    webhooks = server.listed(_WEBHOOKS)
    return Controllers(
        tuple(policies), frozenset(_types(daemons)), tuple(name for one in webhooks for name in _injectors(one))
    )


def _networks(policy: Json) -> Iterator[tuple[str, str]]:
    """A policy's name, with each network that it is for, both "namespace/name"."""
    about = inside(policy, "metadata")
    space = f"{about.get('namespace', '')}"
    for network in f"{inside(about, 'annotations').get(_FOR, '')}".split(","):
        name = network.strip()
        if name:
            yield f"{space}/{about.get('name', '')}", name if "/" in name else f"{space}/{name}"


def _types(daemons: Iterable[Json]) -> Iterator[str]:
    """The types of plugins that the daemons' options name."""
    for daemon in daemons:
        containers = inside(daemon, "spec", "template", "spec").get("containers")
        for one in containers if isinstance(containers, list) else ():
            words = [*(one.get("command") or ()), *(one.get("args") or ())] if isinstance(one, dict) else []
            for found in _PLUGINS.findall(" ".join(map(str, words))):
                yield from found.strip("\"'").split(",")


def _injectors(webhook: Json) -> Iterator[str]:
    name = f"{inside(webhook, 'metadata').get('name', '')}"
    parts = webhook.get("webhooks")
    hooks = [f"{one.get('name', '')}" for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
    if any(one.startswith(_INJECTOR) for one in (name, *hooks)):
        yield name
