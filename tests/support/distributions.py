"""Nodes that imitate a distribution: its paths, its read-only parts, and the values of the chart for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import helm

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster.two_nodes import Cluster

# The places of this cluster for the values of a distribution, and for what no value names.
NETWORKS = "/etc/cni/net.d"
USUAL = {"cniBinDir": "/opt/cni/bin", "kubeletDir": "/var/lib/kubelet"}
OTHERS = {
    "k3s": {"/var/lib/rancher/k3s/agent/etc/cni/net.d": NETWORKS},
    "openshift": {"/etc/kubernetes/cni/net.d": NETWORKS},
}
PROTECTED = {"bottlerocket": ["/usr/local"], "talos": ["/usr/local", "/opt/cni/bin"]}


@contextmanager
def imitated(bare: Cluster, name: str) -> Iterator[dict[str, Any]]:
    """The values for a distribution, whose paths the nodes also have, and whose read-only parts are so here."""
    values: dict[str, Any] = yaml.safe_load((helm.CHART / "distributions" / f"{name}.yaml").read_text())
    paths = {values[key]: usual for key, usual in USUAL.items() if key in values} | OTHERS.get(name, {})
    for node in bare.nodes.values():
        for path, usual in paths.items():
            node.run("mkdir", "-p", path)
            node.run("mount", "--rbind", usual, path)
        for path in PROTECTED.get(name, ()):
            node.run("mount", "--bind", path, path)
            node.run("mount", "-o", "remount,bind,ro", path)
    yield values
    for node in bare.nodes.values():
        for path in paths:
            node.run("umount", "--recursive", path)
        for path in PROTECTED.get(name, ()):
            node.run("umount", path)
