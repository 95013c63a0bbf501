"""The services of the hosts: every daemon's command line, and the files that it reads."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.host import Host, Service
from cluster.init import BOOT_ID, RUN
from cluster.space import PATH

HERE = Path(__file__).parent
PKI = "/etc/kubernetes/pki"
OFFERED = "/etc/cni/node.json"  # on the node's disk, as all of /etc/cni
CONTAINER = "/etc/kubernetes/container.json"
# User and group.  They are no secret: only this cluster's hosts reach its API server.
USERS = {
    "admin": "system:masters",
    "kcm": "system:masters",
    "system:kube-scheduler": "",
    "system:node:node1": "system:nodes",
    "system:node:node2": "system:nodes",
}


def write_kubeconfig(file: Path, server: str, user: str) -> None:
    """Write a client's user and the API server's address."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cluster = {"server": f"https://{server}:6443", "insecure-skip-tls-verify": True}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": f"token-{user}"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": user}}],
    }  # fmt: skip
    file.write_text(json.dumps(config))


def control_plane(host: Host, programs: Path) -> None:
    """etcd, API server, controller manager and scheduler.  etcd's data is in memory: this host keeps its power."""
    keys = host.path(PKI)
    keys.mkdir(parents=True)
    for words in (["genrsa", "-out", "sa.key", "2048"], ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"]):
        subprocess.run(["openssl", *words], cwd=keys, check=True, capture_output=True)
    (keys / "tokens.csv").write_text("".join(f'token-{u},{u},{u},"{g}"\n' for u, g in USERS.items()))
    for name, user in (("controller-manager", "kcm"), ("scheduler", "system:kube-scheduler")):
        write_kubeconfig(host.path(f"/etc/kubernetes/{name}.conf"), host.address, user)
    etcd = "http://127.0.0.1:2379"
    add(host, shutil.which("etcd") or "etcd", **{
        "data-dir": "/run/etcd", "listen-client-urls": etcd, "advertise-client-urls": etcd,
        "listen-peer-urls": "http://127.0.0.1:2380", "initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "initial-cluster": "default=http://127.0.0.1:2380",
    })  # fmt: skip
    add(host, programs / "kube-apiserver", **{
        "etcd-servers": etcd, "bind-address": "0.0.0.0", "advertise-address": host.address, "cert-dir": PKI,
        "token-auth-file": f"{PKI}/tokens.csv", "anonymous-auth": "false", "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction", "service-cluster-ip-range": "10.97.0.0/24",
        "service-account-issuer": "https://kubernetes.default.svc", "service-account-key-file": f"{PKI}/sa.pub",
        "service-account-signing-key-file": f"{PKI}/sa.key", "allow-privileged": "true",
        "kubelet-preferred-address-types": "InternalIP",
        # As the older versions have it that kubernetes.md names.
        "runtime-config": "admissionregistration.k8s.io/v1beta1=true",
    })  # fmt: skip
    add(host, programs / "kube-controller-manager", **{
        "kubeconfig": "/etc/kubernetes/controller-manager.conf", "root-ca-file": f"{PKI}/apiserver.crt",
        "service-account-private-key-file": f"{PKI}/sa.key", "leader-elect": "false",
    })  # fmt: skip
    add(host, programs / "kube-scheduler", **{
        "kubeconfig": "/etc/kubernetes/scheduler.conf", "leader-elect": "false",
    })  # fmt: skip


def node_services(host: Host, programs: Path, server: str) -> None:
    """containerd, kubelet and the agent, which start at boot, and `hpn node`, which starts only on request."""
    write_kubeconfig(host.path("/etc/kubernetes/kubelet.conf"), server, f"system:node:{host.name}")
    write_kubeconfig(host.path("/etc/kubernetes/admin.conf"), server, "admin")
    host.path(CONTAINER).write_text(json.dumps(_container(programs)))
    add(host, programs / "containerd", config=str(HERE / "etc/containerd.toml"))
    add(host, programs / "kubelet", **{
        "config": str(HERE / "etc/kubelet.yaml"), "kubeconfig": "/etc/kubernetes/kubelet.conf",
        "hostname-override": host.name, "node-ip": host.address, "root-dir": "/var/lib/kubelet", "v": "2",
    })  # fmt: skip
    host.add_service("agent", ["/opt/cni/bin/hpn", "agent"])
    _hpn_node(host)
    host.at_boot += ["agent", "containerd", "kubelet"]


def _container(programs: Path) -> dict[str, Any]:
    """The initial specification of every container: ctr's default, and a bind mount of the node's boot id, which the
    container's own /proc does not have.

    runc accepts no mount of that file.  A hook of this kind runs in the container's namespaces, in its root, before the
    container has left the node's.
    """
    said = subprocess.run([programs / "ctr", "oci", "spec"], capture_output=True, check=True)
    spec: dict[str, Any] = json.loads(said.stdout)
    # Requests by CRI do not get these, and a pod with its own user namespace must not have them.
    spec["process"].pop("rlimits", None)
    bind = ["mount", "--bind", f"{RUN}/instead/{BOOT_ID}", f"proc/sys/{BOOT_ID}"]
    return spec | {"hooks": {"createContainer": [{"path": shutil.which("mount"), "args": bind}]}}


def offer(host: Host, *resources: Mapping[str, Any], **keys: Any) -> Service:
    """hpn node with these resources and other keys of its file, not started.  It keeps them until ``withdraw``; at
    later boots it starts before kubelet."""
    host.path(OFFERED).write_text(json.dumps({"resources": resources, **keys}))
    service = _hpn_node(host, "--config", OFFERED)
    host.at_boot.insert(0, service.name)
    return service


def withdraw(host: Host) -> None:
    """End ``offer``: stop hpn node, and restore its old configuration."""
    host.service("node").stop()
    host.at_boot.remove("node")
    host.path(OFFERED).unlink()
    _hpn_node(host)


def _hpn_node(host: Host, *words: str) -> Service:
    service = host.add_service("node", ["/opt/cni/bin/hpn", "node", *words])
    service.notifies = True
    return service


def add(host: Host, program: str | Path, **options: str) -> None:
    """Add a daemon named after its program."""
    words = [str(program), *(f"--{key}={value}" for key, value in options.items())]
    # containerd searches it for its shim.
    host.add_service(Path(program).name, words, PATH=f"{Path(program).parent}:{PATH}")
