"""Objects for kubectl: pods that stay, and networks for their annotations."""

import json
from collections.abc import Mapping
from typing import Any

from cluster import image


def pod(name: str, *, node: str = "", networks: str = "", resources: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A pod that sleeps, on that node or on any; ``networks`` is Multus's annotation, such as rail0@hpn0."""
    container = {
        "name": "c",
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": image.COMMAND,
        "resources": {"limits": {key: str(value) for key, value in (resources or {}).items()}},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "Default",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "containers": [container],
    }
    annotations = {"k8s.v1.cni.cncf.io/networks": networks} if networks else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def network(name: str, plugin: Mapping[str, Any], *, resource: str = "") -> dict[str, Any]:
    """A NetworkAttachmentDefinition of one plugin; each of its pods gets a device of ``resource``."""
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else {}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"config": json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]})},
    }
