"""packaging/kubernetes/dra/policy.yaml has the keys of node/dra/claims/parameters.py."""

import re
from pathlib import Path

import yaml

from node.dra.claims import parameters

POLICY = Path(__file__).parents[5] / "packaging/kubernetes/dra/policy.yaml"


def test_the_keys_are_the_same() -> None:
    policy, _ = yaml.safe_load_all(POLICY.read_text())
    lists = {one["name"]: re.findall(r"'(\w+)'", one["expression"]) for one in policy["spec"]["variables"]}
    assert lists["ofClaim"] == ["apiVersion", "kind", *parameters.OF_CLAIM]
    assert set(lists["others"]) == parameters.KEYS.keys() - parameters.OF_CLAIM.keys()
    assert len(lists["others"]) == len(set(lists["others"]))
