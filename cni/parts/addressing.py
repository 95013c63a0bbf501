"""One IPAM result onto one interface: sysctls, addresses, up, routes, announcements."""

import os
from dataclasses import replace
from typing import Final

from cni.kernel import addresses, announce, dump, links, sysctl
from cni.kernel.addresses import IFA_F_DADFAILED, IFA_F_NODAD, IFA_F_OPTIMISTIC, IFA_F_TENTATIVE
from cni.kernel.budget import attempts, wait_for_carrier
from cni.kernel.links import Link
from cni.kernel.netlink import Change
from cni.protocol.errors import AddressConflict, InvalidConfig, doing
from cni.protocol.result import Address, Result, Route
from cni.state.pod import Pod

# Seconds.  A virtual link has its carrier at once, a VF after its PF's next interrupt; if it takes longer, a cable is
# missing.
_CARRIER_TIMEOUT: Final = 0.2
_DAD_TIMEOUT: Final = 5.0  # twice the kernel's own delay and retransmissions at their defaults, and then some
_POLL: Final = 0.01
_DAD_FLAGS: Final = {"optimistic": IFA_F_OPTIMISTIC, "off": IFA_F_NODAD, "wait": 0}


def apply(pod: Pod, link: Link, result: Result, dad: str, sysctls: dict[str, str]) -> None:
    """Bring the interface up with everything that the result gives it.  ``sysctls`` are written after our own, and
    before the addresses, because some of them (accept_ra, accept_dad) decide what happens when addresses come.  Raises
    OSError, AddressConflict, InvalidConfig."""
    needs_v6 = any(ip.address.version == 6 for ip in result.ips)
    with doing(f"configuring {link.name} in {pod.path}"):
        sysctl.write(pod.fd, settings(link.name, needs_v6=needs_v6, dad=dad) | sysctls)
        pod.rtnl.change_all(_changes(link, result, dad))
        # A VF gets its carrier some time after it is up, and no neighbour received what the kernel announced before.
        if link.device or (dad != "optimistic" and any(ip.address.version == 6 for ip in result.ips)):
            now = wait_for_carrier(pod.rtnl, link.index, _CARRIER_TIMEOUT)
            # An ipvlan in mode l3 or l3s has no ARP once it is up: it routes, and refuses a multicast MAC with ENOBUFS.
            # For InfiniBand we can send nothing either, because only the driver can write the header.
            if now and now.arp and not now.infiniband:
                _announce(pod, now, result, dad)


def _changes(link: Link, result: Result, dad: str) -> list[Change]:
    v4 = [ip.address for ip in result.ips if ip.address.version == 4]
    v6 = [ip.address for ip in result.ips if ip.address.version == 6]
    return [
        # With arp_notify the kernel announces the IPv4 addresses that are there when the link goes up.
        *(addresses.adding_address(link.index, address) for address in v4),
        links.setting_up(link),
        # If the link were down, an optimistic address would be local only after duplicate detection, a second later.
        *(addresses.adding_address(link.index, address, _DAD_FLAGS[dad]) for address in v6),
        *(addresses.adding_route(link.index, route) for route in with_gateways(result)),
    ]


def _announce(pod: Pod, link: Link, result: Result, dad: str) -> None:
    """Announce the addresses.  Raises AddressConflict if ADD waits for duplicate detection, and that finds a
    duplicate."""
    v4 = [ip.address.ip for ip in result.ips if ip.address.version == 4 and link.device]
    announce.send(pod.fd, link.name, [announce.gratuitous_arp(link.mac, address) for address in v4])
    v6 = [ip.address.ip for ip in result.ips if ip.address.version == 6]
    # Some NICs (igb) return a multicast packet to the VF, or to the macvlan over the NIC, that sent it.  A tentative
    # address would then look like a duplicate of itself.  The kernel announces no optimistic address later either.
    if dad == "off" or (dad == "wait" and v6 and _wait_for_dad(pod, link)):
        announce.send(pod.fd, link.name, [announce.unsolicited_na(link.mac, a) for a in v6])


def settings(ifname: str, *, needs_v6: bool, dad: str) -> dict[str, str]:
    """The interface's sysctls (Documentation/networking/ip-sysctl.rst).

    With arp_notify and ndisc_notify the kernel announces the addresses again whenever the link comes back.  With
    optimistic_dad and use_optimistic an address is used while duplicate detection still runs.  Raises InvalidConfig if
    an address is IPv6 and the kernel has none.
    """
    values = {f"ipv4/conf/{ifname}/arp_notify": "1"}
    if not os.path.exists("/proc/sys/net/ipv6"):
        if needs_v6:
            raise InvalidConfig("the addresses include IPv6, which this kernel does not have; remove that range")
        return values
    v6 = f"ipv6/conf/{ifname}"
    values[f"{v6}/ndisc_notify"] = "1"
    if needs_v6:
        # Some runtimes make the pod's namespace with IPv6 disabled.
        values[f"{v6}/disable_ipv6"] = "0"
        # If the link goes down and up again, it must keep its addresses, because nobody would add them again.
        values[f"{v6}/keep_addr_on_down"] = "1"
        if dad == "optimistic":
            values[f"{v6}/optimistic_dad"] = "1"
            values[f"{v6}/use_optimistic"] = "1"
    return values


def with_gateways(result: Result) -> list[Route]:
    """The routes.  One without a gateway gets the first gateway of its family, unless its scope says that it is
    on-link."""
    gateways: dict[int, Address] = {}
    for ip in result.ips:
        if ip.gateway is not None:
            gateways.setdefault(ip.address.version, ip.gateway)
    return [
        replace(route, gw=gateways.get(route.dst.version)) if route.gw is None and not route.scope else route
        for route in result.routes
    ]


def _wait_for_dad(pod: Pod, link: Link) -> bool:
    """Wait for duplicate detection.  Returns whether all addresses passed in time.  Raises AddressConflict with the
    addresses that failed."""
    for _ in attempts(_DAD_TIMEOUT, _POLL):
        flags = {a: of.flags for a, of in dump.addresses(pod.fd, link.index).items()}
        failed = [str(address) for address, flag in flags.items() if flag & IFA_F_DADFAILED]
        if failed:
            raise AddressConflict(
                f"{', '.join(failed)} is in use by another host on the link (IPv6 duplicate address detection); "
                "find it, or exclude the address from the range"
            )
        if not any(flag & IFA_F_TENTATIVE for flag in flags.values()):
            return True
    return False
