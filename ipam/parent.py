"""The parent of an attachment on this node: the interface under the pod's.  Its subnets are ranges of the network.

The parent is the master, the PF of a VF, or the device itself.  If it has no subnet of the family, its bond's count.
"""

import os
from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv6Interface

from base.kernel import local, routes, rtnl, sysfs
from base.protocol import arguments
from base.protocol.errors import InvalidConfig
from base.protocol.result import Address, Network
from base.protocol.spec import Config
from ipam import rails
from ipam.config import Named
from ipam.models import Parent
from ipam.pool import Prefix
from ipam.ranges import default_gateway


def is_named(conf: Config) -> bool:
    """Whether the configuration determines the parent.  A runtime may name the device at ADD only."""
    return bool(_below(conf))


def find(conf: Config, named: Named) -> Mapping[Parent, Prefix]:
    """The parent's subnets on this node.  Raises InvalidConfig with the key if there is none; OSError."""
    if conf.get("linkInContainer"):
        key, place = next((key, place) for place, key in named.items())
        raise InvalidConfig(f"{key} {place} with linkInContainer, whose parent is the pod's; write a subnet")
    below = _below(conf)
    names = list(dict.fromkeys(filter(None, (one for name in below for one in (name, sysfs.master_of(name))))))
    return {place: _prefix(place, key, names) for place, key in named.items()}


def _below(conf: Config) -> list[str]:
    """The interfaces below the pod's: the device's own, then its PF's; or the master."""
    if name := rails.interface_of(conf):
        return [name]
    device = arguments.chosen_device(conf, "deviceID", "pciBusID")
    if isinstance(device, str) and device and not rails.defaults_to_a_master(conf):
        addresses = dict.fromkeys((device.lower(), sysfs.top(device.lower())))
        return [name for one in addresses if (found := sysfs.device(one)) and (name := sysfs.uplink(found))]
    if name := rtnl.real_name(rails.interface(conf.get("pf"))):
        return [name]
    is_child = conf.get("type") == "hpn" and not conf.keys() & {"kind", "hwaddr", "kernelpath"}
    return list(filter(None, [routes.default_route_link(None)])) if is_child or rails.defaults_to_a_master(conf) else []


def _prefix(place: Parent, key: str, names: list[str]) -> Prefix:
    """Raises InvalidConfig, OSError."""
    here = f"on node {os.uname().nodename}"
    if not names:
        raise InvalidConfig(
            f"{key} {place}: no parent of this attachment is an interface {here}; set master, pf, device or deviceID, "
            "or write a subnet"
        )
    with rtnl.open_in(strictly=True) as host:
        for name in names:
            link = host.link(name)
            has = local.addresses_on(host, link.index) if link else []
            if link and (found := _chosen(place, has)):
                own = tuple(one.ip for one in has if one.ip in found)
                hops = routes.next_hops(host, link.index)
                gateway = _gateway(found, own, hops)
                routers = {hop for hop in hops if hop in found and hop != gateway}
                return Prefix(name, found, own, gateway, tuple(sorted(routers, key=int)))
    raise InvalidConfig(
        f"{key} {place}: {' and '.join(names)} {here}, the parent, has no such subnet, neither link-local nor "
        f"deprecated nor of one address; give it one, or write a subnet, see: ip address show dev {names[0]}"
    )


def _chosen(place: Parent, has: list[IPv4Interface | IPv6Interface]) -> Network | None:
    """The lowest subnet of the family, so a global one of IPv6 comes before a unique local one (RFC 4193)."""
    fit = [one.network for one in has if one.version == place.version and one.network.prefixlen < one.max_prefixlen]
    return min(fit, key=lambda network: (int(network.network_address), network.prefixlen), default=None)


def _gateway(subnet: Network, own: tuple[Address, ...], hops: list[Address]) -> Address | None:
    """The parent's first next hop in the subnet, or of IPv6 a link-local one; else the default, unless the parent has
    that itself."""
    fit = (hop for hop in hops if hop in subnet or (subnet.version == 6 == hop.version and hop.is_link_local))
    default = default_gateway(subnet)
    return next(fit, None if default in own else default)
