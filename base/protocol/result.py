"""ADD's result, and its shape in each version of the specification.  Pure; standard library only.

| version       | ips[].version | 1.1.0's own keys of interfaces[] and routes[] | empty dns |
|---------------|---------------|-----------------------------------------------|-----------|
| 0.3.0 - 0.4.0 | "4" or "6"    | dropped                                       | {}        |
| 1.0.0         | none          | dropped                                       | left out  |
| 1.1.0         | none          | kept                                          | left out  |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_network
from typing import Any, TypeVar

from base.protocol import written
from base.protocol.spec import Json

T = TypeVar("T")
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_INTERFACE_1_1 = {"mtu": "mtu", "socketPath": "socket_path", "pciID": "pci_id"}
_ROUTE_1_1 = ("mtu", "advmss", "priority", "table", "scope")


@dataclass(frozen=True)
class Interface:
    """A link that ADD made or moved.

    - ``sandbox``: CNI_NETNS as given; empty on the host.
    - ``mtu``: bytes; 0 if unknown.
    - ``socket_path``, ``pci_id``: socketPath and pciID, empty for none.
    """

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True)
class Ip:
    """An address with its prefix length.  ``interface`` is an index into the result's interfaces."""

    address: IPv4Interface | IPv6Interface
    gateway: Address | None = None
    interface: int | None = None


@dataclass(frozen=True)
class Route:
    """A route.  None is the kernel's default (man 8 ip-route); ``mtu`` and ``advmss`` are bytes."""

    dst: Network
    gw: Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True)
class Result:
    """SPEC 1.1.0, "ADD Success".  An IPAM plugin's result has no interfaces."""

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[Ip, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Json = field(default_factory=dict)

    def to_json(self, version: str) -> Json:
        """The document's fields in the shape of ``version``, without cniVersion."""
        newest = version >= "1.1.0"
        out: Json = {}
        if self.interfaces:
            out["interfaces"] = [_interface_json(i, newest=newest) for i in self.interfaces]
        if self.ips:
            out["ips"] = [_ip_json(ip, with_version=version < "1.0.0") for ip in self.ips]
        if self.routes:
            out["routes"] = [_route_json(r, newest=newest) for r in self.routes]
        if self.dns or version < "1.0.0":
            out["dns"] = self.dns
        return out

    @classmethod
    def from_json(cls, document: Any) -> "Result":
        """A result in any supported shape.  Raises ValueError, which names the wrong member."""
        if not isinstance(document, Mapping):
            raise ValueError(f"result {document!r} is not an object")
        result = cls(
            tuple(_interface(_member(i, "interfaces")) for i in _list(document, "interfaces")),
            tuple(_ip(_member(i, "ips")) for i in _list(document, "ips")),
            tuple(_route(_member(r, "routes")) for r in _list(document, "routes")),
            dict(_member(document.get("dns") or {}, "dns")),
        )
        there = len(result.interfaces)
        for ip in result.ips:
            if ip.interface is not None and not 0 <= ip.interface < there:
                raise ValueError(f"ips[].interface {ip.interface} is not an index into {there} interfaces")
        return result

    def after(self, previous: "Result") -> "Result":
        """The result of a chain: the earlier plugin's items, then ours, with our indexes into interfaces shifted."""
        offset = len(previous.interfaces)
        ours = tuple(ip if ip.interface is None else replace(ip, interface=ip.interface + offset) for ip in self.ips)
        return Result(
            previous.interfaces + self.interfaces,
            previous.ips + ours,
            previous.routes + self.routes,
            self.dns or previous.dns,
        )


@dataclass(frozen=True)
class Unchanged(Result):
    """The previous plugin's result, passed on as it came, with members that are not the specification's."""

    document: Json = field(default_factory=dict)

    def to_json(self, _version: str) -> Json:
        """The document: the runtime has converted it to the configuration's version (SPEC 1.1.0, section 3)."""
        return {key: value for key, value in self.document.items() if key != "cniVersion"}


def _interface_json(i: Interface, *, newest: bool) -> Json:
    keys = {"mac": "mac", "sandbox": "sandbox", **(_INTERFACE_1_1 if newest else {})}
    return {"name": i.name, **{k: v for k, attribute in keys.items() if (v := getattr(i, attribute))}}


def _ip_json(ip: Ip, *, with_version: bool) -> Json:
    out: Json = {"version": str(ip.address.version)} if with_version else {}
    if ip.interface is not None:
        out["interface"] = ip.interface
    out["address"] = str(ip.address)
    if ip.gateway is not None:
        out["gateway"] = str(ip.gateway)
    return out


def _route_json(route: Route, *, newest: bool) -> Json:
    out: Json = {"dst": str(route.dst)}
    if route.gw is not None:
        out["gw"] = str(route.gw)
    if newest:
        out |= {k: v for k in _ROUTE_1_1 if (v := getattr(route, k)) is not None}
    return out


def _interface(i: Mapping[str, Any]) -> Interface:
    name, mac, sandbox, path, pci = (str(i.get(k) or "") for k in ("name", "mac", "sandbox", "socketPath", "pciID"))
    return Interface(name, mac, sandbox, _number(i, "interfaces", "mtu") or 0, path, pci)


def _ip(ip: Mapping[str, Any]) -> Ip:
    return Ip(
        _parsed(ip, "ips", "address", written.cidr),
        _parsed(ip, "ips", "gateway", written.address) if ip.get("gateway") else None,
        _number(ip, "ips", "interface"),
    )


def _route(r: Mapping[str, Any]) -> Route:
    return Route(
        # As in the kernel, which clears an IPv6 route's host bits (ip6_route_info_create), and refuses an IPv4 route
        # with any.
        _parsed(r, "routes", "dst", lambda text: ip_network(f"{written.cidr(text)}", strict=":" not in text)),
        _parsed(r, "routes", "gw", written.address) if r.get("gw") else None,
        **{k: _number(r, "routes", k) for k in _ROUTE_1_1},
    )


def _parsed(member: Mapping[str, Any], of: str, key: str, parse: Callable[[str], T]) -> T:
    value = member.get(key)
    if not isinstance(value, str):  # ipaddress accepts a number as an address
        raise ValueError(f"{of}[].{key} {value!r} is not an address")
    try:
        return parse(value)
    except ValueError as e:
        raise ValueError(f"{of}[].{key}: {e}") from e


def _number(member: Mapping[str, Any], of: str, key: str) -> int | None:
    value = member.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32):
        return value
    raise ValueError(f"{of}[].{key} {value!r} is not a number from 0 to 4294967295")


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key} {value!r} is not a list")
    return value


def _member(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: {value!r} is not an object")
    return value
