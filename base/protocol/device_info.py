"""The format of device information files (https://github.com/k8snetworkplumbingwg/device-info-spec, 1.1.0).

A device plugin writes one for each device of a pod, and Multus passes it to the CNI plugin.  The device plugin (node)
and the CNI plugin (cni/features/device_info.py) both write them, so the format is on the floor below both.
"""

import json
from collections.abc import Sequence

from base.protocol.spec import Json

_VERSION = "1.1.0"


def pci(address: str, pf: str, rdma_devs: Sequence[str]) -> Json:
    """The member "pci": a PCI address, its PF's address, and the names of its RDMA devices; empty members are
    omitted."""
    members = {"pci-address": address, "pf-pci-address": pf, "rdma-device": ",".join(rdma_devs)}
    return {name: value for name, value in members.items() if value}


def text(body: Json) -> str:
    """The file's content.  The type and version of ``body`` take precedence."""
    return json.dumps({"type": "pci", "version": _VERSION, **body}, indent=1) + "\n"
