"""The interface that others are made over: found, and what it shares with them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from cni.kernel import dump, sysfs
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.parts import gids, rdma
from cni.protocol.errors import InvalidConfig, LinkUnavailable
from cni.state import places

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.models.child import Child


def find(attach: "Child", where: Rtnl, ns_fd: int | None, fits: Callable[[Link], None] | None = None) -> Link:
    """The master, found, up, with room for the MTU, and one that ``fits``: an Ethernet interface, unless a kind says
    otherwise by an exception.  Raises LinkUnavailable, InvalidConfig."""
    place = "the pod (linkInContainer)" if attach.linkInContainer else "the host"
    name = attach.master or dump.default_route_link(ns_fd)
    if not name:
        raise LinkUnavailable(f"master is not set and {place} has no default route to take it from; set master")
    link = where.link(name)
    if link is None:
        raise LinkUnavailable(f"master {name!r} is not an interface of {place}; correct it, see: ip link")
    (fits or _refuse_unless_ethernet)(link)
    if not attach.linkInContainer and link.parent_nsid is not None:
        _refuse_a_pods(link, where)
    if not link.up:  # guard: up
        raise LinkUnavailable(f"master {name!r} is down; run: ip link set {name} up")
    if attach.mtu > link.mtu:  # guard: mtu
        raise InvalidConfig(f"mtu {attach.mtu} is above {link.mtu}, that of master {name!r}; lower it or raise that")
    return link


def _refuse_a_pods(link: Link, host: Rtnl) -> None:
    """Raise LinkUnavailable for the host's end of a pod's interface.  Over it one would answer as that pod's gateway,
    and with passthru have all of its packets."""
    # Masters are hardware as a rule, and those of virtual nodes have their other end where nobody is attached.
    from cni.kinds import wires  # noqa: PLC0415

    if wires.is_pair(link):  # guard: a-pods-wire
        wires.refuse(link, host, places.state_dirs(), said="master ")


def _refuse_unless_ethernet(master: Link) -> None:
    if master.infiniband:
        raise LinkUnavailable(
            f"master {master.name!r} is InfiniBand, over which Linux makes neither macvlan nor ipvlan; "
            "use kind ipoib, or kind sriov with its VFs"
        )
    if not master.ethernet:
        raise LinkUnavailable(
            f"master {master.name!r} is not Ethernet, and Linux makes macvlan and ipvlan over nothing else; "
            "name an Ethernet interface, see: ip -br link"
        )


def shared_rdma(attach: "Child", master: Link, functions: list[sysfs.Function]) -> list[str]:
    """The master's RDMA devices, with room for the pod's addresses if RDMA is required.  Raises LinkUnavailable,
    GidTableFull."""
    names = rdma.of_master(attach.rdma, master.name, functions)
    gids.refuse_full(attach.rdma, names, 1 if attach.ipam else 0)
    return names
