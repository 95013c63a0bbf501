"""What a credential may write: a service account's token only of its node, as kubelet's; claims that nobody may."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cluster import claims
from cluster.space import Failed, inside, until
from cluster.two_nodes import Cluster
from support.api_server import NODE1, refused, write_kubeconfig
from support.pages import ROOT

from base.kubernetes.client import Client
from base.protocol.errors import BackendRefused
from node.dra import api
from node.dra.slices import changes
from node.labels import round as rounds

MANIFESTS = ROOT / "packaging" / "kubernetes" / "dra"
SLICES = MANIFESTS / "slices.yaml"
CLAIMS = MANIFESTS / "policy.yaml"
STATUS = MANIFESTS / "status.yaml"
NODES = MANIFESTS / "nodes.yaml"
# Off it is as in Kubernetes 1.34 and 1.35: who may patch a claim's status may write all of it.
GATE = "--feature-gates=DRAResourceClaimGranularStatusAuthorization=false"
WRITES = "nodes-write-claims"
RIGHTS = ROOT / "packaging" / "kubernetes" / "node-labels" / "rights.yaml"
# Kubernetes sets it on the claims of pods, and removes it by an update of the claim.
FINALIZER = "resource.kubernetes.io/delete-protection"
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hpn", "namespace": "kube-system"}}

KIND = "nodefeatures.nfd.k8s-sigs.io"
# As the CustomResourceDefinition of NFD, without its schema.
NFD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": KIND},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def account(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with hpn's own credential."""
    cluster.kubectl("apply", f"--filename={SLICES}")
    cluster.apply(ACCOUNT)
    yield cluster
    cluster.delete("resourceclaims", "--all", "--namespace=default")
    cluster.delete("serviceaccount", "hpn", "--namespace=kube-system")
    cluster.kubectl("delete", f"--filename={SLICES}")
    cluster.kubectl("delete", "resourceslices", "--field-selector=spec.driver=hpn-cni.io")


def made(node: str) -> dict[str, Any]:
    """A slice of that node."""
    device = {"name": "a", "attributes": {"kind": {"string": "vf"}}}
    return changes.changes(node, "", f"{node}/pci-a", [], [{"devices": [device]}]).created[0]


def test_a_node_writes_its_own_slices(account: Cluster, tmp_path: Path) -> None:
    words = ("create", "token", "hpn", "--namespace=kube-system")
    on_node1 = account.kubectl(*words, "--bound-object-kind=Node", "--bound-object-name=node1").strip()
    anywhere = account.kubectl(*words).strip()
    assert account.control.space
    with inside(account.control.space.pid):
        for token in (on_node1, NODE1):
            file = write_kubeconfig(tmp_path / "kubeconfig", account, token)
            with closing(api.opened(f"{file}")) as server:
                if token == NODE1:  # which does not name its node
                    server.node = "node1"
                assert server.node == "node1"
                until(lambda server=server: may_list(server), "the role", 120, 0.2)  # type: ignore[misc]
                stored = server.create(made("node1"))
                assert stored is not None
                # The API server enforces a new policy after a moment.
                until(lambda server=server: "node2" in refusal(server), "the policy", 120, 0.2)  # type: ignore[misc]
                server.delete({"metadata": stored})
        file = write_kubeconfig(tmp_path / "kubeconfig", account, anywhere)
        with closing(api.opened(f"{file}")) as server:
            assert "the token does not name its node" in refused(lambda: server.create(made("node1")))


