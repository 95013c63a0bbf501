"""The whole cluster: a control plane, two nodes, a switch; kubectl makes the pods."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from cluster import image, multus
from cluster.host import Host, Wire, batch
from cluster.multus.api import ApiFailed, Server
from cluster.services import control_plane, node_services, write_kubeconfig
from cluster.space import Failed, Space, hierarchies, inside, said, until

HERE = Path(__file__).parent
RAILS = tuple(f"rail{n}" for n in range(8))
BRIDGES = ("management", *RAILS)
CONTROL = "10.99.0.254"
NODES = {"node1": 1, "node2": 2}
CONTROLLERS = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids"}
LOG_TAIL = 25  # lines
ADMIN = "/etc/kubernetes/admin.conf"


def missing() -> str:
    """The reason why this machine cannot run a cluster; empty if it can."""
    if os.geteuid() != 0:
        return "root, to make namespaces and cgroups"
    if lacking := CONTROLLERS - {name for path in hierarchies() for name in path.name.split(",")}:
        return f"cgroups of version 1, which the nodes' kubelets use here: not mounted are {', '.join(sorted(lacking))}"
    return ""


def built() -> Path:
    """The directory of the cluster's programs, built first if needed.  Raises Failed."""
    done = subprocess.run([HERE / "build"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip())
    return Path(done.stdout.strip())


class Cluster:
    """A cluster for the time of a ``with`` block.

    ``nodes`` are node1 and node2: Hosts with kubelet, containerd 2 and hpn, which share rail0 to rail7.  ``control`` is
    the host of etcd, API server, controller manager and scheduler, and runs no pod.  ``programs`` is the output of
    `build`, ``binary`` is dist/hpn.
    """

    def __init__(self, programs: Path, binary: Path) -> None:
        self._programs = programs
        self._binary = binary
        self._stack = ExitStack()
        self._server: Server | None = None
        self._asking = Lock()
        self.folder: Path
        self.control: Host
        self.nodes: dict[str, Host] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            switch = self.kept(stack)
            batch(switch, [f"link add {name} type bridge" for name in BRIDGES])
            batch(switch, [f"link set {name} up" for name in BRIDGES])
            image.write(self.folder / "image.tar")
            try:
                self._start(switch)
            except Failed as e:  # the logs disappear with the cluster
                e.add_note("\n".join(f"--- {name}\n{end}" for name, end in self.said().items()))
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def kept(self, stack: ExitStack) -> Space:
        """The switch, which has a keeper until the stack ends; sets `folder`."""
        words = [sys.executable, str(HERE / "keeper.py")]
        keeper = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd="/"
        )
        stack.enter_context(keeper)  # closes its input, and waits until the keeper has removed everything
        assert keeper.stdout
        up = json.loads(said(keeper.stdout, keeper, words))
        self.folder = Path(up["folder"])
        return Space("switch", up["pid"])

    def hosts(self) -> dict[str, Host]:
        """All hosts by name."""
        return {"control": self.control, **self.nodes}

    def said(self) -> dict[str, str]:
        """The end of every daemon's log, by host and daemon."""
        services = {f"{name}: {one.name}": one for name, host in self.hosts().items() for one in host.services.values()}
        return {
            name: "\n".join(one.log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
            for name, one in services.items()
            if one.log.exists()
        }

    def boot(self, node: Host) -> None:
        """Power on, and start the node's services in boot order."""
        node.boot()
        for name in node.at_boot:
            node.service(name).start()
            if name == "containerd":
                until(lambda: self._import(node), f"containerd and the image of {node.name}", 60)

    def load(self, node: Host, archive: Path) -> None:
        """Load an image into the node (``image.build``).  Raises Failed."""
        self._load(node, archive, check=True)

    def unload(self, node: Host, *names: str) -> None:
        """Remove images from the node.  Raises Failed."""
        node.run(*self._images, "remove", *names)

    def restore(self) -> None:
        """Reset power, daemons and nodes to the state after a boot."""
        for node in self.nodes.values():
            if node.space is None:
                self.boot(node)
            for name in node.at_boot:
                if not node.service(name).pid:
                    node.service(name).start()
        self.wait_ready()

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = 180) -> str:
        """The output of kubectl for the cluster's administrator.  Raises Failed."""
        argv = [str(self._programs / "kubectl"), f"--kubeconfig={ADMIN}", "--cache-dir=/run/home/cache", *words]
        return str(self.control.run(*argv, stdin=stdin, check=check, timeout=timeout).stdout)

    def shell(self, script: str) -> str:
        """The output of a script that a person with kubectl types, up to the first line that fails.  Raises Failed."""
        kubectl = f'kubectl() {{ {self._programs}/kubectl --kubeconfig={ADMIN} --cache-dir=/run/home/cache "$@"; }}'
        return str(self.control.run("sh", "-ec", f"{kubectl}\n{script}", timeout=180).stdout)

    def apply(self, *manifests: Mapping[str, Any] | Path) -> None:
        """Apply objects, or files of them."""
        texts = [m.read_text() if isinstance(m, Path) else json.dumps(m) for m in manifests]
        self.kubectl("apply", "--filename=-", stdin="\n---\n".join(texts))

    def get(self, *words: str) -> Any:
        """The decoded output of `kubectl get`.  Raises Failed.

        Nodes and pods are read often, and kubectl takes 70 ms of processor time: so they are read without it.
        """
        if path := plain(*words):
            return self._asked(path)
        return json.loads(self.kubectl("get", "--output=json", *words))

    def delete(self, *words: str) -> None:
        """Run `kubectl delete`, and wait until the objects are gone."""
        self.kubectl("delete", "--timeout=120s", "--ignore-not-found", *words)

    def wait(self, condition: str, *words: str, timeout: int = 120) -> None:
        """Wait until the objects have the condition, such as Ready."""
        self.kubectl("wait", f"--for=condition={condition}", f"--timeout={timeout}s", *words)

    def wait_ready(self) -> None:
        """Wait until every node is Ready in this boot."""

        def ready() -> bool:
            found = {node["metadata"]["name"]: node["status"] for node in self.get("nodes")["items"]}
            return all(
                name in found
                and found[name]["nodeInfo"]["bootID"] == node.boot_id()
                and any(c["type"] == "Ready" and c["status"] == "True" for c in found[name]["conditions"])
                for name, node in self.nodes.items()
            )

        until(ready, "both nodes to be Ready", 120, 0.2)

    def containers(self, *pods: str) -> dict[str, str]:
        """The id of the first container of each of these pods that is Ready; without arguments, of all pods."""
        found = self.get("pods")["items"]
        return {
            pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"]
            for pod in found
            if (not pods or pod["metadata"]["name"] in pods)
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        }

    def wait_restarted(self, before: Mapping[str, str]) -> None:
        """Wait until these pods are Ready with other containers.  Until kubelet is up again, their status is the old
        one."""

        def restarted() -> bool:
            now = self.containers(*before)
            return now.keys() == before.keys() and not now.items() & before.items()

        until(restarted, f"{', '.join(before)} to be Ready again", 120, 0.2)

    def execute(self, pod: str, *argv: str, namespace: str = "default") -> str:
        """The output of argv in the pod's first container.  Raises Failed."""
        return self.kubectl("exec", f"--namespace={namespace}", pod, "--", *argv)

    def _asked(self, path: str) -> Any:
        assert self.control.space
        with self._asking:
            self._server = self._server or Server(self.control.path(ADMIN))
            try:
                with inside(self.control.space.pid):
                    return self._server.get(path)
            except ApiFailed as e:
                raise Failed(f"{e}") from e
            finally:
                self._server.close()

    def _start(self, switch: Space) -> None:
        self._start_control(switch)
        for name, number in NODES.items():
            self._make_node(switch, name, number)
        self._await_api()
        for node in self.nodes.values():
            self.boot(node)
        self.apply(*(HERE / "objects").glob("*.yaml"))
        self.wait_ready()

    def _start_control(self, switch: Space) -> None:
        wire = Wire("eth0", "management", f"{CONTROL}/24")
        self.control = Host("control", CONTROL, switch, self.folder, [wire])
        self.control.boot()
        control_plane(self.control, self._programs)
        write_kubeconfig(self.control.path(ADMIN), CONTROL, "admin")
        for name in ("etcd", "kube-apiserver"):
            self.control.service(name).start()

    def _await_api(self) -> None:
        until(lambda: self.kubectl("get", "--raw=/readyz", check=False) == "ok", "the API server", 180, 0.2)
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.control.service(name).start()

    def _make_node(self, switch: Space, name: str, number: int) -> None:
        address = f"10.99.0.{number}"
        wires = [Wire("eth0", "management", f"{address}/24"), *(Wire(rail, rail) for rail in RAILS)]
        routes = {f"10.244.{n}.0/24": f"10.99.0.{n}" for n in NODES.values() if n != number} | {"default": CONTROL}
        node = self.nodes[name] = Host(name, address, switch, self.folder, wires, routes)
        node_services(node, self._programs, CONTROL)
        plugins, networks = node.path("/opt/cni/bin"), node.path("/etc/cni/net.d")
        for directory in (plugins, networks):
            directory.mkdir(parents=True)
        for plugin in ("bridge", "host-local", "loopback", "macvlan"):
            shutil.copy(self._programs / plugin, plugins)
        shutil.copy(self._binary, plugins / "hpn")
        (plugins / "hpn-ipam").hardlink_to(plugins / "hpn")
        multus.install(plugins)
        (networks / "00-multus.conf").write_text(json.dumps(multus_network(number)))

    def _import(self, node: Host) -> bool:
        listed = node.run(*self._images, "list", "--quiet", check=False).stdout.split()
        return image.NAME in listed or self._load(node, self.folder / "image.tar", check=False)

    def _load(self, node: Host, archive: Path, *, check: bool) -> bool:
        return node.run(*self._images, "import", str(archive), check=check).returncode == 0

    @property
    def _images(self) -> list[str]:
        return [str(self._programs / "ctr"), "--namespace=k8s.io", "images"]


def plain(kind: str, *words: str) -> str:
    """The API server's path for `kubectl get` with these words; empty for objects other than nodes and pods."""
    options = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    names = [word for word in words if not word.startswith("--")]
    if kind not in ("node", "nodes", "pod", "pods") or len(names) > 1 or options.keys() - {"--namespace", "--selector"}:
        return ""
    folder = "nodes" if kind.startswith("node") else f"namespaces/{options.get('--namespace', 'default')}/pods"
    query = f"?{urlencode({'labelSelector': options['--selector']})}" if "--selector" in options else ""
    return "/".join(("/api/v1", folder, *names)) + query


def multus_network(number: int) -> dict[str, Any]:
    """The configuration for containerd on a node: Multus, which attaches the cluster's own network and the pods'
    requested ones."""
    return {
        "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "kubeconfig": ADMIN,
        "delegates": [pod_network(number)],
    }  # fmt: skip


def pod_network(number: int) -> dict[str, Any]:
    """The cluster's own network on a node: every pod's eth0."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": f"10.244.{number}.0/24"}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
