"""The surroundings of the stand-in for Multus: an API server, a kubelet, and plugins that record their requests.

Each one is minimal.  The cluster tier has the real ones.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from support.topology import Pod

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "netns-fixtures"))

from cluster.multus import install  # noqa: E402

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
NADS = "/apis/k8s.cni.cncf.io/v1/namespaces/{}/network-attachment-definitions/{}"
STATUS = "k8s.v1.cni.cncf.io/network-status"
# A plugin that appends its requests to the file CALLS.  It answers with "interfaces" and "ips" of its configuration,
# fails the commands in "fails", and at ADD runs the commands of "run" in the pod.
RECORDER = """\
#!/usr/bin/python3 -IS
import json, os, subprocess, sys
conf, env = json.load(sys.stdin), os.environ
with open({calls!r}, "a") as out:
    out.write(json.dumps({{"env": {{k: v for k, v in env.items() if k[:4] == "CNI_"}}, "conf": conf}}) + chr(10))
if env["CNI_COMMAND"] in conf.get("fails", []):
    print(json.dumps({{"code": 55, "msg": "no", "details": "for the test"}}))
    sys.exit(1)
if env["CNI_COMMAND"] == "ADD":
    for words in conf.get("run", []):
        subprocess.run(["nsenter", "--net=" + env["CNI_NETNS"], *words], check=True)
    own = {{"name": env["CNI_IFNAME"], "sandbox": env["CNI_NETNS"], "mac": "02:00:00:00:00:01"}}
    before = conf.get("prevResult", {{"interfaces": conf.get("interfaces", [own]), "ips": conf.get("ips", [])}})
    print(json.dumps(before | {{"cniVersion": conf["cniVersion"], "routes": conf.get("routes", [])}}))
"""
# A grpcio server with one answer for kubelet's only method.
KUBELET = """\
import sys, grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
answer = sys.stdin.buffer.read()
method = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})])
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("up", flush=True)
server.wait_for_termination()
"""
# The machine's own /var/lib and /run stay unchanged: in the command's own mount namespace, the test provides the
# folders of kubelet and of device plugins.
PRIVATE = """\
mount -t tmpfs none /var/lib
mkdir -p /var/lib/kubelet "$1/run"
ln -s "$1/kubelet" /var/lib/kubelet/pod-resources
mount --rbind /run "$1/run"
mount -t tmpfs none /run
mkdir /run/netns
mount --rbind "$1/run/netns" /run/netns
ln -s "$1/devices" /run/k8s.cni.cncf.io
exec "$1/bin/multus"
"""


@dataclass
class World:
    """A node's folder, and the API server's objects by path."""

    folder: Path
    objects: dict[str, Json] = field(default_factory=dict)
    conf: Json = field(default_factory=dict)

    def define(self, name: str, config: Json, namespace: str = "default", resource: str = "") -> None:
        """Create a NetworkAttachmentDefinition."""
        annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else {}
        spec = {"config": json.dumps({"cniVersion": "1.0.0", "name": name, "type": "recorder"} | config)}
        self.objects[NADS.format(namespace, name)] = {"metadata": {"annotations": annotations}, "spec": spec}

    def annotate(self, networks: str | list[Json], key: str = "k8s.v1.cni.cncf.io/networks") -> None:
        """Create the pod with that annotation."""
        text = networks if isinstance(networks, str) else json.dumps(networks)
        meta = {"name": "p", "namespace": "default", "uid": "u-1", "annotations": {key: text}}
        self.objects[f"{PODS}/p"] = {"metadata": meta}

    def run(self, command: str, pod: Pod, **conf: Any) -> Any:
        """Run a command as a runtime calls Multus, and return its answer."""
        args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1"
        of_pod = {"CNI_CONTAINERID": "c1", "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0", "CNI_ARGS": args}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", PRIVATE, "sh", self.folder],
            env={"PATH": os.environ["PATH"], "CNI_PATH": str(self.folder / "bin"), "CNI_COMMAND": command, **of_pod},
            input=json.dumps(self.conf | conf), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return json.loads(done.stdout or "null")

    def calls(self) -> list[Json]:
        """The plugins' requests since the last call."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def told(self) -> list[tuple[str, str, str]]:
        """The command, network and interface of the requests since the last call."""
        return [(c["env"]["CNI_COMMAND"], c["conf"]["name"], c["env"]["CNI_IFNAME"]) for c in self.calls()]

    def status(self) -> list[Json]:
        """The pod's network-status."""
        return list(json.loads(self.objects[f"{PODS}/p"]["metadata"]["annotations"][STATUS]))


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """A node with the cluster network ``delegates``, which has one plugin and answers with an address."""
    (folder / "bin").mkdir()
    install(folder / "bin")
    recorder = folder / "bin" / "recorder"
    recorder.write_text(RECORDER.format(calls=str(folder / "calls")))
    recorder.chmod(0o755)
    made = World(folder)
    with _server(made.objects) as url:
        kubeconfig = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
        own = {"cniVersion": "1.1.0", "name": "cluster", "type": "recorder", "ips": [{"address": "10.0.0.5/24"}]}
        made.conf = {
            "cniVersion": "1.1.0", "name": "multus", "type": "multus", "kubeconfig": str(folder / "kubeconfig"),
            "binDir": str(folder / "bin"), "cniDir": str(folder / "cni"), "confDir": str(folder / "net.d"),
            "delegates": [own],
        }  # fmt: skip
        yield made


def message(*fields: tuple[int, bytes]) -> bytes:
    """A protobuf message of strings and messages."""
    return b"".join(bytes([number << 3 | 2]) + _varint(len(value)) + value for number, value in fields)


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])


def pod_resources(name: str, *given: tuple[str, list[str]]) -> bytes:
    """A pod of kubelet's list, with a container for each resource and its devices."""
    devices = [message((1, resource.encode()), *((2, i.encode()) for i in ids)) for resource, ids in given]
    containers = [(3, message((1, b"c"), (2, device))) for device in devices]
    return message((1, name.encode()), (2, b"default"), *containers)


@contextmanager
def kubelet(folder: Path, pods: Sequence[bytes]) -> Iterator[str]:
    """Run a kubelet with those pods, and yield its socket."""
    (folder / "kubelet").mkdir()
    socket = str(folder / "kubelet" / "kubelet.sock")
    words = [sys.executable, "-c", KUBELET, socket]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(message(*((1, pod) for pod in pods)))
        process.stdin.close()
        assert process.stdout.readline() == b"up\n"
        try:
            yield socket
        finally:
            process.kill()


@contextmanager
def _server(objects: dict[str, Json]) -> Iterator[str]:
    """Run an API server with those objects, and yield its URL."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(objects.get(self.path))

        def do_PATCH(self) -> None:
            change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = objects.get(self.path.removesuffix("/status"))
            if found and self.path.endswith("/status") and change["metadata"]["uid"] == found["metadata"]["uid"]:
                found["metadata"]["annotations"] |= change["metadata"]["annotations"]
            self._answer(found)

        def _answer(self, found: Json | None) -> None:
            allowed = self.headers["Authorization"] == "Bearer secret"
            body = json.dumps(found).encode()
            self.send_response(403 if not allowed else 404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
