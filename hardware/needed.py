"""What the host, or another pod, would lose if an interface moved to a pod; changes nothing.

The host's end of a pod's own interface, such as Calico's cali123 and Cilium's lxc123, belongs to another pod: its
holder sees the pod's packets.  On the host nothing marks it: it has link-local addresses at most, it is in no bridge,
and Cilium sends to it without a route.  The kernel reports the namespace of the other end.  The journal names that
namespace's pod for our attachments, and libcni's results for all others.
"""

import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import netns, nsid, rtnl, sysfs
from base.kernel.links import PAIRS, Link
from base.kernel.rtnl import Rtnl
from base.kernel.sysfs import Relatives
from base.protocol.errors import InvalidConfig, LinkUnavailable
from base.state import journal, libcni_cache
from base.state.owned import Use, refuse_held

if TYPE_CHECKING:
    from base.kernel.routes import KernelRoute

_NAMED: Final = 4  # routes in a message
_TAKEN: Final = 500  # addresses, or routes, that move with an interface


def refuse(  # noqa: PLR0913  # the facts, and the message's parts
    link: Link, asked: Relatives, use: Use, host: Rtnl, *, prefix: str = "", other: str, takes: bool | None = None
) -> None:
    """Raise CniError for an interface that another pod has, or that is needed on the host.

    ``asked`` are the relatives of its device, only its name for software, and ``use`` has their holders.  The message
    begins with ``prefix``, and ``other`` is the default remedy.  ``takes``: the pod takes its addresses and routes too
    (useInterfaceNetwork); None if it cannot.
    """
    refuse_held(use, asked, prefix=prefix)
    # The holder of a PF decides what its VFs may do.
    for part in asked.below:
        what = f"{prefix}{'VF' if ':' in part else 'SF'} {part} of {link.name!r}: "
        for below in _links(sysfs.device(part), host):
            _refuse_needed(below, part, use, host, what, other)
    _refuse_needed(link, asked.own[0], use, host, prefix, other, takes)


def refuse_function(
    function: sysfs.PciFunction | None, use: Use, host: Rtnl, *, prefix: str = "", other: str = "choose another VF"
) -> None:
    """The same for a VF, by its interface; it has none under a userspace driver."""
    if function is None:
        return
    asked = sysfs.relatives(function.address)
    refuse_held(use, asked, prefix=prefix)
    for link in _links(function, host):
        refuse(link, asked, use, host, prefix=prefix, other=other)


def _links(function: sysfs.PciFunction | None, host: Rtnl) -> Iterator[Link]:
    return filter(None, map(host.link, function.netdevs if function else ()))


def _refuse_needed(  # noqa: PLR0913, PLR0917  # as for refuse
    link: Link,
    address: str,
    use: Use,
    host: Rtnl,
    prefix: str,
    other: str,
    takes: bool | None = None,  # noqa: FBT001
) -> None:
    """Raise CniError for an interface that the host, or a pod over it, needs."""
    name = link.name
    if link.enslaved:
        over = host.link(index=link.enslaved)
        # Of a bridge, bond, VRF, netvsc or Open vSwitch.  No remedy takes it away: the host's traffic may leave by it.
        master = repr(over.name) if over else "bridge, bond or VRF"
        raise LinkUnavailable(f"{prefix}{name!r} is a port of the host's {master}; {other}")
    use.refuse_unknown(address)
    if record := next(use.attached_over(link.index), None):
        raise LinkUnavailable(f"{prefix}{name!r} is the master of {record.title}; delete that first")
    _refuse_in_use(link, prefix, other, takes)
    if uppers := _uppers(link, address, host):
        raise InvalidConfig(f"{prefix}{name!r} carries {', '.join(uppers)} of the host; remove them first, or {other}")


def _refuse_in_use(link: Link, prefix: str, other: str, takes: bool | None) -> None:  # noqa: FBT001
    """Raise InvalidConfig for the host's losses: its addresses and routes on the interface; or for those that a pod
    cannot take."""
    # Deferred: DEL does without it.
    from base.kernel import routes  # noqa: PLC0415
    from base.table import abridged  # noqa: PLC0415

    name = link.name
    with rtnl.open_in(strictly=True) as host:
        lost = routes.addresses_on(host, link.index)
        by_it = routes.routes_by(host, link.index) if link.up else []
    if any(route.is_default for route in by_it) and name in routes.uplinks():
        raise InvalidConfig(f"{prefix}the host's default route uses {name!r}; {other}")
    if takes:
        _refuse_untakable(link, lost, by_it, prefix)
        return
    along = ", or set useInterfaceNetwork to take them along" if takes is not None else ""
    if lost:
        raise InvalidConfig(
            f"{prefix}{name!r} has {', '.join(lost)} on the host, which a move would lose; remove them first{along}"
        )
    if shown := [f"{route.network}" for route in by_it if not route.is_kernels]:
        raise InvalidConfig(
            f"{prefix}the host has routes through {name!r}, which a move would lose: {abridged(shown, _NAMED)}; "
            f"remove them first, or {other}{along}"
        )


