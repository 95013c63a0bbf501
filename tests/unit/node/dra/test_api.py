"""The DRA driver's requests to the API server, and the messages for refusals."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.tls_server import Asked, Server, Told, api_server

from base.kubernetes import http
from base.protocol.errors import BackendRefused, Unreachable
from node.dra import api
from node.dra.api import Api

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/rails"


def one(name: str, version: str = "7") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": "u-1", "resourceVersion": version}, "spec": {"driver": "hpn-cni.io"}}


def page(*found: dict[str, Any]) -> Told:
    return Told(200, {"metadata": {"resourceVersion": "9"}, "items": list(found)})


def status(code: int, reason: str, message: str = "", **details: str) -> Told:
    return Told(code, {"kind": "Status", "reason": reason, "message": message, "details": details})


ABSENT = status(404, "NotFound", "not found", name="it")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Server, Api]]:
    with api_server(tmp_path) as (server, kubeconfig):
        opened = api.opened(f"{kubeconfig}")
        opened.node = "node1"
        yield server, opened
        opened.close()


def query(request: Asked) -> dict[str, str]:
    return {key: found[0] for key, found in parse_qs(urlsplit(request.path).query).items()}


def test_slices(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(page(one("a"), one("b")), Told(200, {"metadata": {}, "items": None}), page())
    assert opened.slices() == [one("a")["metadata"], one("b")["metadata"]]
    assert opened.slices() == []  # as Go writes an empty list
    for request in server.asked:
        assert query(request) == {"fieldSelector": "spec.driver=hpn-cni.io,spec.nodeName=node1"}
        kinds = request.headers["Accept"].split(",")
        assert kinds == ["application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json"]
    opened.slices("9")
    assert query(server.asked[2]).items() >= {"resourceVersion": "9", "resourceVersionMatch": "NotOlderThan"}.items()


def test_a_slow_server(asked: tuple[Server, Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue in it, or an election in etcd.  Its answer counts, and no request makes the queue longer."""
    server, opened = asked
    monkeypatch.setattr(http, "_TIMEOUT", 0.01)  # for a command, which waits

    def late(_: Asked) -> Told:
        # time: the server is slow
        time.sleep(0.5)
        return ABSENT

    server.route = late
    assert opened.claim("team", "rails") is None
    assert len(server.asked) == 1
    server.route = None
    opened._client._http._patience = 0.2
    server.tell(Told(is_silent=True))
    with pytest.raises(Unreachable):
        opened.claim("team", "rails")
    assert len(server.asked) == 2


def test_a_slice(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("a")), ABSENT, Told(200, {"metadata": {"name": "a"}, "spec": {}}))
    assert opened.slice("a/b") == one("a")
    assert opened.slice("a") is None
    assert server.asked[0].path == f"{SLICES}/a%2Fb"
    with pytest.raises(BackendRefused, match="is not an API server: the request was to get resourceslices"):
        opened.slice("a")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        {"items": []},
        {"metadata": {}, "items": 5},
        {"metadata": {}, "items": [1]},
        {"metadata": {}},
        {"metadata": {}, "items": [{"metadata": {"name": "a"}, "spec": {}}]},
        {"metadata": {}, "items": [{"metadata": "x"}]},
    ],
)
def test_answers_of_another_server(asked: tuple[Server, Api], body: object) -> None:
    server, opened = asked
    server.tell(Told(200, body))
    with pytest.raises(BackendRefused, match="is not an API server: the request was to list resourceslices"):
        opened.slices()


def test_create(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(201, one("a")), status(409, "AlreadyExists"))
    made = {"metadata": {"name": "a"}, "spec": {}}
    assert opened.create(made) == one("a")["metadata"]
    assert opened.create(made) is None
    request = server.asked[0]
    assert (request.method, request.body) == ("POST", made)
    assert request.path == f"{SLICES}?fieldManager=hpn-cni.io&fieldValidation=Strict"
    assert request.headers["Content-Type"] == "application/json"
    assert "as=PartialObjectMetadata;" in request.headers["Accept"]


