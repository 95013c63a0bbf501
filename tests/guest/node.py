"""The guest as a node that attaches VFs; what ip and rdma say of them."""

import subprocess
from pathlib import Path
from typing import Any

from guest.machine import Guest
from topology import ip

PF = "rail0"
NAME, RDMA = "rail0v0", "hca0v0"
MAC = "02:00:00:00:00:77"


def pci(netdev: str) -> str:
    return Path(f"/sys/class/net/{netdev}/device").resolve().name


def vf(number: int = 0) -> dict[str, Any]:
    """What the PF says of a VF."""
    (link,) = ip("-d", "link", "show", "dev", PF)
    return next(v for v in link["vfinfo_list"] if v["vf"] == number)


def netdev(name: str = NAME) -> dict[str, Any]:
    (link,) = ip("-d", "link", "show", "dev", name)
    return {k: link.get(k) for k in ("ifname", "address", "mtu", "txqlen", "ifalias", "flags", "operstate", "altnames")}


def rdma_devs(netns: str = "") -> set[str]:
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "rdma", "dev"], capture_output=True, text=True, check=True)
    return {line.split(":")[1].strip() for line in done.stdout.splitlines()}


class Node(Guest):
    """Its configuration asks for the first VF of the first PF."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.device = pci(NAME)

    def conf(self, **keys: Any) -> dict[str, Any]:
        return super().conf(**{"master": ..., "deviceID": self.device} | keys)


def picture() -> tuple[Any, ...]:
    """All of the VF that a test must leave as it was: on the host, on its PF, its RDMA device; and the links there
    are."""
    return netdev(), vf(), rdma_devs(), {i["ifname"] for i in ip("link")}
