"""What the host, or another pod, would lose with an interface that goes to a pod; changes nothing."""

from typing import Final

from cni.kernel import nsid, rtnl, sysfs
from cni.kernel.links import Link
from cni.kernel.netlink import answers_strictly
from cni.kernel.rtnl import Rtnl
from cni.kinds.escaped import PAIRS
from cni.protocol.errors import DeviceInUse, InvalidConfig, LinkUnavailable
from cni.state.owned import Use

_NAMED: Final = 4  # routes in a message


def refuse(link: Link, address: str, use: Use, host: Rtnl, *, said: str = "", other: str) -> None:
    """Raise CniError for an interface that is needed where it is.  ``address`` is its device's, empty for software.

    ``use`` has the owners of its VFs.  The message begins with ``said``, and ``other`` is the remedy where there is no
    better one.
    """
    name = link.name
    if link.enslaved:  # guard: enslaved
        over = host.link(index=link.enslaved)
        if over and over.kind == "openvswitch":  # which the kernel does not take it out of
            raise LinkUnavailable(f"{said}{name!r} is a port of Open vSwitch; run: ovs-vsctl del-port {name}")
        raise LinkUnavailable(f"{said}{name!r} is in a bridge, bond or VRF; run: ip link set {name} nomaster")
    if record := use.has_over(link.index):  # guard: a-master
        raise LinkUnavailable(f"{said}{name!r} is the master of {record.whose}; delete that first")
    for vf in sysfs.vfs(address) if address else ():
        if owner := use.devices.get(vf):  # guard: vf-owned
            raise DeviceInUse(f"{said}VF {vf} of {name!r} belongs to {owner.whose}; delete that first", vf)
        # Whoever has the PF says what its VFs may do.
        # guard below: vfs-needed
        refuse_function(sysfs.function(vf), use, host, said=f"{said}VF {vf} of {name!r}: ", other=other)
    _refuse_in_use(link, said, other)
    if uppers := _uppers(link, address, host):  # guard: carries
        raise InvalidConfig(f"{said}{name!r} carries {', '.join(uppers)} of the host; remove them first, or {other}")


def refuse_function(
    function: sysfs.Function | None, use: Use, host: Rtnl, *, said: str = "", other: str = "choose another VF"
) -> None:
    """The same of a VF, by its interface; it has none where a userspace driver has it."""
    for link in filter(None, map(host.link, function.netdevs if function else ())):
        refuse(link, function.address if function else "", use, host, said=said, other=other)


def _refuse_in_use(link: Link, said: str, other: str) -> None:
    """Raise InvalidConfig for what the host would lose: its addresses, and the routes by it."""
    # Not with the module: few interfaces that go to pods are up, and no route leaves by one that is down.
    from cni.kernel import in_use  # noqa: PLC0415

    name = link.name
    with rtnl.open_in() as asking:
        answers_strictly(asking.sock)
        lost = in_use.addresses(asking, link.index)
        routes = in_use.routes(asking, link.index) if link.up else []
    if any(route.is_default for route in routes):
        from cni.kernel import uplinks  # noqa: PLC0415

        if name in uplinks.of_default_routes():  # guard: default-route
            raise InvalidConfig(f"{said}the host's default route is by {name!r}; {other}")
    if lost:  # guard: addresses
        raise InvalidConfig(f"{said}{name!r} has {', '.join(lost)} on the host, which a move loses; remove them first")
    if shown := [f"{route.network}" for route in routes if not route.is_kernels]:  # guard: routes
        more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
        raise InvalidConfig(
            f"{said}the host has routes by {name!r}, which a move loses: {', '.join(shown[:_NAMED])}{more}; "
            f"remove them first, or {other}"
        )


def _uppers(link: Link, address: str, host: Rtnl) -> list[str]:
    """The host's interfaces over it."""
    if sysfs.is_vf(address):
        # A node has thousands of links, and /sys names those over this one.
        return sysfs.uppers(link.name)
    on_host = [upper for upper in nsid.links_over(host, link.index) if upper.parent_nsid is None]
    return [upper.name for upper in on_host if upper.kind not in PAIRS]
