"""Configuration files of hpn node as values: its own format and those of peers, with the keys of their READMEs."""

import json
from typing import Any

from node import config
from node.model import Resource, Settings

SHARED: dict[str, Any] = {
    "periodicUpdateInterval": 300,
    "configList": [
        {"resourceName": "hca_a", "resourcePrefix": "example.com", "rdmaHcaMax": 1000, "devices": ["ib0", "ib1"]},
        {
            "resourceName": "hca_b",
            "rdmaHcaMax": 500,
            "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["ib3"], "linkTypes": ["infiniband"]},
        },
    ],
}
SRIOV: dict[str, Any] = {
    "resourceList": [
        {"resourceName": "netdevice", "selectors": [{"vendors": ["8086"], "devices": ["154c"], "drivers": ["iavf"]}]},
        {
            "resourceName": "dpdk",
            "resourcePrefix": "example.com",
            "excludeTopology": True,
            "selectors": {"drivers": ["vfio-pci"], "pfNames": ["ens1f0#0,2-7"], "needVhostNet": True},
        },
        {"resourceName": "rdma", "selectors": [{"isRdma": True, "linkTypes": ["infiniband"], "pKeys": ["0x8001"]}]},
        {"resourceName": "vdpa", "selectors": {"vdpaType": "vhost", "rootDevices": ["0000:86:00.0#1-2"]}},
        {
            "resourceName": "sf",
            "deviceType": "auxNetDevice",
            "selectors": [{"pfNames": ["p0#1-5"], "auxTypes": ["sf"]}],
            "additionalInfo": {"*": {"token": "t"}},
        },
        {
            "resourceName": "fpga",
            "deviceType": "accelerator",
            "selectors": [{"vendors": ["8086"], "drivers": ["vfio-pci"]}],
        },
    ]
}
HCA: dict[str, Any] = {"mode": "hca"}
VHCA: dict[str, Any] = {"mode": "sriov", "pfNetdevices": ["ens1f0", "ens1f1"]}
OWN: dict[str, Any] = {
    "resources": [
        {"name": "example.com/vf", "kind": "vf", "selectors": {"pfNames": ["rail0#0-3"], "vendors": ["15b3"]}},
        {"name": "example.com/pf", "kind": "pf", "selectors": [{"ifNames": ["rail1"]}], "rdma": "management"},
        {"name": "example.com/sf", "kind": "sf", "selectors": {"rootDevices": ["0000:3b:00.0"]}, "cdi": True},
        {"name": "rdma/hca", "kind": "shared", "count": 20, "pooled": True, "topology": False},
        {"name": "example.com/macvlan", "kind": "master", "selectors": {"ifNames": ["bond0"], "kinds": ["netdev"]}},
        {"name": "example.com/fpga", "kind": "accelerator", "selectors": {"pciAddresses": ["0000:5e:00.0"]}},
    ],
    "health": {"downAfter": 5, "upAfter": 60},
}
ALL: list[dict[str, Any]] = [SHARED, SRIOV, HCA, VHCA, OWN]


def read(document: Any, *, is_yaml: bool = False, prefix: str = "", cdi: bool = False) -> Settings:
    """Return the settings of a file with this content: a string unchanged, anything else as JSON."""
    text = document if isinstance(document, str) else json.dumps(document)
    return config.settings(text.encode(), is_yaml=is_yaml, prefix=prefix, cdi=cdi)


def shared(**entry: Any) -> Any:
    """Return a file of k8s-rdma-shared-dev-plugin with one entry; None removes a key."""
    return {"configList": [_with({"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["x"]}}, entry)]}


def sriov(**entry: Any) -> Any:
    """Return a file of sriov-network-device-plugin with one entry."""
    return {"resourceList": [_with({"resourceName": "a", "selectors": {}}, entry)]}


def own(**entry: Any) -> Any:
    """Return a file of hpn node's own format with one entry."""
    return {"resources": [_with({"name": "example.com/a", "kind": "vf"}, entry)]}


def only(document: Any) -> Resource:
    """Return the file's one resource."""
    (resource,) = read(document).resources
    return resource


def _with(entry: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (entry | other).items() if value is not None}
