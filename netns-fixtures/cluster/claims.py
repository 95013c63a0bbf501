"""Objects for kubectl: classes of devices, claims from templates, and pods that name them."""

from collections.abc import Mapping
from typing import Any

from cluster import manifests

_API = "resource.k8s.io/v1"
_DRIVER = "hpn-cni.io"


def device_class(name: str, resource: str, **keys: Any) -> dict[str, Any]:
    """A class of the devices of a resource, with these keys of an Attachment."""
    selector = f'device.driver == "{_DRIVER}" && device.attributes["k8s.cni.cncf.io"].resourceName == "{resource}"'
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": selector}}]}
    if keys:
        spec["config"] = [{"opaque": parameters(**keys)}]
    return {"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def parameters(**keys: Any) -> dict[str, Any]:
    """This driver's opaque parameters."""
    return {"driver": _DRIVER, "parameters": {"apiVersion": f"{_DRIVER}/v1", "kind": "Attachment", **keys}}


def spec(of_class: str, *, count: int = 1, **keys: Any) -> dict[str, Any]:
    """A claim's spec with one request, and these keys of an Attachment."""
    exactly: dict[str, Any] = {"deviceClassName": of_class, "allocationMode": "ExactCount", "count": count}
    devices: dict[str, Any] = {"requests": [{"name": "rails", "exactly": exactly}]}
    if keys:
        devices["config"] = [{"opaque": parameters(**keys)}]
    return {"devices": devices}


def template(name: str, of: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": of}}


def claim(name: str, of: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": of}


def pod(name: str, *, node: str, networks: str = "", template: str = "", claim: str = "") -> dict[str, Any]:
    """A pod with one claim, "rails", which its container names."""
    made = manifests.pod(name, node=node, networks=networks)
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    made["spec"]["resourceClaims"] = [{"name": "rails", **source}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "rails"}]
    return made
