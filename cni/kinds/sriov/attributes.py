"""A VF's attributes, which its PF keeps, and its MAC, which PF and VF both have; and the plan with all of them."""

import errno
import os
from dataclasses import dataclass

from base.kernel import links, rtnl, sysfs, vf
from base.kernel.links import IFF_UP, IFLA_ADDRESS, Link, pack_mac
from base.kernel.netlink import attr
from base.kernel.rtnl import Rtnl
from base.kernel.vf import VfSettings
from base.protocol.errors import BUSY, KernelRefused, LinkUnavailable, doing
from base.protocol.spec import Json
from cni.kinds.device import Moved

_NO_MAC = "00:00:00:00:00:00"
# The configuration's keys that set an attribute, if they differ from its name.
_KEYS = {"vlan": "vlan, vlanQoS, vlanProto", "rate": "min_tx_rate, max_tx_rate"}


@dataclass(frozen=True)
class Port:
    """The state of an InfiniBand function on the host: driver, names of RDMA devices, and the netdev's mode."""

    driver: str
    rdma: tuple[str, ...]
    mode: str


@dataclass(frozen=True, kw_only=True)
class Plan(Moved):
    """One VF; or a PF, if ``pf`` is empty and ``number`` -1.

    ``number`` is the VF's index on its PF.  ``before`` and ``wanted`` are attributes on the PF (base/kernel/vf.py).
    ``mac`` is the MAC that the netdev itself gets.  ``port`` is what an InfiniBand function has besides.
    """

    number: int
    before: VfSettings
    wanted: Json
    mac: str
    port: Port | None = None

    @classmethod
    def from_json(cls, body: Json) -> "Plan":
        port = body["port"] and Port(**{**body["port"], "rdma": tuple(body["port"]["rdma"])})
        return super().from_json({**body, "port": port, "before": VfSettings.from_json(body["before"])})


def now(host: Rtnl, p: Plan) -> VfSettings:
    """Return the VF's present attributes on its PF.  Raises LinkUnavailable."""
    pf = netdev_of_pf(p.pf, host)
    try:
        return vf.parse(pf.vfs)[p.number]
    except KeyError as e:
        raise LinkUnavailable(f"{pf.name} reports no VF {p.number} ({p.device}); is it the VF's PF?") from e


def apply(host: Rtnl, p: Plan) -> None:
    """Set every attribute that the configuration asks for.  Raises KernelRefused with the key that the driver
    refuses."""
    for name, value in p.wanted.items():
        try:
            _set(host, p, name, value)
        except OSError as e:
            if e.errno in BUSY:
                raise
            asked = value if not isinstance(value, list) else ", ".join(map(str, value))
            raise KernelRefused(
                f"{_KEYS.get(name, name)} {asked}: the driver of {p.device}'s PF refuses it ({e.strerror}); "
                "correct or remove it"
            ) from e


def differing(host: Rtnl, p: Plan) -> str:
    """Return the first attribute that differs from ADD's value, in words; empty if there is none."""
    found: Json = vars(now(host, p)) if p.wanted else {}
    for name, value in p.wanted.items():
        if found[name] != (tuple(value) if isinstance(value, list) else value):
            return f"{name} {found[name]} on its PF, ADD set {value}"
    return ""


def restore(host: Rtnl, p: Plan) -> None:
    """Restore every attribute on the PF.  Raises OSError with the attribute that the driver refuses; LinkUnavailable if
    the PF is in another namespace and still has an attribute that we set.

    An attribute that the driver no longer has is skipped: in another mode of its switch (devlink) there are others.
    """
    try:
        found = now(host, p)
    except LinkUnavailable:
        if not p.wanted:
            return
        raise
    for name in p.before.differing(found):
        try:
            _set_or_own(host, p, name)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP:
                raise


def _set_or_own(host: Rtnl, p: Plan, name: str) -> None:
    """Restore one attribute.  Some drivers (cxgb4, qede, be2net, liquidio) refuse to remove a VF's MAC.  Then set the
    VF's own MAC, which no other VF has, so that the pod's MAC goes."""
    value = getattr(p.before, name)
    try:
        _set(host, p, name, value)
    except OSError as e:
        if (name, value) != ("mac", _NO_MAC) or e.errno not in (errno.EINVAL, errno.EADDRNOTAVAIL):
            raise
        # The MAC of a userspace driver's VF is unknown.
        _set(host, p, name, p.home.mac if p.home else f"02:{os.urandom(5).hex(':')}")


def set_mac(host: Rtnl, p: Plan, link: Link, mac: str) -> None:
    """Set the netdev's own MAC.  After a MAC from the PF some drivers (igb, i40e) allow it only to a trusted VF."""
    body = attr(IFLA_ADDRESS, pack_mac(mac))
    with doing(f"setting MAC {mac} of {link.name} ({p.device})"):
        try:
            rtnl.while_resetting(lambda: host.set_link(link.index, body, mask=IFF_UP))
        except OSError as e:
            if not p.pf or e.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
                raise
            trust = now(host, p).trust
            _set(host, p, "trust", value=True)
            try:
                rtnl.while_resetting(lambda: host.set_link(link.index, body, mask=IFF_UP))
            finally:
                _set(host, p, "trust", value=bool(trust))


def _set(host: Rtnl, p: Plan, name: str, value: object) -> None:
    value = tuple(value) if isinstance(value, list) else value
    with doing(f"setting {name} {value} of VF {p.number} ({p.device}) on its PF"):
        body = vf.set_attribute(p.number, name, value)
        rtnl.while_resetting(lambda: host.set_link(netdev_of_pf(p.pf, host).index, body))


def netdev_of_pf(address: str, host: Rtnl) -> Link:
    """Return the PF's netdev with its VFs' attributes.  Raises LinkUnavailable."""
    function = sysfs.function(address)
    name = sysfs.uplink(function) if function else ""
    link = host.link(name, filters=links.RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF) if name else None
    if link is None:
        raise LinkUnavailable(
            f"PF {address} has no network interface on the host; bind its driver, or move the interface back from "
            "its namespace"
        )
    return link
