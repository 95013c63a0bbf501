"""A link made over a master, in the pod: the common part of macvlan, ipvlan and ipoib."""

import errno
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from base.kernel import links, routes, rtnl, sysctl, sysfs
from base.kernel.links import RTM_NEWLINK, Link
from base.kernel.netlink import NLM_F_CREATE, NLM_F_EXCL, attributes
from base.kernel.rtnl import Rtnl
from base.protocol import location
from base.protocol.errors import CheckFailed, InvalidConfig, LinkUnavailable, doing
from base.protocol.result import Interface
from base.protocol.spec import Json
from base.state import journal, owned
from base.state.journal import Entry
from base.state.locks import Mode
from base.state.pod import Pod
from cni.features import gids, rdma
from cni.kinds import escaped
from cni.kinds.escaped import Search

if TYPE_CHECKING:
    from cni.models import NetConf
    from cni.models.child import Child

IFLA_IPVLAN_MODE: Final = 1
_OTHER: Final = {"on": "off", "off": "on"}
_INDEXES: Final = 1 << 30
# By kind, the links that the kernel attaches to the master even if they are made over a child of it
# (macvlan_common_newlink, ipvlan_link_new).  Other links end with the child.
_FAMILIES: Final = {"macvlan": ("macvlan", "macvtap"), "ipvlan": ("ipvlan", "ipvtap")}


@dataclass(frozen=True)
class Plan:
    """The plan of one link.  With an empty ``mac`` or an ``mtu`` of 0 the link gets the master's.

    ``data`` is IFLA_INFO_DATA in hexadecimal.  ``rdma_devs`` are the master's RDMA devices that the pod shares.
    ``pci`` is the address of the master's PCI function, empty if it has none or several.  ``others`` are the indexes of
    foreign links in the pod over the same master.  ``born_as`` is the index that we choose for the link, and ``index``
    the same once the link exists.
    """

    kind: str
    master: str
    parent: int
    mac: str
    mtu: int
    data: str
    in_container: bool
    rdma_devs: list[str]
    pci: str
    others: tuple[int, ...] = ()
    born_as: int = 0
    index: int = 0

    @property
    def at(self) -> int:
        """The link's index, which finds it even if the pod changed name and MAC.  It is 0 in a record of a version that
        let the kernel choose the index, and was killed before it read the index."""
        return self.index or self.born_as

    @property
    def stacked(self) -> Search:
        """The search for what the pod stacked on the link, once that is gone."""
        return Search(self.parent, _family(self.kind), tuple(self.others))

    def is_ours(self, link: Link) -> bool:
        """Whether the link has our index or, without an index, our MAC.  So a crash between the writes to journal and
        kernel never makes us take a foreign link of the same name."""
        if link.kind != self.kind:
            return False
        return link.index == self.at if self.at else not self.mac or link.mac == self.mac


@contextmanager
def claiming(conf: "NetConf") -> Iterator["NetConf"]:
    """Kind.claiming: attachments share a master, and no pod or claim takes its devices meanwhile.  The default route's
    master is the one that is claimed, even if the route changes."""
    attach = cast("Child", conf.attach)
    master = "" if attach.linkInContainer else _name_of_master(attach, None)
    if master and not attach.master:
        conf = replace(conf, attach=attach.model_copy(update={"master": master}))
    name = rtnl.real_name(master)
    with ExitStack() as locks:
        for top in sorted({sysfs.top(one) for one in sysfs.devices_under(name)}) if name else ():
            locks.enter_context(owned.lock(top, mode=Mode.SHARED))
        yield conf


def plan(conf: "NetConf", *, kind: str, mac: str, data: bytes, host: Rtnl, pod: Pod) -> Json:
    """Return the plan for a link over an Ethernet interface.  Raises LinkUnavailable, InvalidConfig."""
    attach = cast("Child", conf.attach)
    inside = attach.linkInContainer
    link = find_master(attach, pod.rtnl if inside else host, pod.fd if inside else None)
    return plan_over(link, conf, kind=kind, mac=mac, data=data, pod=pod)


