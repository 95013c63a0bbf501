"""The API server's client: the credential of each request, and lists."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.tls_server import Asked, Server, Told, api_server

from base.kubernetes import credentials
from base.kubernetes.client import Client, of_operator
from base.protocol.errors import BackendRefused, Unreachable

PODS = "/api/v1/pods"


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    with api_server(tmp_path) as found:
        yield found


def renew(kubeconfig: Path, token: str) -> None:
    about = json.loads(kubeconfig.read_text())
    about["users"][0]["user"]["token"] = token
    kubeconfig.write_text(json.dumps(about))


def test_a_list_of_a_renewed_credential(asked: tuple[Server, Path]) -> None:
    """Each page is a request with the credential of its time."""
    server, kubeconfig = asked
    client = of_operator(kubeconfig)
    server.tell(
        Told(200, {"metadata": {"continue": "next"}, "items": [{"a": 1}]}), Told(401), Told(200, {"items": [{"a": 2}]})
    )
    found = client.listed(PODS)
    assert next(found) == {"a": 1}
    renew(kubeconfig, "another-token")
    assert list(found) == [{"a": 2}]
    assert [one.path for one in server.asked] == [f"{PODS}?limit=500", *[f"{PODS}?limit=500&continue=next"] * 2]
    assert [one.headers["Authorization"] for one in server.asked] == ["Bearer a-token", *["Bearer another-token"] * 2]
    client.close()


def test_patience_after_a_renewal(asked: tuple[Server, Path]) -> None:
    """A slow server gets a request once, also with another credential."""
    server, kubeconfig = asked
    # time: the server says nothing
    client = Client(credentials.read(f"{kubeconfig}"), is_patient=True, patience=0.2)
    renew(kubeconfig, "another-token")
    server.tell(Told(is_silent=True))
    with pytest.raises(Unreachable):
        client.send("GET", PODS)
    assert len(server.asked) == 1
    client.close()


def test_patience_with_an_old_credential(asked: tuple[Server, Path]) -> None:
    """The request that follows a refusal has what is left of the time."""
    server, kubeconfig = asked

    def late(_: Asked) -> Told:
        # time: the server is slow
        time.sleep(1.2)
        return Told(401 if len(server.asked) == 1 else 200)

    server.route = late
    # time: each answer comes in time, and both together do not
    patient = Client(credentials.read(f"{kubeconfig}"), is_patient=True, patience=2.0)
    with closing(patient) as client, pytest.raises(Unreachable):
        client.send("GET", PODS)


def test_an_answer_without_an_object(asked: tuple[Server, Path]) -> None:
    """A proxy's page names neither the object nor its absence."""
    server, kubeconfig = asked
    client = of_operator(kubeconfig)
    server.tell(Told(200, b"<html>sign in"), Told(404, b"<html>no page"))
    why = "is not an API server: the request was to get pods, and in its answer there is no object: <html>sign in"
    with pytest.raises(BackendRefused, match=why):
        client.get(f"{PODS}/a", "pods", dict)
    with pytest.raises(BackendRefused, match=r"refuses to get pods: <html>no page$"):
        client.get(f"{PODS}/a", "pods", dict)
    client.close()
