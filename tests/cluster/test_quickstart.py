"""The quickstart of docs/user/kubernetes.md on nodes without any part of hpn, typed verbatim."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.two_nodes import Cluster
from support.bare_nodes import PAGE, pair
from support.pages import shown


def test_from_an_empty_cluster_to_two_pods(
    bare: Cluster, tree: Path, shell: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "pods.yaml").write_text(pair())
    lines = shown(PAGE, "Quickstart", "sh kubectl").splitlines()
    assert len(lines) <= 6
    began = time.monotonic()
    said = [shell(line) for line in lines]
    took = time.monotonic() - began
    with capsys.disabled():  # for the page
        print(f"\nthe {len(lines)} commands of the quickstart took {took:.1f} s")
    assert " 0% packet loss" in said[-1]
    assert {pod["spec"]["nodeName"] for pod in bare.get("pods")["items"]} == {*bare.nodes}
    bare.delete("pod", "a", "b", "--grace-period=1")
    for node in bare.nodes.values():
        assert (node.attachments(), node.leases()) == ([], [])
