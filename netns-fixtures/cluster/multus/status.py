"""A network's entries in a pod's network-status.  Pure."""

import ipaddress
from typing import Any

Json = dict[str, Any]
ANNOTATION = "k8s.v1.cni.cncf.io/network-status"


def statuses(result: Json, name: str, device: Json | None, *, is_default: bool) -> list[Json]:
    """An entry for each interface of a result in the pod; also one for a result with a single interface."""
    interfaces, ips = result.get("interfaces") or [], result.get("ips") or []
    common = _without_empty({"gateway": _gateways(result), "device-info": device})
    dns = {"dns": result.get("dns") or {}}
    if len(interfaces) == 1:
        default = {"default": True} if is_default else {}
        pod = interfaces[0] if interfaces[0].get("sandbox") else {}
        return [{"name": name, **_interface(pod, ips), **default, **dns, **common}]
    inside = [n for n, interface in enumerate(interfaces) if interface.get("sandbox")]
    default = _default(inside, ips) if is_default else -1
    entries = []
    for n in inside:
        # An address that names no interface belongs to the last one.
        own = [ip for ip in ips if ip.get("interface", inside[-1]) == n]
        marked = {"default": True} if n == default else {}
        entries.append({"name": name, **_interface(interfaces[n], own), **marked, **dns, **common})
    return entries


def _interface(interface: Json, ips: list[Json]) -> Json:
    addresses = [ip["address"].partition("/")[0] for ip in ips]
    keys = {"interface": interface.get("name"), "mac": interface.get("mac"), "mtu": interface.get("mtu")}
    return _without_empty({**keys, "ips": addresses})


def _default(inside: list[int], ips: list[Json]) -> int:
    """The interface of the cluster's network: that of the first address with a gateway, else the first in the pod."""
    having = [ip["interface"] for ip in ips if ip.get("gateway") and ip.get("interface") is not None]
    return int(having[0]) if having else next(iter(inside), -1)


def _gateways(result: Json) -> list[str]:
    routes = [r for r in result.get("routes") or [] if int(ipaddress.ip_interface(r["dst"]).network.prefixlen) == 0]
    return [route["gw"] for route in routes if route.get("gw")]


def _without_empty(members: Json) -> Json:
    return {key: value for key, value in members.items() if value}
