"""Run by hand on an old kernel: ADD refuses, with a remedy, what the kernel would ignore or not restore:

netns-fixtures/lab --kernel 5.10 --pfs 1 packaging/venv pytest -p no:cacheprovider tests/lab/older.py
"""

from typing import Any

import pytest
from guest.node import NAME, PF, Node
from support.topology import Pod, ip

from base.kernel import netns, rtnl


@pytest.mark.parametrize(
    ("keys", "code", "said"),
    [
        ({}, 101, "use a kernel from 5.14 on, or kind macvlan over it"),
        ({"kind": "host-device"}, 101, "use a kernel from 5.14 on, or kind macvlan over it"),
        ({"kind": "host-device", "deviceID": ..., "device": "eth9"}, 101, "needs Linux 5.13 to be moved safely"),
        ({"kind": "macvlan", "deviceID": ..., "master": PF, "bcqueuelen": 5}, 105, "use a kernel from 5.11 on"),
    ],
)
def test_refused(node: Node, pod: Pod, keys: dict[str, Any], code: int, said: str) -> None:
    skip_on_a_new_kernel()
    ip("link", "add", "eth9", "type", "dummy")
    try:
        error = node.refused("ADD", pod, node.conf(**keys))
    finally:
        ip("link", "delete", "eth9")
    assert (error["code"], said in error["msg"]) == (code, True), error["msg"]
    assert (pod.links(), node.state_files(), node.leases()) == (set(), set(), set())


@pytest.mark.parametrize("keys", [{"pf": PF}, {"kind": "host-device", "device": NAME}])
def test_status(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    """STATUS checks the device that the configuration names."""
    skip_on_a_new_kernel()
    error = node.refused("STATUS", pod, node.conf(deviceID=..., **keys))
    assert (error["code"], "use a kernel from 5.14 on" in error["msg"]) == (50, True), error["msg"]


def skip_on_a_new_kernel() -> None:
    with rtnl.open_in() as host:
        if netns.cookie(host.sock):
            pytest.skip("this kernel is not so old: netns-fixtures/lab --kernel 5.10 has one")
