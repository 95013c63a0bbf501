"""A round over the node's labels, in a child process: by a NodeFeature object, or else in the Node object itself.

Node Feature Discovery (NFD) labels the node that a NodeFeature names in its label ``nfd.node.kubernetes.io/node-name``,
in any namespace (kubernetes-sigs.github.io/node-feature-discovery, "Customization guide").  It gives a label without a
prefix another name, so such a label is written to the Node.  Each change is applied with a field manager of its own, so
it removes only labels that this program wrote.
"""

import signal
from collections.abc import Mapping
from contextlib import closing
from typing import Final
from urllib.parse import quote

from base.kubernetes.client import Client
from base.protocol.errors import BackendRefused, CniError
from base.protocol.spec import Json
from node.dra import DRIVER, api

MANAGER: Final = f"{DRIVER}-labels"
_MOST: Final = 300  # seconds for a round
_NFD: Final = "nfd.k8s-sigs.io/v1alpha1"
_OF_NODE: Final = "nfd.node.kubernetes.io/node-name"
_APPLY: Final = f"?fieldManager={MANAGER}&force=true"
_RIGHTS: Final = "set nodeLabels.enabled of the chart, or remove labels from the device file"


def publish(kubeconfig: str, labels: Mapping[str, str]) -> str:
    """Do a round.  Return the problem with its remedy; empty without one."""
    signal.alarm(_MOST)
    try:
        whom, node = api.credential(kubeconfig)
        with closing(Client(whom, is_patient=True, patience=api.PATIENCE)) as server:
            own = labels
            if _as_feature(server, whom.namespace(), node, {name: labels[name] for name in labels if "/" in name}):
                own = {name: labels[name] for name in labels if "/" not in name}
            if own or not labels:
                _to_node(server, node, own, labels)
    except BackendRefused as e:
        return f"the node's labels are not written: {e.msg}; {_RIGHTS}"
    except CniError as e:
        return f"the node's labels are not written: {e.msg}"
    return ""


def _as_feature(server: Client, namespace: str, node: str, labels: Mapping[str, str]) -> bool:
    """Write the NodeFeature, or remove it without labels.  Return False if there is no NFD, or no right to do so.

    Raises BackendRefused, Unreachable.
    """
    name = f"{node}-hpn"
    path = f"/apis/{_NFD}/namespaces/{namespace}/nodefeatures/{quote(name, safe='')}"
    answer = server.send("GET", path)
    if answer.status == 403 or (answer.status == 404 and not answer.is_absent):
        return False
    there = {} if answer.is_absent else server.good(answer, "get", "nodefeatures")
    about, spec = there.get("metadata") or {}, there.get("spec") or {}
    if not labels:
        version = f"{about.get('resourceVersion')}"
        return not there or server.delete(path, "nodefeatures", f"{about.get('uid')}", version)
    if spec.get("labels") == labels and (about.get("labels") or {}).get(_OF_NODE) == node:
        return True
    body = {
        "apiVersion": _NFD,
        "kind": "NodeFeature",
        "metadata": {"name": name, "namespace": namespace, "labels": {_OF_NODE: node}},
        # Some versions require all of them.
        "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": dict(labels)},
    }
    answer = server.send("PATCH", f"{path}{_APPLY}", body)
    return answer.status != 403 and bool(server.good(answer, "apply", "nodefeatures"))


def _to_node(server: Client, node: str, own: Mapping[str, str], all_labels: Mapping[str, str]) -> None:
    """Write its ``own`` labels to the Node, unless it has them, and others of ``all_labels`` that it got before NFD
    came: NFD would not notice their end.  Raises BackendRefused, Unreachable."""
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    about: Json = server.good(server.send("GET", path), "get", "nodes").get("metadata") or {}
    there, owned = about.get("labels") or {}, _owned(about)
    labels = {name: value for name, value in all_labels.items() if name in own or name in owned}
    if owned == labels.keys() and all(there.get(name) == value for name, value in labels.items()):
        return
    # The uid lets the API server make no Node of that name.
    metadata = {"name": node, "uid": about.get("uid"), "labels": labels}
    answer = server.send("PATCH", f"{path}{_APPLY}", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    server.good(answer, "label", "nodes")


def _owned(about: Json) -> set[str]:
    """The labels that this program has applied to an object."""
    applied = [one for one in about.get("managedFields") or () if one.get("manager") == MANAGER]
    fields = [((one.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {} for one in applied]
    return {name.removeprefix("f:") for one in fields for name in one}
