"""Documents on an API server: the requests, and the messages for refusals.  tests/cluster uses a real one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tls_server import Authority, Server, Told, authority, serving

from base.protocol.errors import BackendRefused, InvalidConfig
from ipam.cluster import BLOCK, POOL, Document, Machine
from ipam.cluster.backends import kubernetes
from ipam.cluster.backends.kubernetes import Kubernetes
from ipam.cluster.rules.documents import Block

BODY = Block("net", 3, 16, "node1", "machine-1", "nonce").to_json()
BLOCKS = "/apis/hpn-cni.io/v1/hpnblocks"
CHANGED = "fieldManager=hpn&fieldValidation=Strict"
KNOWN = Document(BLOCK, "net.3", BODY, "u-1", "7")
# The API server's answer without the CustomResourceDefinition.
NO_PAGE = Told(404, b"404 page not found\n", {"Content-Type": "text/plain"})


def found(version: str = "7", body: dict[str, Any] = BODY, uid: str = "u-1", name: str = "net.3") -> dict[str, Any]:
    return {"kind": "HpnBlock", "metadata": {"name": name, "uid": uid, "resourceVersion": version}, "spec": body}


def status(code: int, reason: str, message: str = "", **details: str) -> Told:
    return Told(code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": details})


ABSENT = status(404, "NotFound", 'hpnblocks.hpn-cni.io "net.3" not found', name="net.3")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(signer: Authority, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "keys").mkdir()
    with serving(*signer.sign("/CN=server", names="IP:127.0.0.1"), folder=tmp_path / "keys") as one:
        yield one


@pytest.fixture
def kubeconfig(server: Server, signer: Authority, tmp_path: Path) -> Path:
    (tmp_path / "ca.pem").write_bytes(signer.ca)
    file = tmp_path / "kubeconfig"
    write(file, server.url, "a-token")
    return file


def write(file: Path, server: str, token: str) -> None:
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    file.write_text(json.dumps(document))


@pytest.fixture
def store(kubeconfig: Path) -> Iterator[Kubernetes]:
    one, _ = kubernetes.opened({"kubeconfig": str(kubeconfig)}, "node1")
    assert isinstance(one, Kubernetes)
    yield one
    one.close()


def test_create(server: Server, store: Kubernetes) -> None:
    server.tell(Told(201, found()))
    assert store.create(BLOCK, "net.3", "net", BODY) == KNOWN
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", f"{BLOCKS}?{CHANGED}")
    assert asked.headers["Authorization"] == "Bearer a-token"
    assert asked.body["kind"] == "HpnBlock"
    assert asked.body["spec"] == BODY
    assert asked.body["metadata"] == {
        "name": "net.3", "labels": {"hpn-cni.io/network": "net", "hpn-cni.io/node": "node1"}
    }  # fmt: skip


def test_created_by_another(server: Server, store: Kubernetes) -> None:
    server.tell(status(409, "AlreadyExists"))
    assert store.create(BLOCK, "net.3", "net", BODY) is None
    assert len(server.asked) == 1


@pytest.mark.parametrize(("claim", "is_ours"), [("nonce", True), ("another", False)])
def test_created_and_the_answer_was_lost(server: Server, store: Kubernetes, claim: str, is_ours: bool) -> None:
    server.tell(Told(cut=0), status(409, "AlreadyExists"), Told(200, found(body={**BODY, "claim": claim})))
    assert store.create(BLOCK, "net.3", "net", BODY) == (KNOWN if is_ours else None)
    assert [asked.method for asked in server.asked] == ["POST", "POST", "GET"]


def test_replace(server: Server, store: Kubernetes) -> None:
    new = {**BODY, "node": "n" * 64}  # longer than a label
    server.tell(Told(200, found("8", new)))
    assert store.replace(KNOWN, new) == Document(BLOCK, "net.3", new, "u-1", "8")
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("PUT", f"{BLOCKS}/net.3?{CHANGED}")
    assert (asked.body["metadata"]["uid"], asked.body["metadata"]["resourceVersion"]) == ("u-1", "7")
    assert len(asked.body["metadata"]["labels"]["hpn-cni.io/node"]) == 17


@pytest.mark.parametrize("answer", [status(409, "Conflict"), ABSENT])
def test_replaced_by_another(server: Server, store: Kubernetes, answer: Told) -> None:
    server.tell(answer)
    assert store.replace(KNOWN, {**BODY, "suspect": 1}) is None
    assert len(server.asked) == 1


@pytest.mark.parametrize(("uid", "is_ours"), [("u-1", True), ("u-2", False)])
def test_replaced_and_the_answer_was_lost(server: Server, store: Kubernetes, uid: str, is_ours: bool) -> None:
    new = {**BODY, "suspect": 1}
    server.tell(Told(500), status(409, "Conflict"), Told(200, found("8", new, uid)))
    assert (store.replace(KNOWN, new) is not None) is is_ours


def test_remove(server: Server, store: Kubernetes) -> None:
    server.tell(Told(200, {"kind": "Status", "status": "Success"}))
    assert store.remove(KNOWN)
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("DELETE", f"{BLOCKS}/net.3")
    assert asked.body["preconditions"] == {"uid": "u-1", "resourceVersion": "7"}
    server.tell(status(409, "Conflict"), ABSENT, Told(cut=0), ABSENT)
    assert not store.remove(KNOWN)
    assert not store.remove(KNOWN)
    assert store.remove(KNOWN)  # an earlier sending did, and its answer was lost


def test_a_machine(server: Server, store: Kubernetes) -> None:
    """A node is alive when the API server last wrote its Lease; renewTime is by the node's own clock."""
    managers = [
        {"manager": "kubelet", "time": "2026-11-23T06:00:07Z"},
        {"manager": "x", "time": "2026-11-23T05:00:00Z"},
    ]
    lease = {"metadata": {"managedFields": managers}, "spec": {"renewTime": "1970-01-01T00:00:00.000000Z"}}
    server.tell(Told(200, {"metadata": {"uid": "machine-1"}}), Told(200, lease))
    assert store.machine("node1") == Machine("node1", "machine-1", 1795413607.0)
    assert store.now() == 1795413600.0  # the header Date
    paths = ["/api/v1/nodes/node1", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node1"]
    assert [asked.path for asked in server.asked] == paths
    server.tell(ABSENT, Told(200, {"metadata": {}, "spec": {"renewTime": "2026-11-23T06:00:07.123456Z"}}))
    assert store.machine("node1") == Machine("node1", "", 1795413607.0)
    server.tell(ABSENT, ABSENT)
    assert store.machine("node1") == Machine("node1", "", None)


@pytest.mark.parametrize(
    ("uid", "at", "requests"),
    [("machine-1", "05:10:00", 1), ("machine-1", "04:50:00", 3), ("machine-0", "05:50:00", 3), ("", "05:50:00", 3)],
)
def test_a_recent_lease_of_the_owner_says_enough(
    server: Server, store: Kubernetes, uid: str, at: str, requests: int
) -> None:
    """Nodes check random owners all the time, and most owners live."""
    owner = [{"kind": "Node", "uid": uid}] if uid else []
    about = {"name": "node1", "managedFields": [{"time": f"2026-11-23T{at}Z"}], "ownerReferences": owner}
    lease = Told(200, {"metadata": about})
    server.tell(lease, Told(200, {"metadata": {"uid": "machine-2"}}), lease)
    found = store.machine("node1", "machine-1")
    assert found.uid == ("machine-1" if requests == 1 else "machine-2")
    assert found.last_seen
    assert len(server.asked) == requests


@pytest.mark.parametrize(
    ("owners", "kind"),
    [
        ([{"kind": "Node", "controller": False}, {"kind": "StatefulSet", "controller": True}], "StatefulSet"),
        ([{"kind": "Node"}], ""),
        (None, ""),
    ],
)
def test_the_controller_of_a_pod(server: Server, store: Kubernetes, owners: Any, kind: str) -> None:
    server.tell(Told(200, {"kind": "Pod", "metadata": {"name": "web-0", "ownerReferences": owners}}))
    assert store.controller("a b/web-0") == kind
    assert server.asked[-1].path == "/api/v1/namespaces/a%20b/pods/web-0"


@pytest.mark.parametrize("answer", [status(403, "Forbidden", "no"), status(404, "NotFound", "no", name="web-0")])
def test_a_pod_that_this_node_may_not_read(server: Server, store: Kubernetes, answer: Told) -> None:
    server.tell(answer)
    assert store.controller("ns/web-0") is None


def test_who_is_silent(server: Server, store: Kubernetes) -> None:
    """Nodes without a Lease, with an old one, or with another machine's; all if this credential may not list them."""
    leases = [
        {"metadata": {"name": name, "managedFields": [{"manager": "kubelet", "time": f"2026-11-23T{at}Z"}]}}
        for name, at in (("node1", "05:59:50"), ("node2", "04:59:50"), ("node3", "05:00:10"))
    ]
    leases[0]["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "node1", "uid": "uid-1"}]
    leases[2]["metadata"]["ownerReferences"] = [{"kind": "HpnBlock", "name": "net.3", "uid": "u-1"}]
    server.tell(Told(200, {"kind": "LeaseList", "items": leases}))
    alive = [("node1", "uid-1"), ("node1", ""), ("node3", "uid-3")]
    dead = {("node1", "uid-0"), ("node2", "uid-2"), ("gone", "uid-4")}
    assert store.silent([*alive, *dead]) == dead
    (asked,) = server.asked
    assert asked.path == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?resourceVersion=0"
    server.tell(status(403, "Forbidden", "no"))
    assert {*store.silent([*alive, *dead])} == {*alive, *dead}


def test_the_cluster(server: Server, store: Kubernetes) -> None:
    server.tell(Told(200, {"metadata": {"uid": "c-1"}}), Told(200, {"a": "page of a proxy"}))
    assert store.now() == 1795413600.0  # sends a request, if there was none yet
    with pytest.raises(BackendRefused, match="is not an API server"):
        store.identity()


FORBIDDEN = 'hpnblocks.hpn-cni.io is forbidden: User "system:node:node1" cannot create resource "hpnblocks"'
DENIED = "ValidatingAdmissionPolicy 'hpn-blocks' denied request: node node1 may not"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            status(403, "Forbidden", FORBIDDEN),
            "refuses to create hpnblocks.hpn-cni.io: .*cannot create.*kubectl apply -k",
        ),
        (status(403, "Forbidden", DENIED), "node node1 may not$"),
        (NO_PAGE, "no such CustomResourceDefinition; make it: kubectl apply -k packaging/kubernetes/cluster"),
        (status(400, "BadRequest", 'unknown field "spec.x"'), "another version's: kubectl apply -k"),
        (status(422, "Invalid", "start is not index times size"), "start is not index times size"),
        (Told(200, b"<html>sign in"), "<html>sign in"),
        (Told(201, {"metadata": {"name": "net.3"}}), "the request was to create hpnblocks.* uid is None"),
    ],
)
def test_what_is_refused(server: Server, store: Kubernetes, answer: Told, why: str) -> None:
    server.tell(answer)
    with pytest.raises(BackendRefused, match=why):
        store.create(BLOCK, "net.3", "net", BODY)


