"""hpn doctor on claims: what no single case of doctor_claims.py shows, and its question to the API server."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.doctor_claims import CLAIM, prepare
from support.doctor_node import ALIVE, NODE, VF, Node
from support.tls_server import Told, api_server

from ctl.doctor import cluster, machine, networks
from ctl.doctor.checks import claims
from ctl.doctor.model import Facts, NodeFile, Severity, Slices
from ctl.doctor.reading import Reader
from node import config

HERE = os.uname().nodename.lower()
CHAIN = replace(CLAIM, devices=(replace(CLAIM.devices[0], attach="chain"), replace(CLAIM.devices[0], attach="none")))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "root")
    yield node
    for sock in node.sockets:
        sock.close()


def test_a_claim_that_is_in_order(node: Node) -> None:
    """It was prepared just now, has no interface to get, or kubelet has given it up and its attachment goes on."""
    pods = node.at("var/lib/kubelet/pods/another")
    pods.mkdir()
    (pods.parent / CLAIM.pods[0]).mkdir()
    without = replace(CLAIM, devices=CHAIN.devices[1:])
    for claim, age in ((CLAIM, 500), (without, 700), (replace(CLAIM, ended=True), 700)):
        prepare(node, claim, age)
        assert node.findings() == []
    node.save(ALIVE, claim=f"{CLAIM.uid}/0", complete=False)
    prepare(node)
    assert [name for name, _ in node.findings()] == ["claim-waits"]


def test_chain_mode(node: Node) -> None:
    """Without hpn in the cluster's conflist the finding comes at once; with it, as for Multus."""
    file = prepare(node, CHAIN, 0)
    ((name, one),) = node.findings()
    assert (name, one.severity, one.remedy[:7]) == ("claim-waits", Severity.ERROR, "end the")
    assert one.evidence == (
        f"{file}: claim default/rails: hpn has to attach {VF}, and no network in /etc/cni/net.d has claims"
    )
    plugins = [{"type": "bridge"}, {"type": "hpn", "claims": True}]
    network = {"cniVersion": "1.0.0", "name": "cluster", "plugins": plugins}
    file_of_multus = node.at("etc/cni/net.d/00-multus.conf")
    file_of_multus.write_text(json.dumps({"name": "multus", "type": "multus", "delegates": [{"type": "x"}, network]}))
    assert node.findings() == []
    file_of_multus.unlink()
    node.at("etc/cni/net.d/00-cluster.conflist").write_text(json.dumps(network))
    assert node.findings() == []
    prepare(node, CHAIN)
    ((_, one),) = node.findings()
    assert one.evidence == f"{file}: claim default/rails: {VF} not attached 12 minutes after Prepare"
    assert one.remedy == "kubectl describe pod shows why ADD failed"


def by_dra(tmp_path: Path, **fields: str) -> NodeFile:
    file = tmp_path / "devices.yaml"
    file.write_text(NODE.replace("pfNames: [rail0]}", "pfNames: [rail0]}, by: dra"))
    return NodeFile(f"{file}", config.read(file), **fields)


def test_slices(tmp_path: Path) -> None:
    """They are asked for with hpn node's credential, on this node only."""
    about = {"uid": "u", "resourceVersion": "1"}
    there = [
        {
            "metadata": {**about, "name": f"{HERE}-hpn-cni.io-if-bond0-0"},
            "spec": {"pool": {"name": f"{HERE}/if-bond0"}},
        },
        {"metadata": {**about, "name": "stranger"}, "spec": {"pool": {"name": f"{HERE}/if-bond0"}}},
    ]
    with api_server(tmp_path) as (server, kubeconfig):
        file, root = by_dra(tmp_path, kubeconfig=f"{kubeconfig}"), Reader(Path("/"))
        server.tell(Told(200, {"metadata": {}, "items": there}), Told(403, {"message": "no"}))
        assert cluster.slices(root, file) == Slices(1, strangers=("stranger (by an unknown program)",), node=HERE)
        refused = cluster.slices(root, file)
        assert refused
        assert "refuses to list resourceslices: no; allow it" in refused.silent
        assert cluster.slices(Reader(tmp_path), file) is None
        assert cluster.slices(root, replace(file, settings=None)) is None
        assert cluster.slices(root, None) is None
        assert len(server.asked) == 2
        # Of a pod's service account, whose API server only the pod's variables name.
        account = tmp_path / "account"
        account.mkdir()
        (account / "token").write_text("a-token")
        (account / "ca.crt").write_bytes((tmp_path / "ca.pem").read_bytes())
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        server.tell(Told(200, {"metadata": {}, "items": []}))
        of_pod = replace(file, kubeconfig=f"{account}", environment=variables)
        assert cluster.slices(root, of_pod) == Slices(0, node=HERE)
    nobody = cluster.slices(root, replace(file, kubeconfig="/nowhere"))
    assert nobody
    assert "there is no kubeconfig at /nowhere" in nobody.silent


@pytest.mark.parametrize(
    ("found", "severities"),
    [(None, []), (Slices(1), []), (Slices(0), ["warning"]), (Slices(0, "no credential"), ["error"])],
)
def test_what_counts_as_missing(tmp_path: Path, found: Slices | None, severities: list[str]) -> None:
    one = Facts(node_file=by_dra(tmp_path), slices=found)
    assert [finding.severity for finding in claims.slices_missing(one)] == severities
    assert [*claims.slices_foreign(one)] == []


def test_a_foreign_slice(tmp_path: Path) -> None:
    one = Facts(node_file=by_dra(tmp_path), slices=Slices(1, strangers=("stranger (by x)",)))
    (found,) = claims.slices_foreign(one)
    assert found.evidence.endswith("hpn node did not make the ResourceSlice stranger (by x)")
    assert found.remedy.endswith("kubectl delete resourceslice stranger")


def test_the_credential_of_a_container(node: Node) -> None:
    """The variables of the container name its API server, and those of the operator's shell do not."""
    node.process(900, "hpn-node", "unlimited", "daemonset", "node", "--kubeconfig=/credential")
    node.at("proc/900/exe").symlink_to("/program/new/ld-hpn.so.2")
    node.at("proc/900/environ").write_text("KUBERNETES_SERVICE_HOST=10.96.0.1\0KUBERNETES_SERVICE_PORT=443\0")
    read = Reader(node.root)
    found = networks.node_file(read, machine.machine(read, ()).processes)
    assert found
    assert found.kubeconfig == f"{node.root}/proc/900/root/credential"
    assert found.environment == {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
