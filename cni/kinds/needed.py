"""What the host, or another pod, would lose with an interface that goes to a pod; changes nothing."""

from typing import TYPE_CHECKING

from cni.kernel import dump, nsid, sysfs
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.kinds.escaped import PAIRS
from cni.protocol.errors import DeviceInUse, InvalidConfig, LinkUnavailable
from cni.state import journal, owned

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.protocol.location import Location


def refuse(link: Link, address: str, where: "Location", host: Rtnl, *, said: str = "", other: str) -> None:
    """Raise CniError for an interface that is needed where it is.  ``address`` is its device's, empty for software.

    The message begins with ``said``, and ``other`` is the remedy where there is no better one.
    """
    # Not with the module: an ADD of a VF imports that.
    from cni.kernel import uplinks  # noqa: PLC0415

    name = link.name
    if link.enslaved:
        over = host.link(index=link.enslaved)
        if over and over.kind == "openvswitch":  # which the kernel does not take it out of
            raise LinkUnavailable(f"{said}{name!r} is a port of Open vSwitch; run: ovs-vsctl del-port {name}")
        raise LinkUnavailable(f"{said}{name!r} is in a bridge, bond or VRF; run: ip link set {name} nomaster")
    for record in journal.naming(where.state_dir, link.index, member="parent"):
        if record.of_this_boot and record.link.get("parent") == link.index and not record.link.get("in_container"):
            raise LinkUnavailable(f"{said}{name!r} is the master of {record.whose}; delete that first")
    vfs = sysfs.vfs(address) if address else ()
    owners = owned.devices(where.state_dir, vfs) if vfs else {}
    for vf in vfs:
        if owner := owners.get(vf):
            raise DeviceInUse(f"{said}VF {vf} of {name!r} belongs to {owner.whose}; delete that first", vf)
    if name in uplinks.of_default_routes():
        raise InvalidConfig(f"{said}the host's default route is by {name!r}; {other}")
    if lost := [str(a) for a in dump.addresses(None, link.index) if not a.is_link_local]:
        raise InvalidConfig(f"{said}{name!r} has {', '.join(lost)} on the host, which a move loses; remove them first")
    on_host = [upper for upper in nsid.links_over(host, link.index) if upper.parent_nsid is None]
    if uppers := [upper.name for upper in on_host if upper.kind not in PAIRS]:
        raise InvalidConfig(f"{said}{name!r} carries {', '.join(uppers)} of the host; remove them first, or {other}")
