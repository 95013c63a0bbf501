"""A node of the cluster under systemd, which runs containerd and kubelet as units."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.host import Host
from cluster.init import KEPT_BY_SYSTEMD, UNITS
from cluster.two_nodes import Cluster

# As Debian's containerd.service and kubeadm's kubelet.service.
CONTAINERD = "[Service]\nType=notify\nDelegate=yes\nKillMode=process\nRestart=always\n"
KUBELET = "[Unit]\nWants=containerd.service\nAfter=containerd.service\n[Service]\nRestart=always\nRestartSec=1\n"


@contextmanager
def under_systemd(cluster: Cluster, node: Host) -> Iterator[None]:
    """Boot the node with systemd for the time of the block."""
    at_boot = node.at_boot
    node.power_cut()
    write(node, "containerd", CONTAINERD)
    write(node, "kubelet", KUBELET)
    enable(node, "systemd-journald.service", "/lib/systemd/system")
    node.at_boot, node.systemd = [], True
    try:
        cluster.boot(node)
        cluster.wait_ready()
        yield
    finally:
        if node.space:
            node.power_cut()
        for directory in KEPT_BY_SYSTEMD:
            shutil.rmtree(node.path(directory), ignore_errors=True)
        node.at_boot, node.systemd = at_boot, False
        cluster.restore()


def write(node: Host, name: str, unit: str) -> None:
    """Write the service as an enabled unit."""
    service = node.service(name)
    set_to = "".join(f"Environment={key}={value}\n" for key, value in service.environment.items())
    output = f"StandardOutput=append:/var/log/{name}.log\nStandardError=inherit\n"
    enable(node, f"{name}.service", "..")
    file = node.path(f"{UNITS}/{name}.service")
    file.write_text(f"{unit}ExecStart={' '.join(service.command)}\n{set_to}{output}")


def enable(node: Host, unit: str, folder: str) -> None:
    wanted = node.path(f"{UNITS}/multi-user.target.wants/{unit}")
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to(f"{folder}/{unit}")
