"""RDMA devices with their character devices, by the device that they are of, as /sys/class has them.

/sys/class/infiniband lists only what is in the host's namespace.  infiniband_verbs and infiniband_mad know no
namespaces, so a device that a pod has is there too, under the name that it has in the pod.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

from cni.kernel import sysfs
from node.model import RdmaDevice

_VIRTUAL = "virtual"  # where the kernel puts what is of no device


def by_device(root: str) -> Mapping[str, tuple[RdmaDevice, ...]]:
    """The RDMA devices of each device, by its name on its bus ("0000:3b:00.2", "mlx5_core.sf.4", "virtio0").

    A soft-RoCE device is of no device, so it is under its interface's name.  Without the module ib_uverbs no device has
    nodes, and those that pods have are not to be seen.
    """
    here = f"{root}/class/infiniband"
    # By parent and name: some kernels let devices in different namespaces have one name.
    devices = {(_parent(f"{here}/{name}"), name): "" for name in sysfs.names(here)}
    devices |= {(parent, name): node for parent, name, node in _nodes(f"{root}/class/infiniband_verbs", "uverbs")}
    mads = defaultdict[tuple[str, str], list[str]](list)
    for parent, name, node in _nodes(f"{root}/class/infiniband_mad", ""):
        mads[parent, name].append(node)
    found = defaultdict[str, list[RdmaDevice]](list)
    for parent, name in sorted(devices):
        nodes = mads[parent, name]
        umad, issm = (tuple(n for n in nodes if n.rpartition("/")[2].startswith(kind)) for kind in ("umad", "issm"))
        owner = sysfs.line(f"{here}/{name}/parent") if parent == _VIRTUAL else parent
        found[owner].append(RdmaDevice(name, devices[parent, name], umad, issm))
    return {owner: tuple(theirs) for owner, theirs in found.items()}


def _nodes(folder: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Of each character device of a class: the device it is of, its RDMA device's name, and its path."""
    for name in sorted(sysfs.names(folder), key=_natural):
        if name.startswith(prefix) and (device := sysfs.line(f"{folder}/{name}/ibdev")):
            yield _parent(f"{folder}/{name}"), device, f"/dev/infiniband/{name}"


def _parent(path: str) -> str:
    """The link leads to .../0000:3b:00.2/infiniband_verbs/uverbs0."""
    try:
        return os.readlink(path).split("/")[-3]
    except (OSError, IndexError):
        return ""


def _natural(name: str) -> tuple[str, int]:
    """umad10 comes after umad2."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)
