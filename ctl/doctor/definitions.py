"""NetworkAttachmentDefinitions and what nodes have, by the API server, which is asked only if somebody says as whom.

A NetworkAttachmentDefinition names the resource of its pods by an annotation (Network Plumbing WG, "De-facto Standard",
section 3.2.2).  A node's resources are in its Node object's status; where a driver of DRA answers for one, the
DeviceClass names it (KEP-5004).
"""

import re
from pathlib import Path
from typing import Any, Final

from cni.kernel import budget
from cni.protocol.errors import CniError
from cni.protocol.spec import Json
from ctl.doctor.cluster import Cluster, Definition
from ctl.doctor.reading import Reader

_DEFINITIONS: Final = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
_CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
_NODES: Final = "/api/v1/nodes"
_RESOURCE: Final = "k8s.v1.cni.cncf.io/resourceName"
_OURS: Final = r'"type"\s*:\s*"hpn(-ipam)?"'


def cluster(read: Reader, kubeconfig: Path) -> Cluster | None:
    """What the API server says to whom the kubeconfig names; None where it says nothing, and why is noted."""
    from ipam.cluster import credentials, http, lists  # noqa: PLC0415  # they load TLS, and few ask

    budget.begin()
    try:
        whom = credentials.read(f"{kubeconfig.absolute()}")
        server = http.Http([whom.server], whom.tls, whom.headers)
        try:
            definitions = tuple(_definition(one) for one in lists.objects(server, _DEFINITIONS))
            nodes = list(lists.objects(server, _NODES))
            classes = list(lists.objects(server, _CLASSES))
        finally:
            server.close()
    except CniError as e:
        read.unread[f"{kubeconfig}"] = e.msg
        return None
    offered = {name for node in nodes for name, count in _inside(node, "status", "allocatable").items() if count != "0"}
    offered |= {f"{name}" for one in classes if (name := _inside(one, "spec").get("extendedResourceName"))}
    return Cluster(len(nodes), frozenset(offered), definitions)


def _definition(body: Json) -> Definition:
    about = _inside(body, "metadata")
    name = f"{about.get('namespace', '')}/{about.get('name', '')}"
    is_ours = re.search(_OURS, f"{_inside(body, 'spec').get('config')}") is not None
    return Definition(name, str(_inside(about, "annotations").get(_RESOURCE) or ""), is_ours)


def _inside(body: Json, *keys: str) -> Json:
    """The object at the end of these keys; an empty one if there is none."""
    found: Any = body
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