def test_a_node_shows_its_own_claims(account: Cluster, tmp_path: Path) -> None:
    """A token of a node writes the status of a claim that is allocated there, and of no other."""
    shown = dict[str, Any]()
    for node in ("node1", "node2"):
        account.apply(claims.claim(node, claims.spec("none")))
        patch = json.dumps({"status": {"allocation": allocation(node)}})
        account.kubectl("patch", "resourceclaim", node, "--subresource=status", "--type=merge", f"--patch={patch}")
        shown[node] = account.get("resourceclaim", node)["metadata"]["uid"]
    words = ("create", "token", "hpn", "--namespace=kube-system")
    on_node1 = account.kubectl(*words, "--bound-object-kind=Node", "--bound-object-name=node1").strip()
    anywhere = account.kubectl(*words).strip()
    entries = [{"driver": "hpn-cni.io", "pool": "p", "device": "a", "networkData": {"interfaceName": "net1"}}]

    def why_not(server: api.Api, node: str) -> str:
        try:
            server.patch_claim_status("default", node, shown[node], entries)
        except BackendRefused as e:
            return e.msg
        return ""

    assert account.control.space
    with inside(account.control.space.pid):
        for token in (on_node1, anywhere):
            file = write_kubeconfig(tmp_path / "kubeconfig", account, token)
            with closing(api.opened(f"{file}")) as server:
                if token == on_node1:
                    until(lambda server=server: not why_not(server, "node1"), "the role", 120, 0.2)  # type: ignore[misc]
                assert "refuses to patch resourceclaims/status" in why_not(server, "node2")
    statuses = [account.get("resourceclaim", node)["status"] for node in ("node1", "node2")]
    devices = [[one["networkData"] for one in status.get("devices", ())] for status in statuses]
    assert devices == [[{"interfaceName": "net1"}], []]