def plan_over(link: Link, conf: "NetConf", *, kind: str, mac: str, data: bytes, pod: Pod) -> Json:
    """Return the plan for a link over this master.  Raises LinkUnavailable, DeviceInUse, GidTableFull, OSError."""
    sysctl.refuse_hidden()
    attach = cast("Child", conf.attach)
    inside = attach.linkInContainer
    devices = [] if inside else sysfs.devices_under(link.name)
    functions = [function for one in devices if (function := sysfs.function(one))]
    if not inside:
        asked = sysfs.relatives_of_netdev(link.name, devices)
        # Only a part of a device can be on the host while an attachment has the device.
        searched = conf.where.state_dir if asked.above else None
        owned.refuse_held(owned.use(searched, asked.all, conf.claim), asked, prefix="master: ", is_alone=False)
    return vars(
        Plan(
            kind=kind,
            master=link.name,
            parent=link.index,
            mac=mac,
            mtu=attach.mtu,
            data=data.hex(),
            in_container=inside,
            rdma_devs=[] if inside else shared_rdma(attach, link, functions),
            pci=functions[0].address if len(functions) == 1 else "",
            others=() if inside else _others(link.index, kind, pod, conf.where.state_dir),
            born_as=unlikely_index(),
        )
    )


def unlikely_index() -> int:
    """Return a random ifindex that a pod cannot guess.  The kernel counts from 1, and refuses a used one (EBUSY)."""
    return _INDEXES + int.from_bytes(os.urandom(4)) % _INDEXES


def _others(parent: int, kind: str, pod: Pod, state_dir: Path) -> tuple[int, ...]:
    """Return the indexes of foreign links in the pod over the same master, which we must not remove."""
    found = {link.index for link in pod.before[1] if link.parent == parent and link.kind in _family(kind)}
    if not found:
        return ()
    ours = (
        r.link.get("index") or r.link.get("born_as", 0)
        for r in journal.naming(state_dir, pod.identity.inode, member="inode")
        if r.of_this_boot and r.identity == pod.identity
    )
    return tuple(sorted(found.difference(ours)))


