"""The form of device information files (https://github.com/k8snetworkplumbingwg/device-info-spec, 1.1.0).

A device plugin writes one for each device that it gives to a pod, and Multus hands it on to the CNI plugin.  Both write
them here (node, cni/features/device_info.py), so the form is on the floor below both.
"""

import json
from collections.abc import Sequence

from base.protocol.spec import Json

_VERSION = "1.1.0"


def pci(address: str, pf: str, rdma_devs: Sequence[str]) -> Json:
    """The member "pci": a PCI address, that of its PF, and the names of its RDMA devices; what is empty is left out."""
    members = {"pci-address": address, "pf-pci-address": pf, "rdma-device": ",".join(rdma_devs)}
    return {name: value for name, value in members.items() if value}


def text(body: Json) -> str:
    """The file's content.  What the body has of type and version stays."""
    return json.dumps({"type": "pci", "version": _VERSION, **body}, indent=1) + "\n"
