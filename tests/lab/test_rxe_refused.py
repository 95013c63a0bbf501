"""Soft-RoCE in exclusive mode, where its devices stay with the host: ADD refuses it before any change."""

from typing import Any

import pytest
from guest.node import Node, rdma_devs
from support.topology import Pod

RXE = {"rdma": {"mode": "rxe"}}


@pytest.mark.parametrize(
    "keys", [{"deviceID": ..., "kind": "macvlan", "master": "rail0"}, {}], ids=["macvlan", "sriov"]
)
def test_refused(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    before = rdma_devs()
    conf = node.conf(**RXE, **keys)
    error = node.refused("ADD", pod, conf)
    assert (error["code"], "exclusive mode" in error["msg"]) == (101, True)
    assert (pod.links(), rdma_devs(), node.state_files()) == (set(), before, set())
    assert node.refused("STATUS", None, conf)["code"] == 50