def _family(kind: str) -> tuple[str, ...]:
    return _FAMILIES.get(kind, (kind,))


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: check the master, unless it is inside the container, which does not exist yet."""
    sysctl.refuse_hidden()
    wanted = cast("Child", conf.attach)
    if not wanted.linkInContainer:
        link = find_master(wanted, host, None)
        shared_rdma(wanted, link, sysfs.functions_under(link.name))


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link:
    """Kind.attach: make the link in the pod with its final name, MAC and MTU, by one RTM_NEWLINK.  Raises
    LinkUnavailable, OSError."""
    wanted = Plan(**plan)
    maker = pod.rtnl if wanted.in_container else host

    def make(name: str) -> None:
        body = links.new_link(
            kind=wanted.kind,
            data=bytes.fromhex(wanted.data),
            parent=wanted.parent,
            name=name,
            index=wanted.born_as,
            mac=wanted.mac,
            mtu=wanted.mtu,
            ns_fd=None if wanted.in_container else pod.fd,
        )
        maker.change(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)

    with doing(f"making {wanted.kind} {ifname} over {wanted.master} in {pod.path}"):
        try:
            make(ifname)
        except OSError as e:
            if e.errno == errno.EBUSY:
                raise LinkUnavailable(
                    f"master {wanted.master!r} is in a bridge or bond, or carries interfaces of another kind than "
                    f"{wanted.kind}, and the kernel allows only one of these; see: ip -d link, and use another master"
                ) from e
            if e.errno != errno.EEXIST or wanted.in_container:
                raise
            # Before Linux 6.15 the kernel searches the name among the host's links (rtnl_newlink), although the link is
            # made in the pod.  So make it under an unused name, and rename it in the pod.
            make(_other_name(wanted))
            if born := find(wanted, pod, _other_name(wanted)):
                pod.rtnl.rename(born.index, ifname)
        link = find(wanted, pod, ifname)
    if link is None or link.name != ifname:
        what = (
            f"called {link.name} now; something else renames interfaces" if link else "gone again; something removes it"
        )
        raise LinkUnavailable(f"{ifname} was made in {pod.path} and is {what}")
    return link


def interfaces(_plan: Json, link: Link, _host: Rtnl, pod: Pod, _ifname: str) -> tuple[Interface, ...]:
    """Kind.interfaces."""
    return (Interface(link.name, link.mac, sandbox=pod.path, mtu=link.mtu),)


def stands(plan: Json, pod: Pod, ifname: str) -> bool:
    """Kind.stands."""
    return find(Plan(**plan), pod, ifname) is not None


def find(wanted: Plan, pod: Pod, ifname: str) -> Link | None:
    """Return our link, whatever its name is now, and never a foreign link of the same name."""
    if wanted.at:
        link = pod.rtnl.link(index=wanted.at)
        return link if link and wanted.is_ours(link) else None
    for name in (ifname, _other_name(wanted)):
        link = pod.rtnl.link(name)
        if link and wanted.is_ours(link):
            return link
    return None


def detach(plan: Json, pod: Pod | None, ifname: str, found: Callable[[], None]) -> Search | None:
    """Kind.detach: remove the link.  The kernel removes it with the namespace."""
    wanted = Plan(**plan)
    is_removed = pod is not None and remove(wanted, pod, ifname, found)
    if wanted.in_container:
        return None  # the pod has the master, and with it all links over the master
    if not wanted.index:
        return None  # ADD failed before the pod could use the link, and foreign links may have appeared since
    if not (pod and is_removed):
        return replace(wanted.stacked, index=wanted.index, mac=wanted.mac)
    return wanted.stacked if any(escaped.may_have_escaped(pod.rtnl, [wanted.stacked], knows=1)) else None


def remove_together(planned: Mapping[Entry, Json], pod: Pod) -> set[Entry]:
    """Remove the links of several attachments of a pod by one message.

    Return those whose link is gone without a rest: the pod has neither hidden it nor stacked anything on it.  Raises
    OSError.
    """
    there, gone = dict[int, tuple[Entry, Search]](), set[int]()
    for entry, plan in planned.items():
        wanted = Plan(**plan)
        ours = not wanted.in_container and wanted.index and wanted.mac
        if ours and links.name_of(pod.rtnl.sock, wanted.index, wanted.mac):
            entry.note_found()
            there[wanted.index] = entry, wanted.stacked
    try:
        gone = rtnl.delete_links(pod.rtnl, [*there]) if there else gone
    except OSError as e:
        if e.errno != errno.ENODEV:
            raise  # the kernel may remove them later
    for index in there.keys() - gone:  # the pod has moved it away meanwhile
        there[index][0].note_found(is_there=False)
    removed = [there[index] for index in gone]
    left = escaped.may_have_escaped(pod.rtnl, [search for _, search in removed], knows=1)
    return {entry for (entry, _), is_left in zip(removed, left, strict=True) if not is_left}


def remove(wanted: Plan, pod: Pod, ifname: str, found: Callable[[], None]) -> bool:
    """Remove what ``attach`` made; return whether this removed it.  Raises OSError."""
    index, name = wanted.at, ""
    if wanted.at and wanted.mac:
        name = links.name_of(pod.rtnl.sock, wanted.at, wanted.mac)  # cheaper than ``find``
    if not name:
        link = find(wanted, pod, ifname)
        if link is None:
            return False
        index, name = link.index, link.name
    found()
    with doing(f"removing {name} from {pod.path}"):
        try:
            rtnl.delete_link(pod.rtnl, index)
        except OSError as e:
            if e.errno != errno.ENODEV:
                raise
            return False
    return True


def check(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link:
    """Kind.check: the master may lack a carrier, because ADD does not require one."""
    wanted = Plan(**plan)
    # First: the kernel removes an interface with its master.
    over = (pod.rtnl if wanted.in_container else host).link(index=wanted.parent)
    if over is None or over.name != wanted.master:
        raise CheckFailed(f"master {wanted.master!r} of {ifname} is gone or is another interface now")
    link = find(wanted, pod, ifname)
    if link is None or (link.name != ifname and not pod.has_as_port(link)):
        raise CheckFailed(f"{ifname} in {pod.path} is not the {wanted.kind} that ADD made")
    if not over.up:
        raise CheckFailed(f"master {wanted.master!r} of {ifname} is down; run: ip link set {wanted.master} up")
    asked = attributes(bytes.fromhex(wanted.data))
    if asked.items() - attributes(link.data).items():
        raise CheckFailed(f"{ifname} is not in the {wanted.kind} mode that ADD set")
    # The kernel enables no ARP on an ipvlan in mode l3 or l3s (ipvlan_set_port_mode).
    has_arp = wanted.kind != "ipvlan" or not any(asked.get(IFLA_IPVLAN_MODE, b""))
    if link.up and link.arp != has_arp:
        state = "on" if link.arp else "off"
        raise CheckFailed(f"{ifname} has ARP {state}; run in the pod: ip link set {ifname} arp {_OTHER[state]}")
    return link


def describe(plan: Json, _interfaces: list[Json]) -> tuple[str, Json]:
    """Kind.describe."""
    return f"over {plan['master']}", {"master": plan["master"]}


def _other_name(plan: Plan) -> str:
    """Return the link's name until it is renamed; always the same for a plan, so DEL finds the link."""
    return f"hpn{zlib.crc32(repr((plan.parent, plan.mac)).encode()):08x}"


