"""Configuration of an interface from an IPAM result: sysctls, addresses, up, routes, announcements."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Final

from base.kernel import addresses, links, neighbors, sysctl
from base.kernel.addresses import IFA_F_NODAD, IFA_F_OPTIMISTIC, RT_TABLE_MAIN
from base.kernel.links import Link
from base.kernel.neighbors import Detection
from base.kernel.netlink import Change
from base.kernel.rtnl import wait_for_carrier
from base.protocol.errors import AddressConflict, InvalidConfig, doing
from base.protocol.result import Address, Result, Route
from base.state import owned
from base.state.pod import Pod

if TYPE_CHECKING:
    from cni.models import Common

# Seconds.  A virtual link has its carrier at once, a VF after its PF's next interrupt; if it takes longer, a cable is
# missing.
_CARRIER_TIMEOUT: Final = 0.2
_DAD_TIMEOUT: Final = 5.0  # more than twice the kernel's default delay and retransmissions
# Besides the time to listen.  Detection takes milliseconds, unless the link goes down and up.
_QUICK_TIMEOUT: Final = 2.0
# Milliseconds.  A neighbour on an Ethernet answers in less than one.
_DAD_TIME: Final = 20
_LEAST_V6: Final = 1280  # bytes of MTU (RFC 8200)
_DAD_FLAGS: Final = {"optimistic": IFA_F_OPTIMISTIC, "off": IFA_F_NODAD}


@contextmanager
def applied(
    pod: Pod, link: Link, result: Result, wanted: "Common", sysctls: dict[str, str], log: list[str]
) -> Iterator[None]:
    """Bring the interface up with the result's addresses and routes before the body, and wait after it: for carrier,
    and until duplicate detection has ended.  So the waits of a pod's interfaces can overlap.

    ``sysctls`` (path -> value) are written after our own and before the addresses, because some of them (accept_ra,
    accept_dad) affect how addresses are added.  Raises OSError, AddressConflict, InvalidConfig.
    """
    v6 = [ip.address.ip for ip in result.ips if ip.address.version == 6]
    dad = detection_on(link, wanted) if v6 else ""
    with doing(f"configuring {link.name} in {pod.path}"):
        try:
            sysctl.write(pod.fd, settings(link, needs_v6=bool(v6), dad=dad) | sysctls)
        except (OSError, InvalidConfig):
            sysctl.refuse_hidden()
            raise
        if dad in ("quick", "wait"):
            yield from _detecting(pod, link, result, wanted, log)
            return
        pod.rtnl.change_all(_changes(link, result, dad))
        yield
        # A VF gets its carrier some time after it is up, and no neighbour received what the kernel announced before.
        if link.device or dad == "off":
            now = wait_for_carrier(pod.rtnl, link.index, _CARRIER_TIMEOUT)
            if now:
                _announce_v4(pod, now, result)
            # The kernel announces an address after duplicate detection, and never an optimistic one.
            if now and dad == "off" and _can_announce(now):
                neighbors.send(pod.fd, link.name, [neighbors.unsolicited_na(now.mac, a) for a in v6])


def _changes(link: Link, result: Result, dad: str) -> list[Change]:
    v4 = [ip.address for ip in result.ips if ip.address.version == 4]
    v6 = [ip.address for ip in result.ips if ip.address.version == 6]
    return [
        # With arp_notify the kernel announces the IPv4 addresses that are there when the link goes up.
        *(addresses.adding_address(link.index, address) for address in v4),
        links.setting_up(link),
        # On a link that is down, an optimistic address becomes local only after duplicate detection, a second later.
        *(addresses.adding_address(link.index, address, _DAD_FLAGS.get(dad, 0)) for address in v6),
        *(addresses.adding_route(link.index, route) for route in with_gateways(result)),
    ]


def _detecting(pod: Pod, link: Link, result: Result, wanted: "Common", log: list[str]) -> Iterator[None]:
    """Make the changes, yield once, and wait until duplicate detection has ended for all IPv6 addresses.  After
    that the kernel announces them (ndisc_notify).

    If the link gets no carrier, or the pod prevents detection from ending, return with a note in the log.  The kernel
    continues at its own pace.  Raises AddressConflict if another host has an address.
    """
    v6 = [ip.address.ip for ip in result.ips if isinstance(ip.address.ip, IPv6Address)]
    quick, listening = wanted.dad == "quick", wanted.dadTime or _DAD_TIME
    timeout = _QUICK_TIMEOUT + 5 * listening / 1000 if quick else _DAD_TIMEOUT  # so up to five solicitations
    short = neighbors.quick_detection(pod.fd, link.name, listening) if quick else nullcontext(enter_result=True)
    with neighbors.listen_to_detection(pod.rtnl, link.index, v6) as detection, short as possible:
        if not possible:
            sysctl.write(pod.fd, _optimistic(link.name))
            pod.rtnl.change_all(_changes(link, result, "optimistic"))
            log.append(f"dad quick: {pod.path} has no sysctls of neighbours, so {_listed(v6)} is optimistic")
            yield
            return
        try:
            pod.rtnl.change_all(_changes(link, result, wanted.dad))
        except OSError:
            # With accept_dad 2 the kernel disables IPv6 as soon as another host has the link-local address.
            detection.until_ended(_CARRIER_TIMEOUT)
            _refuse_duplicates(detection, link)
            raise
        yield
        now = detection.link_when_ready(_CARRIER_TIMEOUT)
        if now is None:
            log.append(f"{link.name} has no carrier yet; duplicate detection of {_listed(v6)} begins when it has")
            return
        _announce_v4(pod, now, result)
        if not quick:
            detection.ask()
        if not detection.until_ended(timeout):
            log.append(f"duplicate detection of {_listed(detection.tentative)} goes on after {timeout:g} s")
        _refuse_duplicates(detection, now)


def _refuse_duplicates(detection: Detection, link: Link) -> None:
    failed = detection.failed
    if not failed:
        return
    remedy = "find it, or exclude the address from the range"
    if all(address.is_link_local for address in failed):
        remedy = f"it seems to have the MAC {link.mac} too; give one of them another"
    elif owner := next(filter(None, map(owned.of_address, failed)), ""):
        remedy = f"{owner} of this node has it: ADD succeeds once that has ended"
    raise AddressConflict(
        f"{_listed(failed)} is in use by another interface on the link (IPv6 duplicate address detection); {remedy}"
    )


def _listed(found: list[IPv6Address]) -> str:
    return ", ".join(map(str, found))


def _announce_v4(pod: Pod, link: Link, result: Result) -> None:
    """Announce the IPv4 addresses of a device, which the kernel announced before it had carrier."""
    if link.device and _can_announce(link):
        v4 = [ip.address.ip for ip in result.ips if ip.address.version == 4]
        neighbors.send(pod.fd, link.name, [neighbors.gratuitous_arp(link.mac, address) for address in v4])


def _can_announce(link: Link) -> bool:
    """Whether we can send frames.  An ipvlan in mode l3 or l3s, which has no ARP once it is up, refuses a multicast MAC
    with ENOBUFS.  For InfiniBand only the driver can write the header."""
    return link.arp and not link.infiniband


def detection_on(link: Link, wanted: "Common") -> str:
    """Return the mode of duplicate detection: ``wanted.dad``, but on InfiniBand optimistic in place of quick without a
    time.  There a solicitation leaves only after the interface has joined the address's group, at an unknown time."""
    return "optimistic" if wanted.dad == "quick" and link.infiniband and not wanted.dadTime else wanted.dad


