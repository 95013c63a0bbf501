"""docs/user/quickstart.md on nodes without any part of hpn, typed verbatim."""

from collections.abc import Callable
from pathlib import Path

from cluster.two_nodes import Cluster
from support.bare_nodes import QUICKSTART, pair
from support.pages import shown


def test_from_an_empty_cluster_to_two_pods(bare: Cluster, tree: Path, shell: Callable[[str], str]) -> None:
    (tree / "pods.yaml").write_text(pair())
    lines = shown(QUICKSTART, "Two pods", "sh kubectl").splitlines()
    assert len(lines) <= 6
    assert " 0% packet loss" in [shell(line) for line in lines][-1]
    assert {pod["spec"]["nodeName"] for pod in bare.get("pods")["items"]} == {*bare.nodes}
    bare.delete("pod", "a", "b", "--grace-period=1")
    for node in bare.nodes.values():
        assert (node.attachments(), node.leases()) == ([], [])