def find_master(attach: "Child", where: Rtnl, ns_fd: int | None, fits: Callable[[Link], None] | None = None) -> Link:
    """Return the master, which is up and has the MTU.  ``fits`` raises for an unsuitable master; by default that is any
    but an Ethernet interface.  Raises LinkUnavailable, InvalidConfig."""
    place = "the pod (linkInContainer)" if attach.linkInContainer else "the host"
    name = _name_of_master(attach, ns_fd)
    if not name:
        raise LinkUnavailable(f"master is not set and {place} has no default route to take it from; set master")
    link = where.link(name)
    if link is None:
        raise LinkUnavailable(f"master {name!r} is not an interface of {place}; correct it, see: ip link")
    (fits or _refuse_unless_ethernet)(link)
    if not attach.linkInContainer and link.parent_nsid is not None:
        _refuse_a_pods(link, where)
    if not link.up:
        raise LinkUnavailable(f"master {name!r} is down; run: ip link set {name} up")
    if attach.mtu > link.mtu:
        raise InvalidConfig(f"mtu {attach.mtu} is above {link.mtu}, that of master {name!r}; lower it or raise that")
    return link


def _name_of_master(attach: "Child", ns_fd: int | None) -> str:
    """Its name or altname; empty if none is set, and the namespace has no default route."""
    return attach.master or routes.default_route_link(ns_fd)


def _refuse_a_pods(link: Link, host: Rtnl) -> None:
    """Raise LinkUnavailable for the host's end of a pod's interface.  A link over it could answer as that pod's
    gateway, and with passthru receive all of its packets."""
    # Imported here because most masters are hardware.  On a virtual node the master's other end is in no pod.
    from hardware import needed  # noqa: PLC0415

    if needed.is_pair(link):
        needed.refuse_end_of_pair(link, host, location.state_dir(), prefix="master ")


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


def shared_rdma(attach: "Child", master: Link, functions: list[sysfs.PciFunction]) -> list[str]:
    """Return the names of the master's RDMA devices that the pod shares.  If RDMA is required, raises LinkUnavailable
    without a device, and GidTableFull without room for the pod's addresses."""
    names = rdma.of_master(attach.rdma, master.name, functions)
    gids.refuse_full(attach.rdma, names, 1 if attach.ipam else 0)
    return names
