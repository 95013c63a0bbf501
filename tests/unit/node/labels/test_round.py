"""A round over the labels, beside an API server that stores what is applied: by NFD, in the Node, or not at all."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.tls_server import Asked, Server, Told

from node.labels import round as rounds

LABELS = {"hpn-cni.io/rails": "8", "hpn-cni.io/rdma": "roce"}
OTHERS = {"kubernetes.io/os": "linux"}
NODE = "/api/v1/nodes/node1"
NFD = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/hpn/nodefeatures/node1-hpn"
DENIED = Told(403, {"kind": "Status", "reason": "Forbidden", "message": "no"})
ABSENT = Told(404, {"kind": "Status", "reason": "NotFound", "message": "not found", "details": {"name": "node1-hpn"}})


class Api:
    """node1 and its NodeFeature.  ``has_nfd``: the CRD is there; ``may``: the paths that the credential may change."""

    def __init__(self, server: Server, kubeconfig: Path) -> None:
        about = {"namespace": "hpn", "node": {"name": "node1"}, "serviceaccount": {"name": "hpn"}}
        token = ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({}, {"kubernetes.io": about}, {})
        )
        document = json.loads(kubeconfig.read_text())
        document["users"][0]["user"]["token"] = token
        kubeconfig.write_text(json.dumps(document))
        self.kubeconfig, self.server = f"{kubeconfig}", server
        server.route = self._route
        self.labels, self.applied = dict(OTHERS), dict[str, str]()
        self.feature: dict[str, Any] | None = None
        self.has_nfd, self.may = True, {NODE, NFD}

    def _route(self, asked: Asked) -> Told:
        path, query = urlsplit(asked.path).path, parse_qs(urlsplit(asked.path).query)
        if path == NFD and not self.has_nfd:
            return Told(404, b"404 page not found\n")
        if path not in self.may:
            return DENIED
        if asked.method == "PATCH":
            assert query == {"fieldManager": [rounds.MANAGER], "force": ["true"]}
            assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
        return self._feature(asked) if path == NFD else self._node(asked)

    def _feature(self, asked: Asked) -> Told:
        if asked.method == "DELETE":
            self.feature = None
            return Told(200, {"kind": "Status"})
        if asked.method == "PATCH":
            self.feature = {**asked.body, "metadata": {**asked.body["metadata"], "uid": "f", "resourceVersion": "1"}}
        return Told(200, self.feature) if self.feature else ABSENT

    def _node(self, asked: Asked) -> Told:
        if asked.method == "PATCH":
            assert asked.body["metadata"]["uid"] == "node-uid"
            self.labels = {name: value for name, value in self.labels.items() if name not in self.applied}
            self.applied = asked.body["metadata"]["labels"]
            self.labels |= self.applied
        mine = {"f:metadata": {"f:labels": {f"f:{name}": {} for name in self.applied}}}
        others = {"f:metadata": {"f:labels": {f"f:{name}": {} for name in OTHERS}}}
        fields = [{"manager": "kubelet", "fieldsV1": others}, {"manager": rounds.MANAGER, "fieldsV1": mine}]
        about = {"name": "node1", "uid": "node-uid", "labels": self.labels, "managedFields": fields}
        return Told(200, {"kind": "Node", "metadata": about})

    def publish(self, **labels: str) -> tuple[str, list[str]]:
        """The problem, and the methods of the requests."""
        before = len(self.server.asked)
        wanted = {name.replace("__", "hpn-cni.io/"): of for name, of in labels.items()}
        problem = rounds.publish(self.kubeconfig, wanted)
        return problem, [asked.method for asked in self.server.asked[before:]]


@pytest.fixture(autouse=True)
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.alarm", lambda _: 0)  # a round ends its process


@pytest.fixture
def api(asked: tuple[Server, Path]) -> Api:
    return Api(*asked)


def test_by_nfd(api: Api) -> None:
    assert api.publish(__rails="8", __rdma="roce") == ("", ["GET", "PATCH"])
    assert api.feature
    assert api.feature["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "node1"}
    assert (api.feature["spec"]["labels"], api.labels) == (LABELS, OTHERS)
    assert api.publish(__rails="8", __rdma="roce") == ("", ["GET"])
    assert api.publish(__rails="7") == ("", ["GET", "PATCH"])
    assert api.publish() == ("", ["GET", "DELETE", "GET"])
    assert api.feature is None
    assert api.publish() == ("", ["GET", "GET"])


def test_a_label_without_a_prefix(api: Api) -> None:
    """NFD would rename it."""
    assert api.publish(__rails="8", rdma="hca") == ("", ["GET", "PATCH", "GET", "PATCH"])
    assert api.labels == {**OTHERS, "rdma": "hca"}
    assert api.publish() == ("", ["GET", "DELETE", "GET", "PATCH"])
    assert (api.feature, api.labels) == (None, OTHERS)


@pytest.mark.parametrize("has_nfd", [True, False])
def test_in_the_node(api: Api, *, has_nfd: bool) -> None:
    """Without NFD, or without the right to write a NodeFeature."""
    api.has_nfd, api.may = has_nfd, {NODE} if has_nfd else {NODE, NFD}
    assert api.publish(__rails="8", __rdma="roce") == ("", ["GET", "GET", "PATCH"])
    assert api.labels == {**OTHERS, **LABELS}
    assert api.publish(__rails="8", __rdma="roce") == ("", ["GET", "GET"])
    del api.labels["hpn-cni.io/rails"]  # by another program
    assert api.publish(__rails="8", __rdma="roce") == ("", ["GET", "GET", "PATCH"])
    assert api.publish(__rdma="roce") == ("", ["GET", "GET", "PATCH"])
    assert api.labels == {**OTHERS, "hpn-cni.io/rdma": "roce"}
    assert api.publish() == ("", ["GET", "GET", "PATCH"])
    assert api.labels == OTHERS


def test_nfd_that_comes_later(api: Api) -> None:
    """The Node keeps its labels, which NFD now maintains; at the end both are removed."""
    api.has_nfd = False
    api.publish(__rails="8")
    api.has_nfd = True
    assert api.publish(__rails="8") == ("", ["GET", "PATCH"])
    assert api.publish(__rails="7", rdma="hca") == ("", ["GET", "PATCH", "GET", "PATCH"])
    assert api.labels == {**OTHERS, "hpn-cni.io/rails": "7", "rdma": "hca"}
    assert api.publish() == ("", ["GET", "DELETE", "GET", "PATCH"])
    assert (api.feature, api.labels) == (None, OTHERS)


def test_no_right(api: Api) -> None:
    api.may = set()
    problem, methods = api.publish(__rails="8")
    assert methods == ["GET", "GET"]
    assert "the node's labels are not written: the API server" in problem
    assert problem.endswith("no; set nodeLabels.enabled of the chart, or remove labels from the device file")


def test_no_credential(tmp_path: Path) -> None:
    problem = rounds.publish(f"{tmp_path}/none", LABELS)
    assert "there is no kubeconfig at" in problem
