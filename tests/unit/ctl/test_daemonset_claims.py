"""hpn daemonset claims: which pods must end before the chart goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.tls_server import Server, Told, api_server

from base.protocol.errors import BackendRefused, NotAvailable
from ctl.daemonset import claimed

PODS = "pods have claims of hpn, and kubelet cannot end them without it: "


def claim(*pods: str, driver: str = "hpn-cni.io", namespace: str = "team") -> dict[str, Any]:
    """A claim as the API server has it: the scheduler allocates it, and reserves it for pods."""
    devices = {"results": [{"driver": "gpu.example.com"}, {"driver": driver}]}
    reserved = [{"resource": "pods", "name": one, "uid": "u"} for one in pods]
    status = {"allocation": {"devices": devices}, **({"reservedFor": reserved} if pods else {})}
    return {"metadata": {"name": "rails", "namespace": namespace}, "spec": {}, "status": status}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An API server, with the credential of a pod's account in the folder ``account``."""
    with api_server(tmp_path) as (it, _):
        (tmp_path / "account").mkdir()
        (tmp_path / "account/token").write_text("secret")
        (tmp_path / "account/ca.crt").write_bytes((tmp_path / "ca.pem").read_bytes())
        at = urlsplit(it.url)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(at.hostname))
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(at.port))
        yield it


def page(*items: dict[str, Any], follow: str = "") -> Told:
    return Told(200, {"metadata": {"continue": follow}, "items": list(items)})


def test_pods_with_claims(server: Server, tmp_path: Path) -> None:
    """Each pod once, of all pages; not those whose claim is another driver's."""
    others = claim("gpu", driver="nic.example.com")
    server.tell(page(claim("b", "a"), others, follow="next"), page(claim("a"), claim("a", namespace="other")))
    with pytest.raises(NotAvailable) as e:
        claimed.refuse(tmp_path / "account")
    assert e.value.msg.startswith(f"{PODS}other/a; team/a; team/b.  Nothing was removed.")
    assert [one.headers["Authorization"] for one in server.asked] == ["Bearer secret"] * 2


def test_no_pod_has_a_claim(server: Server, tmp_path: Path) -> None:
    """One that is allocated and no pod's is not prepared; a new one has no status."""
    server.tell(page(claim(), {"metadata": {"name": "new", "namespace": "team"}, "spec": {}}))
    assert claimed.refuse(tmp_path / "account") == ["no pod has a claim of hpn"]


def test_an_older_kubernetes_has_no_claims(server: Server, tmp_path: Path) -> None:
    server.tell(Told(404, {"kind": "Status", "message": "the server could not find the requested resource"}))
    assert claimed.refuse(tmp_path / "account") == ["no pod has a claim of hpn"]


def test_a_refused_list_is_no_permission(server: Server, tmp_path: Path) -> None:
    server.tell(Told(403, {"kind": "Status", "message": "resourceclaims is forbidden"}))
    with pytest.raises(BackendRefused, match="resourceclaims is forbidden"):
        claimed.refuse(tmp_path / "account")
