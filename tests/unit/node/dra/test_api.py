"""The DRA driver's requests to the API server, and the messages for refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.tls_server import Asked, Server, Told, api_server

from base.protocol.errors import StoreRefused, Unreachable
from node.dra import api
from node.dra.api import Api

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/rails"


def one(name: str, version: str = "7") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": "u-1", "resourceVersion": version}, "spec": {"driver": "hpn-cni.io"}}


def page(*found: dict[str, Any], more: str = "") -> Told:
    return Told(200, {"metadata": {"resourceVersion": "9", "continue": more}, "items": list(found)})


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


def test_pages_of_slices(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(page(one("a"), more="next"), page(one("b")))
    assert opened.slices(lambda one: one) == [one("a"), one("b")]
    first, second = (query(request) for request in server.asked)
    assert first["fieldSelector"] == "spec.driver=hpn-cni.io,spec.nodeName=node1"
    assert second == {**first, "continue": "next"}


def test_a_state_that_the_server_dropped(asked: tuple[Server, Api]) -> None:
    """410 between two pages begins the list again; after some attempts it is an error."""
    server, opened = asked
    gone = status(410, "Expired", "too old")
    server.tell(page(one("a"), more="next"), gone, page(one("b")))
    assert opened.slices(lambda one: one) == [one("b")]
    server.tell(gone, gone, gone)
    with pytest.raises(Unreachable, match="dropped the list"):
        opened.slices(lambda one: one)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        {"items": []},
        {"metadata": {}, "items": 5},
        {"metadata": {}, "items": [1]},
        {"metadata": {}, "items": [{"metadata": {"name": "a"}, "spec": {}}]},
        {"metadata": {}, "items": [{**one("a"), "spec": "x"}]},
    ],
)
def test_answers_of_another_server(asked: tuple[Server, Api], body: object) -> None:
    server, opened = asked
    server.tell(Told(200, body))
    with pytest.raises(StoreRefused, match="is not an API server: the request was to list resourceslices"):
        opened.slices(lambda one: one)


def test_the_same_page_without_end(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(page(more="x"), page(more="x"))
    with pytest.raises(StoreRefused, match="is not an API server"):
        opened.slices(lambda one: one)


def test_create(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(201, one("a")), status(409, "AlreadyExists"))
    made = {"metadata": {"name": "a"}, "spec": {}}
    assert opened.create(made) == one("a")
    assert opened.create(made) is None
    request = server.asked[0]
    assert (request.method, request.body) == ("POST", made)
    assert request.path == f"{SLICES}?fieldManager=hpn-cni.io&fieldValidation=Strict"
    assert request.headers["Content-Type"] == "application/json"


def test_replace(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("a", "8")), status(409, "Conflict"), ABSENT)
    assert opened.replace(one("a")) == one("a", "8")
    assert opened.replace(one("a")) is None
    assert opened.replace(one("a")) is None
    request = server.asked[0]
    assert (request.method, urlsplit(request.path).path, request.body) == ("PUT", f"{SLICES}/a", one("a"))


def test_delete(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(Told(200, one("a")), status(409, "Conflict"), ABSENT, status(403, "Forbidden", "no"))
    for _ in range(3):
        opened.delete(one("a"))
    request = server.asked[0]
    assert (request.method, request.path) == ("DELETE", f"{SLICES}/a")
    assert request.body["preconditions"] == {"uid": "u-1", "resourceVersion": "7"}
    with pytest.raises(StoreRefused, match="refuses to delete resourceslices: no; allow it to the nodes: kubectl"):
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
        (status(401, "Unauthorized", "Unauthorized"), "does not know the credential in .*/kubeconfig; renew it"),
        (status(403, "Forbidden", "may not"), "may not; allow it to the nodes: kubectl apply -k packaging/kuber"),
        (Told(404, b"404 page not found\n"), "does not serve resource.k8s.io/v1, which Kubernetes has from 1.34"),
        (status(422, "Invalid", "spec.devices: too many"), "refuses to list resourceslices: spec.devices: too many$"),
    ],
)
def test_refusals(asked: tuple[Server, Api], answer: Told, words: str) -> None:
    server, opened = asked
    server.tell(answer)
    with pytest.raises(StoreRefused, match=words):
        opened.slices(lambda one: one)


def test_no_answer(asked: tuple[Server, Api]) -> None:
    server, opened = asked
    server.tell(*[Told(503, {"message": "starting"})] * 4)
    with pytest.raises(Unreachable, match="starting; try again later"):
        opened.slices(lambda one: one)
