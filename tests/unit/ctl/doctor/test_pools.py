"""hpn doctor about addresses: a range on each node, ranges that overlap, and the host's own addresses in a range."""

import json
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.documents_of_api import definition, listed, node
from support.pages import ROOT
from support.shipped import CONF, documents
from support.tls_server import Server

from ctl.doctor import cluster, networks
from ctl.doctor.checks.pools import pool_of_own_address, pools_overlap, range_on_each_node
from ctl.doctor.model import Addresses, Facts, Severity
from ctl.doctor.reading import Reader

RANGE = {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}
SHARED = {**RANGE, "cluster": {"backend": "kubernetes"}}


def conf(name: str = "rail0", **ipam: Any) -> dict[str, Any]:
    return {"name": name, "plugins": [{"type": "macvlan", "ipam": ipam}, {"type": "tuning"}]}


def facts(server: Server, kubeconfig: Path, *confs: Any, nodes: int = 2, resource: str = "") -> Facts:
    """The facts of a cluster with a definition for each of the configurations."""
    every = [definition(f"d{n}", resource or None, one) for n, one in enumerate(confs)]
    offering = [node(rail0="8"), *(node() for _ in range(nodes - 1))]
    server.tell(listed(*every), listed(*offering), listed())
    return Facts(cluster=cluster.cluster(Reader(Path("/")), kubeconfig))


@pytest.fixture
def kubeconfig(asked: tuple[Server, Path]) -> Path:
    return asked[1]


@pytest.mark.parametrize(
    ("ipam", "nodes", "resource", "is_found"),
    [
        (RANGE, 2, "", True),
        (RANGE, 1, "", False),
        (RANGE, 2, "example.com/rail0", False),  # one node offers it
        ({**RANGE, "probe": True}, 2, "", True),  # a pod that is down does not answer
        ({**RANGE, "Overlaps": True}, 2, "", False),
        (SHARED, 2, "", False),
        ({**RANGE, "reserved": ["10.56.0.0/24"]}, 2, "", False),  # each pod requests its own
        ({"type": "hpn-ipam", "subnet": "fd00::/64", "eui64": True}, 2, "", False),
        ({"type": "hpn-ipam", "subnet": "parent-ipv4"}, 2, "", False),  # another one on each node
        ({**RANGE, "node": "node-a"}, 2, "", False),
        ({**RANGE, "ranges": [[{"subnet": "parent-ipv6"}], [{"subnet": "fd00::/64", "embedIPv4": True}]]}, 2, "", True),
        ({"type": "hpn-ipam", "rails": [{"pf": "rail0", "subnet": "10.56.0.0/24"}]}, 2, "", True),
        ({"type": "host-local", "subnet": "10.56.0.0/24"}, 2, "", False),
        ({"type": "hpn-ipam", "subnet": "no"}, 2, "", False),
    ],
)
def test_a_range_on_each_node(
    server: Server, kubeconfig: Path, ipam: dict[str, Any], nodes: int, resource: str, is_found: bool
) -> None:
    findings = list(range_on_each_node(facts(server, kubeconfig, conf(**ipam), nodes=nodes, resource=resource)))
    assert [one.severity for one in findings] == [Severity.ERROR] * is_found
    for one in findings:
        assert "ml/d0: its ipam has no cluster, so each of the 2 nodes allocates 10.56.0.2-10.56.0.254" in one.evidence
        assert '"cluster": {"backend": "kubernetes"}' in one.remedy


@pytest.mark.parametrize(("resource", "is_found"), [("rail0", False), ("rail1", True)])
def test_rails_of_one_node(server: Server, kubeconfig: Path, resource: str, is_found: bool) -> None:
    """One resource that a single node offers keeps all pods there."""
    plugin = {"type": "hpn", "rails": ["example.com/other", f"example.com/{resource}"], "ipam": RANGE}
    assert bool([*range_on_each_node(facts(server, kubeconfig, {"plugins": [plugin]}))]) == is_found


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        ({**RANGE, "subnet": "10.56.0.0/16"}, True),
        (SHARED, True),
        ({**SHARED, "overlaps": True}, False),
        ({**RANGE, "subnet": "10.57.0.0/16"}, False),
        ({**RANGE, "rangeStart": "10.56.0.200", "exclude": ["10.56.0.200-10.56.0.254"]}, False),
    ],
)
def test_pools_that_overlap(server: Server, kubeconfig: Path, other: dict[str, Any], is_found: bool) -> None:
    low = conf("low", **{**RANGE, "rangeEnd": "10.56.0.199"})
    findings = list(pools_overlap(facts(server, kubeconfig, low, conf("high", **other), conf("low", **RANGE))))
    assert [one.severity for one in findings] == [Severity.WARNING] * is_found
    for one in findings:
        assert "network high overlaps 10.56.0.2-10.56.0.199 of network low" in one.evidence
        assert '"overlaps": true' in one.remedy


def test_files_and_attachments_count_too() -> None:
    for_file = networks.addresses_in("/etc/cni/net.d/a.conflist", json.dumps(conf("a", **RANGE)).encode())
    of_pod = networks.addresses_of("/run/hpn/x.json", {"name": "b", "ipam": RANGE})
    (one,) = pools_overlap(Facts(addresses=(*for_file, *of_pod)))
    assert "(/run/hpn/x.json)" in one.evidence
    assert list(networks.addresses_in("x", b"{")) == list(networks.addresses_in("x", b'{"plugins": 5}')) == []


@pytest.mark.parametrize(("ipam", "severity"), [(RANGE, Severity.WARNING), (SHARED, Severity.ERROR)])
def test_an_address_of_the_host(ipam: dict[str, Any], severity: Severity) -> None:
    known: tuple[Addresses, ...] = tuple(networks.addresses_of("file", {"name": "a", "ipam": ipam}))
    own = {ip_address("10.56.0.7"): "rail0", ip_address("10.57.0.7"): "rail1", ip_address("::1"): "lo"}
    (one,) = pool_of_own_address(Facts(addresses=(*known, *known), own_addresses=own))
    assert (one.severity, one.evidence) == (severity, "file: network a has 10.56.0.7, which is this node's own (rail0)")
    excluded = tuple(networks.addresses_of("file", {"name": "a", "ipam": {**ipam, "exclude": ["10.56.0.7"]}}))
    assert list(pool_of_own_address(Facts(addresses=excluded, own_addresses=own))) == []


def test_no_definition_shown_gives_each_node_the_same(server: Server, kubeconfig: Path) -> None:
    """The files of conf/, and the example of the chart's values."""
    values = (ROOT / "packaging/helm/hpn/values.yaml").read_text()
    (example,) = re.findall(r"^# networks:\n(?:# .*\n)+", values, re.MULTILINE)
    (network,) = yaml.safe_load(re.sub(r"^# ", "", example, flags=re.MULTILINE))["networks"]
    shown = [network["config"], *(one for path in sorted(CONF.glob("nad-*.yaml")) for one in documents(path))]
    assert len(shown) >= 9
    for one in shown:
        assert "cluster" in one["plugins"][0]["ipam"]
    assert list(range_on_each_node(facts(server, kubeconfig, *shown))) == []
