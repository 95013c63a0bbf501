"""docs/user/claims.md: each row of the three ways names existing tests, and hpn node accepts the classes."""

from typing import Any

import pytest
import yaml
from support.pages import ROOT
from test_security import TESTS

from base.kernel import rdma_netlink
from node.dra.claims import prepare
from node.dra.claims.prepare import Asked, Found

PAGE = (ROOT / "docs/user/claims.md").read_text()
ROWS = PAGE.partition("## Three ways to a device")[2].partition("\n## ")[0].splitlines()
NAMED = {row.split(" | ")[0]: row.rpartition(" | ")[2] for row in ROWS if row.startswith("| ") and "`test_" in row}
BLOCKS = [part.partition("```")[0] for part in PAGE.split("```yaml\n")[1:]]
CLASSES = [one for block in BLOCKS for one in yaml.safe_load_all(block) if one and one.get("kind") == "DeviceClass"]
# Another one's network is a file of the node.
WHOLE = [one for one in CLASSES if "network" not in one["spec"]["config"][0]["opaque"]["parameters"]]
VF = Found("0000:3b:00.2", "vf", "example.com/rail0", {})
UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"


@pytest.mark.parametrize("row", NAMED)
def test_each_row_names_tests(row: str) -> None:
    names = [part for part in NAMED[row].split("`") if part.startswith("test_")]
    assert [name for name in names if name not in TESTS] == []


def test_all_rows_are_read() -> None:
    assert len(NAMED) == len([row for row in ROWS if row.startswith("| ")]) - 1


@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_the_classes(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Prepare gets them, on a node without RDMA."""
    monkeypatch.setattr(rdma_netlink, "is_exclusive", lambda: None)
    config = [{"source": "FromClass", **one} for one in WHOLE[number]["spec"]["config"]]
    results = [{"request": "r", "driver": "hpn-cni.io", "pool": "node1/p", "device": "d"}]
    document: dict[str, Any] = {
        "metadata": {"name": "c", "namespace": "default", "uid": UID},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": "p"}],
        },
    }
    (device,) = prepare.decide(Asked(UID, "default", "c"), document, lambda *_: VF).devices
    assert device.attach == config[0]["opaque"]["parameters"].get("attach", "multus")
