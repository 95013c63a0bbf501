"""What hpn daemonset install notes about a node: faults that do not stop it, with their remedies."""

from collections.abc import Collection, Iterator
from pathlib import Path

from ctl.daemonset import leaving
from ctl.installation import layout
from node.kubelet import directory
from node.model import Settings


def of_plugins(root: Path) -> Iterator[str]:
    """A note if the runtime's plugins, or Multus, are not below the root.  Raises OSError."""
    names = {one.name for one in (root / layout.HPN).parent.iterdir()}
    others = {name for name in names if not name.startswith(".")} - {"hpn", "hpn-ipam"}
    if not others:
        yield (
            "/opt/cni/bin has no other plugin: if the runtime has another directory for plugins, name that (cniBinDir "
            "in the chart)"
        )
    # Not its configuration, whose directory differs between distributions.
    elif not any(name.startswith("multus") for name in others):
        yield (
            "/opt/cni/bin has no Multus: until it is installed on this node, no pod here gets a "
            "NetworkAttachmentDefinition's interface"
        )


def of_kubelet(kubelet: Path, offered: Collection[str]) -> Iterator[str]:
    """A note if this is not kubelet's directory on the host, and for each resource that another program offers.

    Raises OSError.
    """
    if not leaving.is_here(kubelet):
        yield f"{kubelet} is another directory than kubelet's, which has this pod; name that (kubeletDir in the chart)"
        return
    folder = kubelet / "plugins_registry"
    found = directory.resources(directory.others(folder)) if folder.is_dir() else {}
    for name in sorted(found.keys() & offered):
        yield (
            f"{name}: {found[name]} is another device plugin that offers it, so hpn node does not, until that one "
            "ends; remove the node from its DaemonSet, or the resource from a file"
        )


def of_container(settings: Settings) -> Iterator[str]:
    """A note if hpn node cannot carry this out in a container without more of the node."""
    asked = ["pfs"] if any(rule.num_vfs is not None or rule.guids for rule in settings.pfs) else []
    asked += ["rdmaNamespaces"] if settings.rdma_exclusive is not None else []
    if asked:
        yield (
            f"hpn node cannot write to the node's /sys and /etc/modprobe.d, as {' and '.join(asked)} of the device "
            "file may need; set provision: true (docs/user/kubernetes.md)"
        )
