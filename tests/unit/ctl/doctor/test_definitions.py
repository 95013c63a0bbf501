"""hpn doctor --kubeconfig: NetworkAttachmentDefinitions and nodes from an API server."""

from pathlib import Path
from typing import Any

import pytest
from support.documents_of_api import definition, listed, node
from support.tls_server import Server, Told

from base.kernel import budget
from base.kubernetes import http
from ctl.doctor import cluster, networks
from ctl.doctor.checks.controllers import policy_unenforced, resource_injected
from ctl.doctor.checks.node import names_unlisted, resource_nobody_has
from ctl.doctor.checks.programs import not_readable
from ctl.doctor.model import Cluster, Facts, NodeFile, Severity
from ctl.doctor.reading import Reader
from node import config as node_config


@pytest.fixture
def kubeconfig(asked: tuple[Server, Path]) -> Path:
    return asked[1]


def found(cluster: Cluster | None) -> list[str]:
    findings = list(resource_nobody_has(Facts(cluster=cluster)))
    assert {one.severity for one in findings} <= {Severity.ERROR}
    return [one.evidence for one in findings]


def test_a_resource_that_nobody_has(server: Server, kubeconfig: Path) -> None:
    """The case: lists of two pages; nodes with 0 of one resource and 8 of another; a resource of a DRA driver."""
    rails = {
        "plugins": [
            {"type": "hpn", "rails": ["example.com/*", "example.com/rail0", "example.com/absent", "ens1"]},
            {"rails": 1},
            {"rails": ["a/b"]},
        ]
    }
    server.tell(
        listed(definition("a", "example.com/rail0"), definition("b", "example.com/rail1"), more="there/is more"),
        listed(
            definition("c", "example.com/none"),
            definition("d", None),
            definition("e", "example.com/dra"),
            definition("f", None, rails),
        ),
        listed(node(rail0="8", rail1="0"), node(rail0="0")),
        listed({"spec": {"extendedResourceName": "example.com/dra"}}, {"spec": {}}),
    )
    known = cluster.cluster(Reader(Path("/")), kubeconfig)
    assert known
    assert {one.name: one.rails for one in known.definitions}["ml/f"][0] == "example.com/dra"
    one, other, of_rail = found(known)
    assert "ml/f names the resource example.com/absent, which none" in of_rail
    assert "ml/b" in one
    assert "example.com/rail1" in one
    assert "none of the 2 nodes" in one
    assert "ml/c" in other
    assert server.asked[1].path.endswith("&continue=there%2Fis%20more")
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer a-token"}


