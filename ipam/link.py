"""Addresses that need the interface: made of its MAC, or probed for on its link.

Imported only if a configuration asks for one of these.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from cni.kernel import links, probe
from cni.kernel.budget import wait_for_carrier
from cni.kernel.links import Link
from cni.protocol.errors import InvalidConfig, LinkUnavailable, doing
from cni.protocol.result import Address, Ip
from cni.protocol.spec import Request, configuration
from cni.state import pod as pods
from cni.state.pod import Pod
from ipam import conflicts, eui64
from ipam.pool import Pool
from ipam.stores import Store

# Seconds.  A VF has its carrier after its PF's next interrupt; the switch's port was up before.
CARRIER_TIMEOUT: Final = 2.0


# Holds addresses for the attachment; it is given the requested ones.
Reserve = Callable[[Sequence[Address]], tuple[Ip, ...]]


@dataclass(frozen=True)
class Proving:
    """That addresses are probed for although the configuration does not say so, where the link can be asked: ``proven``
    is told which addresses nobody else has, and ``unasked`` reserves where nobody can be asked, for the reason that it
    is given.  That is so if there is no interface, unless the caller asks ``again`` when there is one."""

    proven: Callable[[Sequence[Address]], None]
    unasked: Callable[[str, Sequence[Address]], tuple[Ip, ...]]
    again: bool


def reserve_on_link(
    request: Request, pool: Pool, store: Store, reserve: Reserve, log: list[str], proving: Proving | None = None
) -> tuple[Ip, ...]:
    """What ``reserve`` gives.  The addresses made of the interface's MAC are requested too, and all are probed for.

    Raises LinkUnavailable where there is no such interface (yet), or no carrier; BadEnvironment, InvalidConfig,
    AddressConflict, and what ``reserve`` does.
    """
    ifname = request.key.ifname
    with ExitStack() as stack:
        pod = stack.enter_context(pods.open_netns(request))
        link = pod.rtnl.link(ifname)
        if link is None:  # guard: the-link-is-there
            if proving and not proving.again:
                return proving.unasked(f"{ifname} is not there", pool.requested)
            raise LinkUnavailable(
                f"CNI_IFNAME={ifname}: {request.netns} has no such interface yet, which ipam.probe and eui64 need; "
                "remove these, or attach with a plugin that makes it before it asks for addresses"
            )
        own = eui64.addresses(pool.sets, link.mac)
        if own:
            stack.enter_context(doing(f"giving {ifname} the address of its MAC {link.mac} (eui64)"))
        requested = (*pool.requested, *own)
        if not pool.probe:
            return reserve(requested)
        if proving:
            stack.enter_context(doing("probing for addresses of a block whose leases nobody knows (ipam.cluster)"))
        if proving and (why := _not_probeable(link)):
            return proving.unasked(f"{link.name} {why}", requested)
        refuse_unless_probeable(link)
        with _up(pod, link):
            ask = partial(probe.find_owners, pod.fd, link, seconds=pool.probe)
            asked = conflicts.Link(ask, _name(request, link), [s.all_spans for s in pool.sets])
            ips = conflicts.resolve(store, request.key, requested, partial(reserve, requested), asked, log)
        if proving:
            proving.proven([ip.address.ip for ip in ips])
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
