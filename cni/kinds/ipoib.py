"""Kind ipoib: a child of an IPoIB interface, in a partition of its fabric
(drivers/infiniband/ulp/ipoib/ipoib_netlink.c).

Any number of children may be over one master, in one partition or several.  Two things differ from a macvlan.  The
kernel gives a child the largest MTU when it is registered (ipoib_ndo_init), so a smaller MTU is set afterwards.  And a
child does not end with its namespace: it moves to the host's (netns_refund), down, without addresses, and with the
index that we chose.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from base.kernel import budget, nsid, rtnl, sysctl, sysfs
from base.kernel.links import IFLA_MTU, Link
from base.kernel.netlink import attr, attributes, u32
from base.kernel.rtnl import Rtnl
from base.protocol.errors import InvalidConfig, LinkUnavailable, doing
from base.protocol.spec import Json
from base.state.pod import Pod
from cni.kinds import child
from cni.kinds.child import check, claiming, interfaces, stands
from cni.kinds.escaped import Search

if TYPE_CHECKING:
    from cni.models import NetConf
    from cni.models.ipoib import Ipoib

__all__ = ["attach", "check", "claiming", "describe", "detach", "interfaces", "plan", "stands", "status"]

IFLA_IPOIB_PKEY, IFLA_IPOIB_MODE, IFLA_IPOIB_UMCAST = 1, 2, 3
DATAGRAM: Final = 0
_KIND: Final = "ipoib"
_PARTITION: Final = 0x7FFF  # the bits of a key that name the partition; the other bit means full membership
# Seconds that the kernel may take to return the links of a dying namespace.
_HOME_TIMEOUT: Final = 3.0
_POLL: Final = 0.01


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:
    """Kind.plan: without a pkey, use the master's."""
    wanted = cast("Ipoib", conf.attach)  # kinds.KINDS: the kind chose this module
    parent = _parent(wanted, host)
    pkey = wanted.pkey or _pkey(parent.data)
    return child.plan_over(parent, conf, kind=_KIND, mac="", data=info_data(pkey, umcast=wanted.umcast), pod=pod)


def info_data(pkey: int, *, umcast: bool) -> bytes:
    """Return IFLA_INFO_DATA of a child in datagram mode."""
    values = {IFLA_IPOIB_PKEY: pkey, IFLA_IPOIB_MODE: DATAGRAM, IFLA_IPOIB_UMCAST: umcast}
    return b"".join(attr(of, struct.pack("=H", value)) for of, value in values.items())


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: check the master and its RDMA devices."""
    sysctl.refuse_hidden()
    wanted = cast("Ipoib", conf.attach)
    parent = _parent(wanted, host)
    child.shared_rdma(wanted, parent, sysfs.functions_under(parent.name))


def _parent(wanted: "Ipoib", host: Rtnl) -> Link:
    """Return the master, which is in the requested partition.  Raises LinkUnavailable, InvalidConfig."""
    parent = child.find_master(wanted, host, None, _refuse_unless_parent)
    there = sysfs.pkeys(parent.name)
    if wanted.pkey and there and wanted.pkey & _PARTITION not in {key & _PARTITION for key in there}:
        keys = ", ".join(f"{key:#06x}" for key in there)
        raise LinkUnavailable(
            f"pkey {wanted.pkey:#06x}: the port of master {parent.name!r} has only {keys}; choose one of these, or "
            "have the subnet manager add the port to the partition"
        )
    return parent


def _refuse_unless_parent(link: Link) -> None:
    """Raise LinkUnavailable unless the master is an IPoIB interface and no child.  The kernel requires only an
    InfiniBand link, and would treat a bond of them as an IPoIB interface (ipoib_new_child_link)."""
    if link.kind != _KIND:
        what = link.kind or "not InfiniBand"
        raise LinkUnavailable(
            f"master {link.name!r} is {what}, and kind ipoib needs an IPoIB interface; name one, see: "
            "ip -d link show type ipoib"
        )
    if link.parent:
        raise LinkUnavailable(
            f"master {link.name!r} is itself a child, and a child cannot have children; name the interface that it is "
            "over"
        )


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link:
    """Kind.attach: set the MTU after the kernel's.  Raises InvalidConfig, LinkUnavailable, OSError."""
    link, mtu = child.attach(plan, host, pod, ifname), plan["mtu"]
    if mtu > link.mtu:
        raise InvalidConfig(f"mtu {mtu} is above {link.mtu}, that of a datagram over {plan['master']!r}; lower it")
    if not mtu or mtu == link.mtu:
        return link
    with doing(f"setting {ifname} in {pod.path} to mtu {mtu}"):
        pod.rtnl.set_link(link.index, attr(IFLA_MTU, u32(mtu)))
    return replace(link, mtu=mtu)


def detach(plan: Json, pod: Pod | None, ifname: str, found: Callable[[], None]) -> Search | None:
    """Kind.detach: remove the child from the pod, or from the host.  No link that is stacked on a child outlives it."""
    wanted = child.Plan(**plan)
    if pod and child.remove(wanted, pod, ifname, found):
        return None
    with rtnl.open_in() as host:
        if _is_gone(host, wanted, found, 0 if pod else _HOME_TIMEOUT) or not wanted.index:
            return None
    if pod:
        return Search(wanted.parent, (_KIND,), index=wanted.index, by_index=True)
    # A process may hold the namespace, or the pod may have moved the child to another pod, which uses its addresses.
    missing = f"{ifname} over {wanted.master} has not come to the host since its namespace ended"
    return Search(0, missing=f"{missing}; if it comes, ip -d link show type ipoib lists it, and it may be removed")


def _is_gone(host: Rtnl, wanted: child.Plan, found: Callable[[], None], seconds: float) -> bool:
    """Remove the child from the host if it arrives there within that time.  Returns whether it is gone, by this removal
    or with its master.  Raises OSError."""
    for _ in budget.attempts(seconds, _POLL):
        link = host.link(index=wanted.at)
        if link and wanted.is_ours(link) and link.parent == wanted.parent:
            found()
            with doing(f"removing {link.name} from the host"):
                # Another process may have moved it since.
                if nsid.remove_links(host, [link.index]):
                    return True
        if host.link(index=wanted.parent) is None:
            return True
    return False


def describe(plan: Json, _interfaces: list[Json]) -> tuple[str, Json]:
    """Kind.describe."""
    pkey = f"{_pkey(bytes.fromhex(plan['data'])):#06x}"
    return f"over {plan['master']}, pkey {pkey}", {"master": plan["master"], "pkey": pkey}


def _pkey(data: bytes) -> int:
    """Return the partition key in a link's IFLA_INFO_DATA."""
    (pkey,) = struct.unpack("=H", attributes(data)[IFLA_IPOIB_PKEY])
    return int(pkey)
