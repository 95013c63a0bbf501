"""GID tables of the guest's RDMA devices in /sys, and the GIDs that ADD recorded."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_interface

from guest.node import Node
from support.topology import Pod, ip, until

from base.state import durable

V1, V2 = "IB/RoCE v1", "RoCE v2"
LENGTH = 64  # of testhca's tables
PATIENT = {"gidTimeout": 30}  # everything is slow in the guest, more so while other guests run beside it


def table(device: str, netns: str = "") -> dict[int, tuple[str, str, str]]:
    """A GID table in a namespace's own /sys: index -> GID, type and netdev."""
    script = (
        f"cd /sys/class/infiniband/{device}/ports/1; for i in $(ls gids); do read -r gid <gids/$i; "
        "case $gid in *[1-9a-f]*) echo $i $gid $(cat gid_attrs/ndevs/$i) $(cat gid_attrs/types/$i) ;; esac; done"
    )
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "sh", "-c", script], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    return {int(index): (gid, kind, netdev) for index, gid, netdev, kind in rows}


def gid(address: str) -> str:
    ip = ip_interface(address).ip
    return (ip if ip.version == 6 else IPv6Address(f"::ffff:{ip}")).exploded


def recorded(node: Node, pod: Pod) -> dict[tuple[str, str, int, str], int]:
    """The GIDs that ADD found: address, device, port and type -> index."""
    body = durable.read(node.record(pod))
    assert body
    return {(g["address"], g["device"], g["port"], g["type"]): g["index"] for g in body["gids"]}


def assert_found(node: Node, pod: Pod, device: str) -> None:
    """Assert that ADD recorded every address of the pod, v1 and v2, at its index in the table."""
    found, there = recorded(node, pod), table(device, pod.name)
    assert found.keys() == {(a.partition("/")[0], device, 1, kind) for a in pod.addresses() for kind in (V1, V2)}
    for (address, _, _, kind), index in found.items():
        assert there[index] == (gid(address), kind, "hpn0")


@contextmanager
def filled(device: str, master: str, free: int) -> Iterator[None]:
    """Fill the device's table with addresses on its master, except for ``free`` entries."""
    addresses = [f"10.99.0.{n}/32" for n in range(1, (LENGTH - len(table(device)) - free) // 2 + 1)]
    try:
        for address in addresses:
            ip("address", "add", address, "dev", master)
        until(lambda: len(table(device)) == LENGTH - free)
        yield
    finally:
        for address in addresses:
            ip("address", "del", address, "dev", master)
