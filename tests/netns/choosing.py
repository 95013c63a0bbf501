"""Configurations that name a VF of the tree that tests draw (the fixture two_vfs), and which one an ADD chooses."""

from typing import Any

from support import pci
from support.topology import Host, Pod


def by_device(host: Host) -> dict[str, Any]:
    return host.conf(kind="sriov", master=..., deviceID=pci.VF)


def by_pf(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(kind="sriov", master=..., pf="rail0", **keys)


def chosen(host: Host, pod: Pod, **keys: Any) -> str:
    """The address of the VF that ADD decides for.  It goes no further: the veth that stands for the PF has none."""
    msg = str(host.refused("ADD", pod, by_pf(host, **keys))["msg"])
    assert msg.startswith("rail0 reports no VF "), msg
    return msg.removeprefix("rail0 reports no VF ")[: len(pci.VF)]
