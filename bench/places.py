"""A real etcd and API server, and nodes that use them: for bench/blocks.py."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "netns-fixtures"))

from cluster import two_nodes
from support.shared_stores import Api, Etcds, api_server, etcds

from base.protocol.spec import Request
from base.state import policy
from ipam.cluster import Documents
from ipam.cluster.backends import backend
from ipam.main import run

MANIFESTS = Path(__file__).parents[1] / "packaging" / "kubernetes" / "cluster"


@dataclass
class Place:
    """A store as nodes reach it: the content of their files, and the etcd below it."""

    kind: str
    about: Mapping[str, Any]
    below: Etcds
    folder: Path

    def as_node(self, name: str) -> Path:
        """Make this process that node from now on; return its directory."""
        home = self.folder / self.kind / name
        home.mkdir(parents=True, exist_ok=True)
        file = home / "hpn.json"
        file.write_text(json.dumps({"backends": {self.kind: self.about, "nodeName": name}}))
        policy.FILE = str(file)
        return home

    def documents(self) -> Documents:
        self.as_node("bench")
        return backend.opened(self.kind).documents

    def ipam(self, subnet: str, size: int) -> dict[str, Any]:
        return {"ranges": [[{"subnet": subnet}]], "cluster": {"backend": self.kind, "blockSize": size}}


def added(home: Path, cid: str, ipam: Mapping[str, Any], network: str, verb: str = "ADD") -> dict[str, Any]:
    """The answer to a command of the node."""
    environ = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": cid, "CNI_IFNAME": "hpn0", "CNI_NETNS": "/run/netns/none",
        "CNI_PATH": "/opt/cni/bin",
    }  # fmt: skip
    whole = {"type": "hpn-ipam", "dataDir": str(home / "data"), **ipam}
    conf = {"cniVersion": "1.1.0", "name": network, "type": "hpn", "ipam": whole}
    reply = run(Request(environ, json.dumps(conf).encode()))
    answer: dict[str, Any] = json.loads(reply.stdout) if reply.stdout else {}
    return answer


def timed(act: Callable[[], Any]) -> float:
    """The duration in milliseconds."""
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def must(answer: Mapping[str, Any]) -> None:
    if "code" in answer:
        sys.exit(f"a command failed: {answer}")


@contextmanager
def places(folder: Path) -> Iterator[tuple[Place, Place, Api]]:
    with ExitStack() as stack:
        for name in ("a", "b"):
            (folder / name).mkdir()
        one = stack.enter_context(etcds(folder / "a"))
        api = stack.enter_context(api_server(folder / "b", two_nodes.built(), {}))
        api.apply(*(MANIFESTS / name for name in ("blocks.yaml", "pools.yaml")))
        api.run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        file = folder / "kubeconfig"
        file.write_text(json.dumps(api.kubeconfig("root")))
        file.chmod(0o600)
        yield (
            Place("etcd", {"endpoints": one.urls}, one, folder),
            Place("kubernetes", {"kubeconfig": str(file)}, api.etcd, folder),
            api,
        )
