"""Soft-RoCE on a kernel where it does not support namespaces: ADD refuses a device that would carry no traffic."""

from guest.node import Node, rdma_devs
from support.topology import Pod


def test_refused(node: Node, pod: Pod) -> None:
    before = rdma_devs()
    error = node.refused("ADD", pod, node.conf(kind="macvlan", master="rail0", deviceID=..., rdma={"mode": "rxe"}))
    assert (error["code"], "does not listen in the pod's namespace" in error["msg"]) == (101, True)
    assert (pod.links(), rdma_devs(), node.state_files()) == (set(), before, set())