def settings(link: Link, *, needs_v6: bool, dad: str) -> dict[str, str]:
    """The interface's sysctls (Documentation/networking/ip-sysctl.rst).

    With arp_notify and ndisc_notify the kernel announces the addresses again whenever the link comes back.  With
    optimistic_dad and use_optimistic an address is used while duplicate detection still runs.  Raises InvalidConfig if
    an address is IPv6 and the kernel or the interface has none.
    """
    ifname = link.name
    values = {f"ipv4/conf/{ifname}/arp_notify": "1"}
    if not os.path.exists("/proc/sys/net/ipv6"):
        if needs_v6:
            raise InvalidConfig(
                "the addresses include IPv6, which this kernel does not have (/proc/sys/net/ipv6 is missing); boot "
                "it without ipv6.disable=1, or remove that range from ipam"
            )
        return values
    if link.mtu < _LEAST_V6:  # the kernel gives it no IPv6 (addrconf_add_dev)
        if needs_v6:
            raise InvalidConfig(
                f"mtu {link.mtu}: the addresses include IPv6, which needs {_LEAST_V6}; raise it, or remove that range "
                "from ipam"
            )
        return values
    v6 = f"ipv6/conf/{ifname}"
    values[f"{v6}/ndisc_notify"] = "1"
    if needs_v6:
        # Some runtimes make the pod's namespace with IPv6 disabled.
        values[f"{v6}/disable_ipv6"] = "0"
        # A link that goes down and up must keep its addresses, because no process would add them again.
        values[f"{v6}/keep_addr_on_down"] = "1"
        if dad == "optimistic":
            values |= _optimistic(ifname)
    return values


def _optimistic(ifname: str) -> dict[str, str]:
    return {f"ipv6/conf/{ifname}/{name}": "1" for name in ("optimistic_dad", "use_optimistic")}


def replaced_defaults(pod: Pod, link: Link, result: Result) -> Iterator[str]:
    """Yield a note for each default route of the pod that ours, which comes first, replaces."""
    in_main = [one for one in result.routes if one.table in (None, RT_TABLE_MAIN)]
    families = {one.dst.version for one in in_main if not one.dst.prefixlen}
    if not families:
        return
    # Few attachments beside the pod's own have one.
    from base.kernel import routes  # noqa: PLC0415

    for version in sorted(families):
        there = routes.unicast(pod.rtnl, AF_INET if version == 4 else AF_INET6, default=True)
        outputs = {index for one in there if one.table == RT_TABLE_MAIN for index in one.outputs} - {link.index}
        names = [other.name for index in sorted(outputs) if (other := pod.rtnl.link(index=index))]
        if names:
            yield (
                f"the pod's default route by {', '.join(names)} comes after that of {link.name} now, which ipam.routes "
                "has; if that was not intended, remove it there, or set multiRail or policyRouting"
            )


def with_gateways(result: Result) -> list[Route]:
    """Return the routes.  One without a gateway gets the first gateway of its family, unless its scope is on-link."""
    gateways: dict[int, Address] = {}
    for ip in result.ips:
        if ip.gateway is not None:
            gateways.setdefault(ip.address.version, ip.gateway)
    return [
        replace(route, gw=gateways.get(route.dst.version)) if route.gw is None and not route.scope else route
        for route in result.routes
    ]