def test_each_page_of_a_large_cluster_has_its_own_time(
    server: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Node objects alone take longer to list than a command's requests may together."""
    pages = [listed(node(), more=f"page-{number}") for number in range(9)]
    server.tell(listed(), *pages[:5], Told(is_silent=True), *pages[5:], listed(node()), listed())
    monkeypatch.setattr(http, "_TIMEOUT", 1.0)
    budget.begin()
    known = cluster.cluster(Reader(Path("/")), kubeconfig)
    assert known
    assert known.nodes == 10
    assert budget.left() > budget.REQUEST - 1.0


def test_a_cluster_without_these_kinds(server: Server, kubeconfig: Path) -> None:
    server.tell(Told(404, b"404 page not found\n"), listed(node()), Told(404, b"404 page not found\n"))
    assert cluster.cluster(Reader(Path("/")), kubeconfig) == Cluster(1, frozenset(), ())


def test_who_may_not_list_them(server: Server, kubeconfig: Path) -> None:
    server.tell(Told(403, {"kind": "Status", "message": 'User "x" cannot list resource'}))
    read = Reader(Path("/"))
    assert cluster.cluster(read, kubeconfig) is None
    assert "does not list network-attachment-definitions" in read.unread[f"{kubeconfig}"]
    assert 'User "x" cannot list resource' in read.unread[f"{kubeconfig}"]


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    read = Reader(Path("/"))
    assert cluster.cluster(read, tmp_path / "none") is None
    assert "there is no kubeconfig" in read.unread[f"{tmp_path}/none"]
    read.unread["/proc/1/environ"] = "Permission denied"
    remedies = [one.remedy for one in not_readable(Facts(unread=tuple(read.unread.items())))]
    assert remedies == ["follow this message", "run hpn doctor as root, in the host's namespaces"]


@pytest.mark.parametrize("page", [{"items": None}, {"items": [None, {}, {"metadata": []}]}, {}])
def test_a_page_that_is_none(server: Server, kubeconfig: Path, page: Any) -> None:
    server.tell(Told(200, page), Told(200, page), Told(200, page))
    known = cluster.cluster(Reader(Path("/")), kubeconfig)
    assert found(known) == []


@pytest.mark.parametrize(
    ("config", "file", "is_noted"),
    [
        ('{"type": "hpn"}', "", True),
        ('{"plugins": [{"type": "macvlan", "ipam": {"type":"hpn-ipam"}}]}', '{"podMayChoose": []}', True),
        ('{"type": "hpn"}', '{"allowedNames": {"kind": ["macvlan"]}}', False),
        ('{"type": "macvlan", "name": "hpn"}', "", False),
        (None, "", False),
    ],
)
def test_a_node_that_allows_all_names(
    server: Server, kubeconfig: Path, tmp_path: Path, config: str | None, file: str, is_noted: bool
) -> None:
    """A node that allows all names gives a note, if there are definitions for hpn."""
    server.tell(listed(definition("a", None) | {"spec": {"config": config}}), listed(node()), *[listed()] * 4)
    path = tmp_path / "etc" / "hpn" / "policy.json"
    path.parent.mkdir(parents=True)
    if file:
        path.write_text(file)
    read = Reader(tmp_path)
    facts = Facts(cluster=cluster.cluster(read, kubeconfig), without_names=networks.without_names(read))
    findings = list(names_unlisted(facts))
    assert [one.severity for one in findings] == [Severity.NOTE] * is_noted
    assert all(f"{path}" in one.evidence and "ml/a" in one.evidence for one in findings)


def policy(name: str, networks: str) -> dict[str, Any]:
    about = {"namespace": "ml", "name": name, "annotations": {"k8s.v1.cni.cncf.io/policy-for": networks}}
    return {"metadata": about}


def daemon(*args: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"args": [*args]}]}}}}


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--host-prefix=/host", "--network-plugins=macvlan,ipvlan"), ["ml/deny", "ml/other"]),
        (("--network-plugins=macvlan,hpn",), []),
        (("--network-plugins", "hpn"), []),
        ((), ["ml/deny", "ml/other"]),
    ],
)
def test_a_policy_that_nobody_enforces(
    server: Server, kubeconfig: Path, args: tuple[str, ...], found: list[str]
) -> None:
    """Only networks of type hpn count: the controllers look at the first plugin's type."""
    ours, theirs = {"plugins": [{"type": "hpn"}]}, {"type": "macvlan", "ipam": {"type": "hpn-ipam"}}
    server.tell(
        listed(definition("rail0", None, ours), definition("old", None, theirs)), listed(node()), listed(),
        listed(policy("deny", "rail0, old"), policy("another", "old")), listed(policy("other", "ml/rail0")),
        listed(daemon("--unrelated"), daemon(*args)), listed(),
    )  # fmt: skip
    findings = list(policy_unenforced(Facts(cluster=cluster.cluster(Reader(Path("/")), kubeconfig))))
    assert [one.evidence.split()[1] for one in findings] == found
    assert all("is for network ml/rail0, whose type is hpn" in one.evidence for one in findings)


@pytest.mark.parametrize(("by", "is_noted"), [("dra", True), ("devicePlugin", False)])
@pytest.mark.parametrize("webhook", ["network-resources-injector-config", "another"])
def test_a_webhook_that_adds_a_claims_resource(
    server: Server, kubeconfig: Path, by: str, is_noted: bool, webhook: str
) -> None:
    text = f"resources: [{{name: example.com/vf, kind: vf, by: {by}, selectors: {{pfNames: [rail0]}}}}]"
    file = NodeFile("/etc/hpn/devices.yaml", node_config.settings(text.encode(), is_yaml=True))
    hook = {"metadata": {"name": webhook}, "webhooks": [{"name": f"{webhook}.k8s.io"}]}
    nad = definition("rail0", "example.com/vf", {"type": "hpn"})
    server.tell(listed(nad), listed(node()), listed(), listed(), listed(), listed(hook))
    facts = Facts(cluster=cluster.cluster(Reader(Path("/")), kubeconfig), node_file=file)
    found = [one.evidence for one in resource_injected(facts)]
    assert len(found) == (is_noted and webhook != "another")
    assert all("adds example.com/vf to the limits of pods of NetworkAttachmentDefinition ml/rail0" in e for e in found)


def test_who_may_not_list_controllers(server: Server, kubeconfig: Path) -> None:
    """The rest counts all the same."""
    server.tell(
        listed(definition("a", None, {"type": "hpn"})), listed(node()), listed(), Told(403, {"message": "no policies"})
    )
    read = Reader(Path("/"))
    found = cluster.cluster(read, kubeconfig)
    assert found
    assert [one.name for one in found.definitions] == ["ml/a"]
    assert "does not list multi-networkpolicies" in read.unread[f"{kubeconfig}"]
