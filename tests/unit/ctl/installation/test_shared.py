"""hpn install --check with shared pools: it reports a store's refusals before an ADD needs the store."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cluster_nodes import Cluster
from support.documents import Fault, every
from support.tls_server import Server, Told, api_server
from unit.ctl.test_inspect import VF, save
from unit.ipam.cluster.test_kubernetes import NO_PAGE, status

from base.state import policy
from ctl.installation.command import NOT_ASKED, checked

# A command's connections end with its process.
pytestmark = pytest.mark.filterwarnings("ignore:.*ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")

WELL = "this version understands the state on this node\n"
SHARED = {"backend": "kubernetes"}
SYSTEM = Told(200, {"metadata": {"name": "kube-system", "uid": "u-1"}})
NODE = Told(200, {"metadata": {"name": "node1", "uid": "u-2"}})
LEASE = Told(200, {"metadata": {"name": "node1"}, "spec": {"renewTime": "2026-11-23T06:00:00.000000Z"}})
POOL = Told(200, {"metadata": {"name": "rail0", "uid": "u-3", "resourceVersion": "7"}, "spec": {
    "network": "rail0", "blockSize": 8, "subnets": ["10.1.0.0/16"]}})  # fmt: skip
NO_POOL = status(404, "NotFound", 'hpnpools.hpn-cni.io "rail0" not found', name="rail0")
NO_POOLS = Told(200, {"metadata": {}, "items": []})
NO_BLOCKS = Told(200, {"metadata": {}, "items": []})


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    with api_server(tmp_path) as server_and_kubeconfig:
        yield server_and_kubeconfig


@pytest.fixture
def server(asked: tuple[Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The API server that the policy file names."""
    server, kubeconfig = asked
    (tmp_path / "hpn.json").write_text(
        json.dumps({"backends": {"kubernetes": {"kubeconfig": str(kubeconfig)}, "nodeName": "node1"}})
    )
    monkeypatch.setattr(policy, "FILE", str(tmp_path / "hpn.json"))
    return server


def configure(root: Path, name: str = "rail0", **ipam: Any) -> dict[str, Any]:
    """Write the network's file in the runtime's directory."""
    section = {"type": "hpn-ipam", "subnet": "10.1.0.0/16", **ipam}
    plugin = {"type": "hpn", "master": "eth1", "ipam": section}
    path = root / "etc" / "cni" / "net.d" / f"{name}.conflist"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}))
    return {"cniVersion": "1.0.0", "name": name, **plugin}


def check(root: Path) -> tuple[str, int]:
    return checked(root, is_this_node=True)


def test_all_is_well(root: Path, server: Server) -> None:
    configure(root, cluster=SHARED)
    server.tell(SYSTEM, NODE, LEASE, NO_POOL, NO_POOLS, NO_BLOCKS)
    assert check(root) == (WELL, 0)
    assert [one.method for one in server.asked] == ["GET"] * 6


def test_nobody_is_asked_without_a_network_of_the_cluster(root: Path, server: Server) -> None:
    configure(root)
    assert check(root) == (f"{WELL}{NOT_ASKED}\n", 0)
    assert server.asked == []


def test_nobody_is_asked_for_another_root(root: Path, server: Server) -> None:
    """Another root's files name paths of another node, so no store is asked."""
    configure(root, cluster=SHARED)
    assert checked(root, is_this_node=False) == (WELL, 0)
    assert server.asked == []


def token(ended: float) -> str:
    return ".".join(["", urlsafe_b64encode(json.dumps({"exp": ended}).encode()).decode().rstrip("="), ""])


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            [SYSTEM, NODE, LEASE, NO_PAGE],
            "hpnpools.hpn-cni.io: the cluster has no such CustomResourceDefinition; make it: kubectl apply -k ",
        ),
        ([SYSTEM, NODE, LEASE, status(403, "Forbidden", "no")], "refuses to get hpnpools.hpn-cni.io: no; allow it"),
        ([SYSTEM, NODE, status(403, "Forbidden", "no")], "refuses to get leases: no; allow it to all nodes: kubectl"),
        (
            [SYSTEM, NODE, LEASE, NO_POOL, NO_POOLS, status(403, "Forbidden", "no")],
            "refuses to list hpnblocks.hpn-cni.io: no; allow it to all nodes: kubectl apply -k ",
        ),
        ([status(401, "Unauthorized", "no")] * 2, "it does not know this node's credential ("),
        ([SYSTEM, NODE, LEASE, POOL], "ipam.cluster.blockSize 16: the blocks of network rail0 have 8 host numbers"),
    ],
)
def test_refusals(root: Path, server: Server, answers: list[Told], said: str) -> None:
    configure(root, cluster=SHARED)
    server.tell(*answers)
    text, exit_status = check(root)
    assert exit_status == 1
    line = text.removeprefix(WELL)
    where = f"{root}/etc/cni/net.d/rail0.conflist: no block can be claimed for network rail0: "
    assert (line.startswith(where), said in line, line.count("\n")) == (True, True, 1), line


def test_a_credential_that_has_ended(root: Path, server: Server, asked: tuple[Server, Path]) -> None:
    configure(root, cluster=SHARED)
    asked[1].write_text(asked[1].read_text().replace("a-token", token(time.time() - 60)))
    server.tell(*[status(401, "Unauthorized", "no")] * 2)
    assert "which expired at " in check(root)[0]


def test_no_credential(root: Path, server: Server, asked: tuple[Server, Path]) -> None:
    configure(root, cluster=SHARED)
    asked[1].unlink()
    assert f"there is no kubeconfig at {asked[1]}, and requests to the API server need one; name it" in check(root)[0]
    assert server.asked == []


def test_a_configuration_that_cannot_be(root: Path, server: Server) -> None:
    configure(root, cluster={"backend": "consul"})
    assert 'for network rail0: ipam.cluster.backend "consul"' in check(root)[0]
    assert server.asked == []


def test_unreachable_is_found_once(root: Path, cluster: Cluster) -> None:
    """Two networks share one silent store, which is asked once."""
    cluster.node("node1").enter()
    for name in ("rail0", "rail1"):
        configure(root, name, cluster={"backend": "etcd"})
    cluster.store.faults = every("", Fault.UNREACHABLE)
    text, exit_status = check(root)
    assert (exit_status, text.count("does not answer")) == (1, 2)
    assert cluster.calls() == ["identity"]


def test_a_network_that_only_an_attachment_has(root: Path, cluster: Cluster) -> None:
    """The NetworkAttachmentDefinition is in the API server; the attachments' records contain its configuration."""
    cluster.node("node1").enter()
    conf = configure(root, cluster={"backend": "etcd"})
    (root / "etc" / "cni" / "net.d" / "rail0.conflist").unlink()
    save(root / "run" / "hpn", replace(VF, config=conf))
    cluster.store.faults = every("listed", Fault.FORBIDDEN)
    text, exit_status = check(root)
    assert exit_status == 1
    assert "hpn0.json: no block can be claimed for network rail0: listed : the store in memory forbids it" in text