def _refuse_untakable(link: Link, lost: list[str], by_it: "list[KernelRoute]", prefix: str) -> None:
    """Raise InvalidConfig for routes that cannot move with the interface, and for more than a record should hold."""
    for what, number in (("addresses", len(lost)), ("routes", len(by_it))):
        if number > _TAKEN:
            raise InvalidConfig(
                f"{prefix}useInterfaceNetwork: {link.name!r} has {number} {what} on the host, above {_TAKEN}; "
                "remove some, or set useInterfaceNetwork to false and use ipam"
            )
    for route in by_it:
        if route.nexthop or set(route.outputs) - {link.index}:
            how = f"the nexthop object {route.nexthop}" if route.nexthop else "several interfaces"
            raise InvalidConfig(
                f"{prefix}useInterfaceNetwork: the host's route to {route.network} in table {route.table} is by {how}, "
                f"so it cannot move with {link.name!r}; replace it by one through {link.name!r} only"
            )


def _uppers(link: Link, address: str, host: Rtnl) -> list[str]:
    """The host's interfaces over it."""
    if sysfs.is_vf(address):
        # A node may have thousands of links; /sys names those over this one.
        return sysfs.uppers(link.name)
    on_host = [upper for upper in nsid.links_over(host, [link.index]) if upper.parent_nsid is None]
    return [upper.name for upper in on_host if upper.kind not in PAIRS]


def is_pair(link: Link) -> bool:
    """Whether the link has a peer in another namespace.  The check costs nothing."""
    return link.parent_nsid is not None and link.kind in PAIRS


def refuse_end_of_pair(link: Link, host: Rtnl, state_dir: Path, *, prefix: str = "", own: int | None = None) -> None:
    """Raise LinkUnavailable for the host's end of a pod's interface; call it only if ``is_pair``.  ``own`` is the
    requesting pod's namespace, which may hold both ends."""
    if own is not None and nsid.number(host, own) == link.parent_nsid:
        return
    if len(_ELSEWHERE) >= _MOST:
        _ELSEWHERE.clear()
    leads_to = cache(partial(_leads_to, link, host))
    elsewhere = _ELSEWHERE.setdefault((netns.cookie(host.sock), link.index, link.parent_nsid, link.name), set())
    results, records = [*libcni_cache.results()], {text: file for file, text in journal.texts(state_dir)}
    for one in (one for one in results if one not in elsewhere):
        for name, sandbox in one.interfaces:
            if leads_to(sandbox) if sandbox else name == link.name:
                raise _taken(prefix, link, f"network {one.network}{f', {sandbox}' if sandbox else ''}")
        elsewhere.add(one)
    for text in records.keys() - elsewhere:
        if leads_to(text.netns) and (record := journal.decoded(records[text], text.body)) and record.of_this_boot:
            raise _taken(prefix, link, record.title)
        elsewhere.add(text)
    elsewhere.intersection_update({*results, *records})  # without those that have gone


# Links of pairs, and the results and records that do not lead to their peers.  So a warm worker asks the kernel about
# new ones only.  A link is its host's namespace, its index, the host's number for its peer's namespace, and its name.
# A path may lead to another namespace after its pod has ended; that one's pod has a result or a record of its own.
_ELSEWHERE: Final = dict[tuple[int, int, int | None, str], set[object]]()
_MOST: Final = 64


def _leads_to(link: Link, host: Rtnl, sandbox: str) -> bool:
    """Whether the peer is in the namespace with that path.  Raises OSError."""
    try:
        fd = netns.open_at(sandbox)
    except OSError as e:
        sysfs.refuse_short(e)
        return False  # it has ended
    try:
        return nsid.number(host, fd) == link.parent_nsid
    finally:
        os.close(fd)


def _taken(prefix: str, link: Link, owner: str) -> LinkUnavailable:
    return LinkUnavailable(
        f"{prefix}{link.name!r} is the host's end of the interface of another pod ({owner}); name another interface"
    )