def test_a_node_labels_itself_only(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the Node, and by a NodeFeature once NFD's kind is there; no other node, and no other label."""
    monkeypatch.setattr("signal.alarm", lambda _: 0)  # a round ends its process
    cluster.kubectl("apply", f"--filename={RIGHTS}")
    cluster.apply(ACCOUNT)
    token = cluster.kubectl(
        *("create", "token", "hpn", "--namespace=kube-system", "--bound-object-kind=Node", "--bound-object-name=node1")
    ).strip()
    file = write_kubeconfig(tmp_path / "kubeconfig", cluster, token)
    labels = {"hpn-cni.io/rails": "8", "rdma": "hca"}

    def ours() -> dict[str, str]:
        return {name: of for name, of in cluster.get("node", "node1")["metadata"]["labels"].items() if name in labels}

    def has_feature() -> bool:
        return bool(cluster.get(KIND, "--namespace=kube-system")["items"])

    assert cluster.control.space
    with inside(cluster.control.space.pid), closing(Client(*api.credential(f"{file}")[:1])) as server:

        def refusal(node: str, **fields: Any) -> str:
            about = {"name": node, "uid": cluster.get("node", node)["metadata"]["uid"], **fields}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": about}
            answer = server.send("PATCH", f"/api/v1/nodes/{node}?fieldManager=other&force=true", body)
            return "" if answer.status == 200 else answer.reason

        try:
            until(lambda: not rounds.publish(f"{file}", labels), "the role", 120, 0.2)
            assert ours() == labels
            until(lambda: "may label itself only" in refusal("node2", labels={"rdma": "a"}), "the policy", 120, 0.2)
            assert "no other labels than" in refusal("node1", labels={"example.com/a": "b"})
            assert "no other labels than" in refusal("node1", annotations={"example.com/a": "b"})
            cluster.apply(NFD)
            cluster.wait("Established", f"crd/{KIND}")
            until(lambda: not rounds.publish(f"{file}", labels) and has_feature(), "the kind", 120, 0.2)
            assert ours() == labels
            feature = cluster.get(KIND, "node1-hpn", "--namespace=kube-system")
            assert feature["spec"]["labels"] == {"hpn-cni.io/rails": "8"}
            path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/kube-system/nodefeatures/node1-hpn"
            words = "fieldManager=other&force=true"
            feature["metadata"] = {"name": "node1-hpn", "labels": {"nfd.node.kubernetes.io/node-name": "node2"}}
            assert "may label itself only" in server.send("PATCH", f"{path}?{words}", feature).reason
            assert rounds.publish(f"{file}", {}) == ""
            assert ours() == {}
            assert not has_feature()
        finally:
            cluster.delete("crd", KIND)
            cluster.delete("serviceaccount", "hpn", "--namespace=kube-system")
            cluster.kubectl("delete", f"--filename={RIGHTS}")


def allocation(node: str) -> dict[str, Any]:
    """The allocation of a device of that node, as the scheduler writes it."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    results = [{"request": "rails", "driver": "hpn-cni.io", "pool": "p", "device": "a"}]
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def restarted(cluster: Cluster, command: Sequence[str]) -> None:
    """Start the API server anew by this command, and wait for it."""
    service = cluster.control.service("kube-apiserver")
    service.kill()  # its own end may take a minute
    service.command = command
    service.start()
    until(lambda: cluster.kubectl("get", "--raw=/readyz", check=False) == "ok", "the API server", 180, 0.2)
    cluster.wait_ready()


@pytest.fixture
def older(account: Cluster) -> Iterator[Cluster]:
    """The cluster with an API server that checks no driver.  Somebody else's permission lets both credentials of a node
    write claims."""
    command = [*account.control.service("kube-apiserver").command]
    restarted(account, [*command, GATE])
    # kubectl patch reads the claim first.
    account.kubectl(
        "create", "clusterrole", WRITES, "--verb=get,patch", "--resource=resourceclaims,resourceclaims/status"
    )
    whom = ("--group=system:nodes", "--serviceaccount=kube-system:hpn")
    account.kubectl("create", "clusterrolebinding", WRITES, f"--clusterrole={WRITES}", *whom)
    yield account
    account.kubectl("delete", f"clusterrolebinding/{WRITES}", f"clusterrole/{WRITES}")
    for file in (NODES, STATUS):
        account.kubectl("delete", f"--filename={file}", "--ignore-not-found")
    restarted(account, command)


def test_what_a_node_writes_in_a_claim(older: Cluster, tmp_path: Path) -> None:
    """Kubernetes 1.34 and 1.35: this driver's entry of a claim of its own node, and nothing else of any claim.

    kubelet's credential is restricted only if this driver may use it.  Even then another driver shows its devices.
    """
    another = {"request": "rails", "driver": "gpu.example.com", "pool": "p", "device": "g"}
    theirs = [{"driver": "gpu.example.com", "pool": "p", "device": "g", "data": {"theirs": 1}}]
    for claim, node in (("node1", "node1"), ("node2", "node2"), ("gpu", "node1")):
        older.apply(claims.claim(claim, claims.spec("none")))
        whole = allocation(node)
        results = whole["devices"]["results"]
        results[:] = [another] if claim == "gpu" else [*results, another]
        status = {"allocation": whole, "devices": theirs}
        words = ("patch", "resourceclaim", claim, "--subresource=status", "--type=merge")
        older.kubectl(*words, f"--patch={json.dumps({'status': status})}")
    words = ("create", "token", "hpn", "--namespace=kube-system")
    bound = older.kubectl(*words, "--bound-object-kind=Node", "--bound-object-name=node1").strip()
    ours = {"driver": "hpn-cni.io", "pool": "p", "device": "a", "networkData": {"interfaceName": "net1"}}
    # Nothing is reserved before, because Kubernetes ends what is reserved for no pod.
    reserved = {"reservedFor": [{"resource": "pods", "name": "a", "uid": "a1b2c3d4-0000-4000-8000-000000000001"}]}
    gone = {"allocation": None}
    changed = {"devices": [{**theirs[0], "data": {"b": 2}}]}
    refusals = {
        "not allocated to it": [("node2", {"devices": [*theirs, ours]}), ("node2", gone), ("node2", {"devices": []})],
        "only status.devices": [("node1", reserved), ("node1", gone), ("gpu", gone)],
        "another driver's": [("node1", {"devices": [ours]}), ("node1", changed)],
    }
    all_of = [(why, claim, patch) for why, patches in refusals.items() for claim, patch in patches]
    file = older.control.path("/etc/kubernetes/node.conf")

    def are_refused() -> None:
        for why, claim, patch in all_of:
            # A policy or a permission counts a moment after it is made.
            until(lambda w=why, c=claim, p=patch: w in refusal_of(older, c, p), why, 120, 0.5)  # type: ignore[misc]

    for token in (bound, NODE1):
        write_kubeconfig(file, older, token)
        for _, claim, patch in all_of:  # without the policy
            until(lambda c=claim, p=patch: not refusal_of(older, c, p), "the role", 120, 0.5)  # type: ignore[misc]
    older.kubectl("apply", f"--filename={STATUS}")
    write_kubeconfig(file, older, bound)
    are_refused()
    assert "another driver's" in refusal_of(older, "gpu", changed)
    write_kubeconfig(file, older, NODE1)
    assert [refusal_of(older, claim, patch) for _, claim, patch in all_of] == [""] * len(all_of)
    older.kubectl("apply", f"--filename={NODES}")
    are_refused()
    assert refusal_of(older, "gpu", changed) == ""
    # What hpn node sends.
    assert older.control.space
    with inside(older.control.space.pid):
        for token, name in ((bound, "net1"), (NODE1, "net2")):
            entry = {**ours, "networkData": {"interfaceName": name}}
            with closing(api.opened(f"{write_kubeconfig(tmp_path / 'kubeconfig', older, token)}")) as server:
                uid = older.get("resourceclaim", "node1")["metadata"]["uid"]
                assert server.patch_claim_status("default", "node1", uid, [entry])
            found = {one["driver"]: one for one in older.get("resourceclaim", "node1")["status"]["devices"]}
            assert found["hpn-cni.io"]["networkData"] == entry["networkData"]
            assert found["gpu.example.com"]["data"] == theirs[0]["data"]


def refusal_of(cluster: Cluster, claim: str, status: dict[str, Any]) -> str:
    """Why the API server would refuse the node's patch of the claim's status; empty if it would not."""
    words = ("--kubeconfig=/etc/kubernetes/node.conf", "patch", "resourceclaim", claim, "--namespace=default")
    text = f"--patch={json.dumps({'status': status})}"
    return why_refused(cluster, *words, "--subresource=status", "--type=merge", "--dry-run=server", text)


@pytest.fixture
def bad(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the claims' policy, and a claim, a template and a class that it refuses and that are older."""
    claim = claims.claim("old", claims.spec("old", vlan=5))
    claim["metadata"]["finalizers"] = [FINALIZER]
    cluster.apply(
        claim,
        claims.template("old", claims.spec("old", vlan=5)),
        claims.device_class("old", "example.com/rail0", vlam=5),
    )
    cluster.kubectl("apply", f"--filename={CLAIMS}")
    new = json.dumps(claims.claim("new", claims.spec("old", vlan=5)))
    until(lambda: why_refused(cluster, "create", "--dry-run=server", "--filename=-", stdin=new), "the policy", 120, 0.2)
    yield cluster
    cluster.kubectl("delete", f"--filename={CLAIMS}")
    # Without the policy also what it held back goes.
    cluster.delete("resourceclaims,resourceclaimtemplates", "--all", "--namespace=default")
    cluster.delete("deviceclass", "old")


def test_bad_claims_that_are_older_than_the_policy(bad: Cluster) -> None:
    """They can be labelled and deleted, and not be made worse."""
    for kind in ("resourceclaim", "resourceclaimtemplate", "deviceclass"):
        bad.kubectl("label", kind, "old", "a=b")
    patch = '{"spec": {"config": [{"opaque": {"driver": "hpn-cni.io", "parameters": {"vlam": 6}}}]}}'
    assert "hpn-claims" in why_refused(bad, "patch", "deviceclass", "old", "--type=merge", f"--patch={patch}")
    bad.kubectl("delete", "resourceclaim", "old", "--timeout=120s")
    assert bad.get("resourceclaims", "--namespace=default")["items"] == []


def why_refused(cluster: Cluster, *words: str, stdin: str = "") -> str:
    """Why the API server refuses what kubectl sends; empty if it does not."""
    try:
        cluster.kubectl(*words, stdin=stdin)
    except Failed as e:
        return str(e)
    return ""


def refusal(server: api.Api) -> str:
    """Why the slice of another node is refused; empty if it is not."""
    try:
        server.create(made("node2"))
    except BackendRefused as e:
        return e.msg
    return ""


def may_list(server: api.Api) -> bool:
    try:
        server.slices()
    except BackendRefused:
        return False
    return True
