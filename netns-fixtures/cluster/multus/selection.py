"""A pod's annotation -> the networks that it asks for.  Pure."""

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

ANNOTATION = "k8s.v1.cni.cncf.io/networks"
# This one replaces the cluster's network for the pod.
DEFAULT_ANNOTATION = "v1.multus-cni.io/default-network"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# Bytes of six or eight: a MAC, or an InfiniBand GUID.
_ADDRESS = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}((:[0-9a-fA-F]{2}){2})?")


class BadSelection(Exception):
    """The annotation is invalid."""


@dataclass(frozen=True)
class Selection:
    """One network, and the pod's requests for it.  ``default_route`` is None if the pod does not mention it."""

    name: str
    namespace: str
    interface: str = ""
    ips: tuple[str, ...] = ()
    mac: str = ""
    guid: str = ""
    device: str = ""
    port_mappings: tuple[dict[str, Any], ...] = ()
    bandwidth: dict[str, Any] | None = None
    cni_args: dict[str, Any] | None = None
    default_route: tuple[str, ...] | None = None


def selections(annotation: str, namespace: str) -> list[Selection]:
    """All networks of an annotation.  ``namespace`` is the default for a network without one.

    Raises BadSelection.
    """
    try:
        if set(annotation) & set('[{"'):
            found = [_element(element, namespace) for element in json.loads(annotation)]
        else:
            found = [_short(item.strip(), namespace) for item in annotation.split(",")]
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise BadSelection(f"cannot read the annotation {annotation!r}: {e!r}") from e
    if sum(1 for s in found for gateway in s.default_route or () if ":" not in gateway) > 1:
        raise BadSelection("two IPv4 gateways are asked for by default-route; there can be one")
    if sum(1 for s in found for gateway in s.default_route or () if ":" in gateway) > 1:
        raise BadSelection("two IPv6 gateways are asked for by default-route; there can be one")
    return found


def _short(item: str, namespace: str) -> Selection:
    """``[namespace/]name[@interface]``."""
    before, slash, rest = item.rpartition("/")
    name, _, interface = (part.strip() for part in rest.partition("@"))
    for label in (*([before] if slash else []), name):
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{label!r} is no name")
    if len(interface) > 15 or re.search(r"[\s/@]", interface):
        raise ValueError(f"{interface!r} is no name of an interface")
    return Selection(name, before or namespace, interface)


def _element(element: dict[str, Any], namespace: str) -> Selection:
    """An object of the annotation's JSON form."""
    routes = element.get("default-route")
    selection = Selection(
        name=element["name"],
        namespace=element.get("namespace") or namespace,
        interface=element.get("interface") or "",
        ips=tuple(element.get("ips") or ()),
        mac=element.get("mac") or "",
        guid=element.get("infiniband-guid") or "",
        device=element.get("deviceID") or "",
        port_mappings=tuple(element.get("portMappings") or ()),
        bandwidth=element.get("bandwidth"),
        cni_args=element.get("cni-args"),
        default_route=None if routes is None else tuple(routes),
    )
    for address in (*selection.ips, *(selection.default_route or ())):
        ipaddress.ip_interface(address)
    for address in (selection.mac, selection.guid):
        if address and not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is no address of a link")
    return selection