@pytest.mark.parametrize("call", ["read", "replace", "remove", "listed"])
def test_without_the_crd_nothing_is_taken_for_absent(server: Server, store: Kubernetes, call: str) -> None:
    server.tell(NO_PAGE)
    calls = {
        "read": lambda: store.read(POOL, "net"),
        "replace": lambda: store.replace(KNOWN, BODY),
        "remove": lambda: store.remove(KNOWN),
        "listed": lambda: store.listed(POOL),
    }
    with pytest.raises(BackendRefused, match="no such CustomResourceDefinition"):
        calls[call]()


def test_a_credential_that_was_renewed(server: Server, store: Kubernetes, kubeconfig: Path) -> None:
    """In the kubeconfig, or in a file that it names: a connection keeps its first certificate."""
    server.tell(ABSENT, status(401, "Unauthorized"), ABSENT)
    assert store.read(BLOCK, "net.3") is None
    write(kubeconfig, server.url, "another")
    assert store.read(BLOCK, "net.3") is None
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer a-token", *["Bearer another"] * 2]
    assert len({asked.peer for asked in server.asked}) == 3


def test_a_credential_that_is_not_known(server: Server, store: Kubernetes, kubeconfig: Path) -> None:
    server.tell(*[status(401, "Unauthorized", "Unauthorized")] * 2)
    with pytest.raises(BackendRefused, match=rf"does not know this node's credential \({kubeconfig}\): Unauthorized"):
        store.read(BLOCK, "net.3")


