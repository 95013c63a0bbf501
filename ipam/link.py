"""Addresses that need the interface: made of its MAC, or probed for on its link.

Imported only if a configuration asks for one of these.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from base.kernel import links, probe
from base.kernel.links import Link
from base.kernel.rtnl import wait_for_carrier
from base.protocol.errors import InvalidConfig, LinkUnavailable, doing
from base.protocol.result import Ip
from base.protocol.spec import Request, configuration
from base.state import pod as pods
from base.state.pod import Pod
from ipam import conflicts, eui64, models
from ipam.allocation import Allocation

# Seconds.  A VF has its carrier after its PF's next interrupt; the switch's port was up before.
CARRIER_TIMEOUT: Final = 2.0


def hold(allocation: Allocation, *, again: bool) -> tuple[Ip, ...]:
    """The addresses held.  Those made of the interface's MAC are requested too, and all are probed for if the
    configuration says so, or if nobody knows the leases of the block that they are in.

    ``again``: where there is no interface yet, the caller asks again when there is one.

    Raises LinkUnavailable where there is no such interface (yet), or no carrier; BadEnvironment, InvalidConfig,
    AddressConflict, and what Allocation.hold does.
    """
    request, pool, sets = allocation.request, allocation.pool, allocation.sets
    ifname = request.key.ifname
    with ExitStack() as stack:
        pod = stack.enter_context(pods.open_netns(request))
        link = pod.rtnl.link(ifname)
        if link is None:  # guard: the-link-is-there
            if not (pool.needs_link or again):
                return allocation.hold_unprobed(f"{ifname} is not there", pool.requested)
            raise LinkUnavailable(
                f"CNI_IFNAME={ifname}: {request.netns} has no such interface yet, which ipam.probe and eui64 need; "
                "remove these, or attach with a plugin that makes it before it asks for addresses"
            )
        own = eui64.addresses(sets, link.mac)
        if own:
            stack.enter_context(doing(f"giving {ifname} the address of its MAC {link.mac} (eui64)"))
        requested = (*pool.requested, *own)
        if not pool.probe:
            if pool.needs_link and (ips := allocation.hold(requested)):
                return ips
            stack.enter_context(doing("probing for addresses of a block whose leases nobody knows (ipam.cluster)"))
            if why := _not_probeable(link):
                return allocation.hold_unprobed(f"{link.name} {why}", requested)
        refuse_unless_probeable(link)
        with _up(pod, link):
            ask = partial(probe.find_owners, pod.fd, link, seconds=pool.probe or models.PROBE)
            asked = conflicts.Link(ask, _name(request, link), [s.all_spans for s in sets])
            hold = partial(allocation.hold, requested)
            ips = conflicts.resolve(allocation.store, request.key, requested, hold, asked, allocation.log)
        allocation.note_probed(ips)
        return ips


def _name(request: Request, link: Link) -> str:
    """The link's name for people."""
    master = configuration(request).get("master")
    return f"the link of {link.name}" + (f" (master {master})" if isinstance(master, str) else "")


def refuse_unless_probeable(link: Link) -> None:
    """Raises InvalidConfig if nobody could answer a probe, or we could not hear the answer."""
    if why := _not_probeable(link):  # guard: somebody-answers
        raise InvalidConfig(f"ipam.probe: {link.name} {why}; remove ipam.probe")


def _not_probeable(link: Link) -> str:
    if link.infiniband:
        return "is InfiniBand, whose frames its driver alone can make"
    if link.kind == "ipvlan":
        # An answer to a probe goes to 0.0.0.0, which no ipvlan has (ipvlan_addr_lookup).
        return "is an ipvlan, and answers to who has no address yet go to its master"
    if not link.arp or len(link.mac) != 17:
        return "has neither ARP nor neighbour discovery"
    return ""


@contextmanager
def _up(pod: Pod, link: Link) -> Iterator[None]:
    """Have the link up and with carrier, and restore it afterwards: it still has to go up for good, which announces its
    addresses (arp_notify).  Raises LinkUnavailable, OSError."""
    if link.up and link.carrier:
        yield
        return
    pod.rtnl.set_up(link.index)
    try:
        if not wait_for_carrier(pod.rtnl, link.index, CARRIER_TIMEOUT):  # guard: carrier
            raise LinkUnavailable(
                f"{link.name} has no carrier after {CARRIER_TIMEOUT:.0f} s, and ipam.probe nobody to ask; "
                "see to its cable or master, or remove ipam.probe"
            )
        yield
    finally:
        if not link.up:  # guard: down-again
            pod.rtnl.set_link(link.index, mask=links.IFF_UP)
