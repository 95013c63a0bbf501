"""The node's directories, and those of distributions that have others (packaging/helm/hpn/distributions)."""

from typing import Final

from base.protocol.location import KUBELETS, PLUGIN

_K3S: Final = "/var/lib/rancher/k3s"
_MICROK8S: Final = "/var/snap/microk8s"
PLUGINS: Final = (
    PLUGIN,
    f"{_K3S}/data/cni/hpn",
    f"{_MICROK8S}/current/opt/cni/bin/hpn",
    "/var/lib/cni/bin/hpn",  # OpenShift
)
# The runtime's configurations.
NETWORKS: Final = (
    "/etc/cni/net.d",
    f"{_K3S}/agent/etc/cni/net.d",
    f"{_MICROK8S}/current/args/cni-network",
    "/etc/kubernetes/cni/net.d",  # OpenShift
)
# kubelet's directory of plugins' sockets.
REGISTRIES: Final = tuple(f"{kubelet}/plugins_registry" for kubelet in KUBELETS)