def test_a_token_that_has_ended(server: Server, store: Kubernetes, kubeconfig: Path) -> None:
    write(kubeconfig, server.url, "e30.eyJleHAiOiAxNzAwMDAwMDAwfQ.x")  # {"exp": 1700000000}
    server.tell(*[status(401, "Unauthorized", "Unauthorized")] * 2)
    with pytest.raises(BackendRefused, match="which expired at 2023-11-14T22:13:20Z; renew it"):
        store.read(BLOCK, "net.3")


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"server": "x"}, "backends.kubernetes.server is not a known key; known: kubeconfig"),
        ({"kubeconfig": 5}, "backends.kubernetes.kubeconfig 5 is not an absolute path"),
        ({"kubeconfig": "a/b"}, "backends.kubernetes.kubeconfig 'a/b' is not an absolute path"),
    ],
)
def test_what_the_nodes_file_says(about: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        kubernetes.opened(about, "")


def test_the_nodes_name(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"kubeconfig": str(kubeconfig)}
    assert kubernetes.opened(about, "named")[1] == "named"
    write(kubeconfig, "https://api", "e30.eyJrdWJlcm5ldGVzLmlvIjp7Im5vZGUiOnsibmFtZSI6Im4xIn19fQ.x")
    assert kubernetes.opened(about, "")[1] == kubernetes.opened(about, "n1")[1] == "n1"
    with pytest.raises(InvalidConfig, match=r"backends.nodeName 'n2', and .* is the credential of node n1; remove"):
        kubernetes.opened(about, "n2")
    write(kubeconfig, "https://api", "static")
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"nodename": "Host.Example"}))
    assert kubernetes.opened(about, "")[1] == "host.example"
