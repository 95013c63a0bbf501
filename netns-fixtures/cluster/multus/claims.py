"""The devices that Kubernetes allocated to a pod by claims, as Multus reads them (multus-cni, pkg/draclient).

Only claims from templates and for extended resources count, because only these are in the pod's status.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from cluster.multus.api import ApiFailed, Server

Json = dict[str, Any]
_ID, _RESOURCE = "k8s.cni.cncf.io/deviceID", "k8s.cni.cncf.io/resourceName"
_API = "/apis/resource.k8s.io/v1"


def devices(server: Server, pod: Json) -> dict[str, list[str]]:
    """The device IDs by resource.  Raises ApiFailed."""
    found, slices = defaultdict[str, list[str]](list), list[Json]()
    for name in _claims(pod.get("status") or {}):
        claim = server.get(f"{_API}/namespaces/{pod['metadata']['namespace']}/resourceclaims/{name}")
        results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results")
        if not results:
            raise ApiFailed(f"claim {name} has no device allocation")
        slices = slices or server.get(f"{_API}/resourceslices")["items"]
        for result in results:
            if device := _device(slices, result):
                found[device[0]].append(device[1])
    return found


def _claims(status: Json) -> Iterator[str]:
    for one in status.get("resourceClaimStatuses") or ():
        if one.get("resourceClaimName"):
            yield one["resourceClaimName"]
    if extended := status.get("extendedResourceClaimStatus"):
        yield extended["resourceClaimName"]


def _device(slices: list[Json], result: Json) -> tuple[str, str] | None:
    """The resource and the ID of an allocated device; None without an ID.  Raises ApiFailed."""
    for one in slices:
        spec = one["spec"]
        if (spec["driver"], spec["pool"]["name"]) != (result["driver"], result["pool"]):
            continue
        for device in spec.get("devices") or ():
            if device["name"] == result["device"]:
                attributes = device.get("attributes") or {}
                chosen, resource = (attributes.get(key, {}).get("string", "") for key in (_ID, _RESOURCE))
                if chosen and not resource:
                    raise ApiFailed(f"device {device['name']} missing required attribute {_RESOURCE}")
                return (resource, chosen) if chosen else None
    raise ApiFailed(f"device {result['device']} not found in any matching resource slice")