def test_replace(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("a", "8")), status(409, "Conflict"), ABSENT)
    assert opened.replace(one("a")) == one("a", "8")["metadata"]
    assert opened.replace(one("a")) is None
    assert opened.replace(one("a")) is None
    request = server.asked[0]
    assert (request.method, urlsplit(request.path).path, request.body) == ("PUT", f"{SLICES}/a", one("a"))


def test_a_request_whose_answer_was_lost(asked: tuple[Server, Api]) -> None:
    """The API server stored the slice, and refuses the request when it is sent again."""
    server, opened = asked
    for status_of, send in ((status(409, "AlreadyExists"), opened.create), (status(409, "Conflict"), opened.replace)):
        server.tell(
            Told(503), status_of, Told(200, one("a", "8")), Told(503), status_of, Told(200, {**one("a"), "spec": {}})
        )
        assert send(one("a")) == one("a", "8")["metadata"]
        assert send(one("a")) is None


def test_delete(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("a")), status(409, "Conflict"), ABSENT, status(403, "Forbidden", "no"))
    for _ in range(3):
        opened.delete(one("a"))
    request = server.asked[0]
    assert (request.method, request.path) == ("DELETE", f"{SLICES}/a")
    assert request.body["preconditions"] == {"uid": "u-1", "resourceVersion": "7"}
    with pytest.raises(BackendRefused, match="refuses to delete resourceslices: no; allow it to the nodes: kubectl"):
        opened.delete(one("a"))


def test_claim(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("rails")), ABSENT)
    assert opened.claim("team", "rails") == one("rails")
    assert opened.claim("team", "rails") is None
    assert [request.path for request in server.asked] == [CLAIM, CLAIM]
    opened.close()
    server.tell(ABSENT)
    opened.claim("../x", "a/b")
    assert server.asked[2].path == "/apis/resource.k8s.io/v1/namespaces/..%2Fx/resourceclaims/a%2Fb"


def test_claim_status(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("rails")), status(409, "Conflict"), ABSENT)
    devices = [{"driver": "hpn-cni.io", "pool": "p", "device": "d", "networkData": {"interfaceName": "net1"}}]
    assert opened.patch_claim_status("team", "rails", "u-1", devices)
    assert not opened.patch_claim_status("team", "rails", "u-1", devices)
    assert not opened.patch_claim_status("team", "rails", "u-1", devices)
    request = server.asked[0]
    assert request.method == "PATCH"
    assert urlsplit(request.path).path == f"{CLAIM}/status"
    assert query(request)["force"] == "true"
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.body["metadata"]["uid"] == "u-1"
    assert request.body["status"] == {"devices": devices}


def test_node(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    found = {"metadata": {"uid": "n-1"}, "status": {}}
    server.tell(Told(200, found), ABSENT)
    assert [opened.own_node(), opened.own_node()] == [found, {}]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            status(401, "Unauthorized", "Unauthorized"),
            "does not know this node's credential .*/kubeconfig",
        ),
        (status(403, "Forbidden", "may not"), "may not; allow it to the nodes: kubectl apply -k packaging/kuber"),
        (Told(404, b"404 page not found\n"), "does not serve resource.k8s.io/v1, which Kubernetes has from 1.34"),
        (status(422, "Invalid", "spec.devices: too many"), "refuses to list resourceslices: spec.devices: too many$"),
    ],
)
def test_refusals(asked: tuple[Server, Api], answer: Told, words: str) -> None:
    server, opened = asked
    server.tell(*[answer] * (2 if answer.status == 401 else 1))  # a connection may have a former certificate
    with pytest.raises(BackendRefused, match=words):
        opened.slices()


def test_no_answer(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(*[Told(503, {"message": "starting"})] * 4)
    with pytest.raises(Unreachable, match="starting; try again later"):
        opened.slices()
