"""Pods with their own user namespace, as with ``hostUsers: false``, meet the assumptions of the other tests.

``namespaces.with_both`` marks the tests that run with such pods, too.  HPN_PODS=userns extends that to the whole tier.
"""

import fcntl
import os
from collections.abc import Callable
from typing import Any

import pytest
from netns import test_transaction as transaction
from netns.test_host_device import (
    eth9,
    test_attach_check_detach,
    test_hidden_in_a_namespace_of_the_pods_own,
    test_the_namespace_is_gone,
    test_whatever_the_pod_made_of_it,
)
from support.topology import Host, Pod

__all__ = [
    "eth9",
    "test_attach_check_detach",
    "test_hidden_in_a_namespace_of_the_pods_own",
    "test_the_namespace_is_gone",
    "test_whatever_the_pod_made_of_it",
]
NS_GET_USERNS = 0xB701  # man 2 ioctl_ns


@pytest.fixture(autouse=True)
def userns(pods: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPN_PODS", "userns")


def owner(path: str) -> int:
    """The inode number of the user namespace that owns a network namespace."""
    with open(path, "rb") as namespace:
        fd = fcntl.ioctl(namespace, NS_GET_USERNS)
        try:
            return os.fstat(fd).st_ino
        finally:
            os.close(fd)


def test_such_a_pod(host: Host, pod: Pod) -> None:
    """ADD, CHECK and DEL work as for other pods, although another user namespace owns the pod's network namespace."""
    assert owner(pod.path) != owner("/proc/self/ns/net")
    conf = host.conf(policyRouting=True, sysctl={"net.ipv4.conf.IFNAME.rp_filter": "2"})
    before = host.picture(pod)
    result = host.ok("ADD", pod, conf)
    assert pod.sysctl("ipv4/conf/hpn0/rp_filter") == "2"
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert host.picture(pod) == before


@pytest.mark.parametrize(
    ("command", "recover"),
    [("ADD", transaction.by_a_new_add), ("DEL", transaction.by_del), ("GC", transaction.by_del_without_netns)],
)
def test_killed_at_every_step(
    host: Host, pod: Pod, command: str, recover: Callable[[Host, Pod, dict[str, Any]], None]
) -> None:
    transaction.test_killed_at_every_step(host, pod, command, recover)
