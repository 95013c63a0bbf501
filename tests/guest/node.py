"""The guest as a node that attaches VFs, and their state as ip and rdma show it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guest.machine import Guest
from support.topology import Pod, ip

PF = "rail0"
NAME, RDMA = "rail0v0", "hca0v0"
MAC = "02:00:00:00:00:77"


def pci(netdev: str) -> str:
    return Path(f"/sys/class/net/{netdev}/device").resolve().name


def vf(number: int = 0) -> dict[str, Any]:
    """The PF's settings of a VF."""
    (link,) = ip("-d", "link", "show", "dev", PF)
    return next(v for v in link["vfinfo_list"] if v["vf"] == number)


def netdev(name: str = NAME) -> dict[str, Any]:
    (link,) = ip("-d", "link", "show", "dev", name)
    return _attributes(link)


def _attributes(link: dict[str, Any]) -> dict[str, Any]:
    return {k: link.get(k) for k in ("ifname", "address", "mtu", "txqlen", "ifalias", "flags", "operstate", "altnames")}


@contextmanager
def renamed(name: str, other: str) -> Iterator[None]:
    """Rename an interface of the host while the context lasts, as udev's new rules do."""

    def rename(old: str, new: str) -> None:
        ip("link", "set", old, "down")
        ip("link", "set", old, "name", new)
        ip("link", "set", new, "up")

    rename(name, other)
    try:
        yield
    finally:
        rename(other, name)


def rdma_devs(netns: str = "") -> set[str]:
    """The RDMA devices in that namespace; without a name the guest's own, from /sys, which starts no program."""
    if not netns:
        return set(os.listdir("/sys/class/infiniband"))
    where = ["ip", "netns", "exec", netns]
    done = subprocess.run([*where, "rdma", "dev"], capture_output=True, text=True, check=True)
    return {line.split(":")[1].strip() for line in done.stdout.splitlines()}


class Node(Guest):
    """A node with a configuration for the first VF of the first PF."""

    NAME, RDMA = NAME, RDMA

    def __post_init__(self) -> None:
        super().__post_init__()
        self.device = pci(self.NAME)

    def conf(self, **keys: Any) -> dict[str, Any]:
        return super().conf(**{"master": ..., "deviceID": self.device} | keys)

    def is_home(self) -> bool:
        """Whether the VF has a netdev on the host."""
        return any(Path(f"/sys/bus/pci/devices/{self.device}/net").glob("*"))

    def detaches(self, pod: Pod, result: dict[str, Any]) -> None:
        """Assert that the pod has addresses and the VF's RDMA device, that CHECK passes, and that DEL removes
        everything."""
        assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
        assert rdma_devs(pod.name) == {self.RDMA}
        assert self.RDMA not in rdma_devs()
        assert self.checked(pod, self.conf(), result).exit_code == 0
        self.ok("DEL", pod)
        assert pod.links() == set()
        assert self.state_files() == set()

    def serves(self, pod: Pod) -> None:
        """Assert that the VF can be attached and works."""
        result = self.ok("ADD", pod, CNI_IFNAME="again0")
        link = pod.link("again0")
        assert link
        assert link["parentdev"] == self.device
        assert rdma_devs(pod.name) == {self.RDMA}
        assert self.checked(pod, self.conf(), result, CNI_IFNAME="again0").exit_code == 0
        self.ok("DEL", pod, CNI_IFNAME="again0")


def macvlan(node: Node, **keys: Any) -> dict[str, Any]:
    """A configuration of a macvlan, or of the named kind, over the PF."""
    return node.conf(**{"deviceID": ..., "master": PF} | keys)


def picture() -> tuple[Any, ...]:
    """The VF's state that a test must restore: on the host, on its PF, its RDMA device; and the host's links."""
    # One dump for all: each program start takes the guest 40 ms.
    links = {link["ifname"]: link for link in ip("-d", "link")}
    first = next(v for v in links[PF]["vfinfo_list"] if v["vf"] == 0)
    return _attributes(links[NAME]), first, rdma_devs(), set(links)
