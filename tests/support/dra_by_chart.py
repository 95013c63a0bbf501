"""rail0 of node1, which the chart offers by the device plugin or by DRA, and pods that have its shares."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster.space import until
from cluster.two_nodes import CONTROL, Cluster
from support.bare_nodes import RESOURCE

SHARES, PATIENCE = 2, 300
PLUGIN = {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.60.0.0/24"}]]}}
# No program serves the cluster's own addresses here.
REACHED = {"KUBERNETES_SERVICE_HOST": CONTROL, "KUBERNETES_SERVICE_PORT": "6443"}


def device_file(by: str) -> str:
    entry = {"name": RESOURCE, "kind": "master", "count": SHARES, "by": by, "selectors": {"ifNames": ["rail0"]}}
    return json.dumps({"resources": [entry]})


def shares(cluster: Cluster) -> str:
    """The shares in node1's slices; empty without one."""
    found: list[dict[str, Any]] = cluster.get("resourceslices")["items"]
    ours = [one for one in found if one["spec"]["driver"] == "hpn-cni.io" and one["spec"].get("nodeName") == "node1"]
    listed = [one for part in ours for one in part["spec"].get("devices", ())]
    return str(listed[0]["capacity"]["shares"]["value"]) if listed else ""


def end(cluster: Cluster, *pods: str) -> None:
    cluster.kubectl("delete", "pod", *pods, "--wait=false", "--grace-period=1")


def await_end(cluster: Cluster, *pods: str) -> None:
    def are_gone() -> bool:
        return not {*pods} & {one["metadata"]["name"] for one in cluster.get("pods", "--namespace=default")["items"]}

    until(are_gone, f"{pods} to end", PATIENCE, 0.2)
