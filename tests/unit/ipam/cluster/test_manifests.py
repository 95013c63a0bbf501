"""packaging/kubernetes/cluster agrees with the program: the documents' fields, and the grace."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ipam.cluster.backends import kubernetes
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.rules.documents import SAID, Block, PoolLayout

FOLDER = Path(__file__).parents[4] / "packaging" / "kubernetes" / "cluster"
BLOCK = Block("net", 3, 16, "node1", "machine", "nonce").to_json()
POOL = PoolLayout("net", 16, ("10.0.0.0/24",)).to_json()
# Optional fields: of a reserved number, and of a pool layout with such numbers.
NAMED = Block("net", 3, 1, "node1", "machine", "nonce", whose="default/web-0:net1", keep=60).to_json()
ASIDE = PoolLayout("net", 16, ("10.0.0.0/24",), "64-127").to_json()
TYPES = {str: "string", int: "integer", bool: "boolean", list: "array"}


def manifest(name: str) -> dict[str, Any]:
    return dict(next(iter(yaml.safe_load_all((FOLDER / name).read_text()))))


@pytest.mark.parametrize(
    ("file", "body", "most", "plural"), [("blocks", BLOCK, NAMED, "hpnblocks"), ("pools", POOL, ASIDE, "hpnpools")]
)
def test_the_schema_has_what_documents_hold(file: str, body: dict[str, Any], most: dict[str, Any], plural: str) -> None:
    """A field that the schema lacks would be refused; so would a document without a required field."""
    definition = manifest(f"{file}.yaml")
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert {name: one["type"] for name, one in spec["properties"].items()} == {
        name: TYPES[type(value)] for name, value in most.items()
    }
    assert set(spec["required"]) == body.keys()
    assert definition["metadata"]["name"] == f"{plural}.{kubernetes.GROUP}"


def test_the_policy_waits_as_long_as_nodes_do() -> None:
    policy = manifest("policy.yaml")["spec"]
    variables = {one["name"]: one["expression"] for one in policy["variables"]}
    assert variables["grace"] == f"duration('{GRACE}s')"
    assert f"oldObject.spec.suspect == 0 ? object.spec.suspect == {SAID}" in variables["isSuspicion"]
    assert f"oldObject.spec.suspect > {SAID}\n" in variables["isTakeOver"]
    # The policy finds the time of a write by this name.
    assert "request.options.?fieldManager.orValue('') != 'hpn'" in variables["times"]
    assert "fieldManager=hpn&" in kubernetes._path("block", changes=True)


def test_a_node_may_do_no_more_than_the_program_asks() -> None:
    rules = {resource: set(rule["verbs"]) for rule in manifest("nodes.yaml")["rules"] for resource in rule["resources"]}
    assert rules == {
        "hpnpools": {"get", "list", "create", "update"},
        "hpnblocks": {"get", "list", "create", "update", "delete"},
        "nodes": {"get"},
        "namespaces": {"get"},
    }
