"""Reads the state for provisioning: the PFs that rules select, their VFs and users, and the mode of RDMA.

A pod may have an interface over a PF, such as a macvlan.  The kernel does not show that on the host, because sysfs
links two interfaces only if they are in one namespace.  So this module reads all other namespaces that it can find, by
processes, by mounts, and by the host namespace's numbers for them.  There is a number for each pod with a
veth or a moved interface.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from base.kernel import budget, netns, nsid, rdma_netlink, rtnl, sysfs, vf
from base.kernel.links import LINK, RTEXT_FILTER_SKIP_STATS, RTM_GETLINK, Link, get_link, parse_link
from base.kernel.netlink import attr, attributes, read_u32, u32
from base.kernel.rtnl import Rtnl
from base.protocol import location
from base.state import journal
from base.state.claims import Claim
from base.state.record import Record
from base.table import abridged
from hardware import inventory, users
from hardware.model import Device
from node.model import PfRule
from node.provision.matching import matching
from node.provision.model import OPTION_FILE, Pf, State, Vf
from node.provision.plan import plan

_IFLA_MAX_MTU: Final = 51
_SHOWN: Final = 4  # in a sentence


def state(rules: Sequence[PfRule]) -> State:
    """Read the state.  Raises OSError; IoFailure, RecordUnreadable if the devices' users cannot be read."""
    budget.begin()
    attached = users.owners()
    # The daemon writes the names of interfaces that pods have; this process only reads them.
    devices = matching(rules, inventory.devices(memory=inventory.MEMORY)) if rules else ()
    with rtnl.open_in() as host:
        above = cache(lambda: owners_over(host))
        pfs = tuple(_with_users(_pf(device, attached, host), rules, attached, host, above) for device in devices)
    option = ""
    with suppress(OSError):
        option = Path(OPTION_FILE).read_text(errors="replace")
    return State(pfs, rdma_netlink.is_exclusive(), option)


def path(address: str) -> str:
    """A PCI function's directory in sysfs."""
    return f"{sysfs.SYS}/bus/pci/devices/{address}"


def _pf(device: Device, attached: users.Owners, host: Rtnl) -> Pf:
    reported, mtu, most_mtu = _of_netdev(device, host)
    guids, total = sysfs.guids(device.id), sysfs.line(f"{path(device.id)}/sriov_totalvfs")
    vfs = [
        _vf(address, number, reported.get(number), attached, host)
        for number, address in enumerate(sysfs.vfs(device.id))
    ]
    return Pf(
        device,
        total_vfs=int(total) if total else None,
        vfs=tuple(vfs),
        mtu=mtu,
        most_mtu=most_mtu,
        guid=guids[1] if guids else "",
        user=users.user(device.id, attached),
        lag=users.lag(device.id, sysfs.SYS),
        is_read_only=sysfs.is_read_only(path(device.id)),
    )


def _with_users(
    pf: Pf, rules: Sequence[PfRule], attached: users.Owners, host: Rtnl, above: Callable[[], Mapping[int, str]]
) -> Pf:
    """The PF with the needs for it and its VFs.  They take long to find, and matter only if a change is planned."""
    if not plan(rules, None, State((pf,))).changes:
        return pf
    over_it = owner_over(pf.device, host, above())
    return replace(pf, over=over_it, vfs=tuple(with_users(one, attached, host, above()) for one in pf.vfs))


def owner_over(pf: Device, host: Rtnl, above: Mapping[int, str]) -> str:
    """The owner of an interface over one of the PF's, as text; empty for none.  ``above`` is owners_over's result."""
    links = [link for name in pf.netdevs if (link := host.link(name))]
    return next((above[link.index] for link in links if link.index in above), "")


def with_users(one: Vf, attached: users.Owners, host: Rtnl, above: Mapping[int, str]) -> Vf:
    """A VF with its present user, and the host's and pods' needs for it; ``above`` is owners_over's result."""
    return replace(one, user=users.user(one.address, attached), needed=users.needed(one.address, host, above))


def _of_netdev(device: Device, host: Rtnl) -> tuple[Mapping[int, vf.VfSettings], int, int]:
    """The VFs by number as the PF's interface reports them, and that interface's MTU and limit."""
    for name in device.netdevs[:1]:
        with suppress(OSError):  # the interface has just gone
            body = host.call(RTM_GETLINK, 0, get_link(name, filters=RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF))
            link = parse_link(body)
            most = read_u32(attributes(body[LINK.size :]).get(_IFLA_MAX_MTU, b""))
            return vf.parse(link.vfs), link.mtu, most
    return {}, 0, 0


def why_reserved(address: str) -> str:
    """Why the host needs a PF at this moment; empty if it does not.  Raises OSError."""
    netdevs = sysfs.names(f"{path(address)}/net")
    return next((why for name, why in users.reserved_interfaces(f"{sysfs.SYS}").items() if name in netdevs), "")


def _mtu_at_home(owner: Record | Claim | None) -> int:
    """The MTU that undo restores on a VF's interface; 0 if the VF has none."""
    home = owner.link.get("home") if isinstance(owner, Record) else None
    return int(home["mtu"]) if home else 0


def _vf(address: str, number: int, reported: vf.VfSettings | None, attached: users.Owners, host: Rtnl) -> Vf:
    link = next((link for name in sysfs.names(f"{path(address)}/net") if (link := host.link(name))), None)
    is_infiniband = reported is not None and reported.mac is None
    return Vf(
        address,
        number,
        mtu=link.mtu if link else _mtu_at_home(attached.get(address)),
        trust=reported.trust if reported else None,
        has_guids=bool(reported.node_guid and reported.port_guid) if reported and is_infiniband else None,
        user=users.user(address, attached),
    )


def owners_over(host: Rtnl) -> Mapping[int, str]:
    """The owners of interfaces over the host's, as text, by ifindex of the host's interface.  Raises OSError."""
    with netns.hold_open("/proc/self/ns/net") as own:
        seen = _by_index(_of_namespaces(host, own))
    # The journal's answer wins, because it has the pod's name.
    return seen | _by_index(_of_journal())


def _by_index(found: Iterable[tuple[int, str]]) -> dict[int, str]:
    owners = dict[int, list[str]]()
    for index, one in found:
        owners.setdefault(index, []).append(one)
    return {index: abridged(several, _SHOWN, "; ") for index, several in owners.items()}


def _of_journal() -> Iterator[tuple[int, str]]:
    """Ifindex and owner by the journal, which also knows pods in hidden namespaces."""
    for record in journal.records(location.state_dir()):
        if record.of_this_boot and record.link.get("parent") and not record.link.get("in_container"):
            yield record.link["parent"], record.title


def _of_namespaces(host: Rtnl, own: int) -> Iterator[tuple[int, str]]:
    """Ifindex and owner by the kernel.  A namespace that cannot be read has just ended."""
    numbers, inode = set[int](), netns.inode(own)
    # Without the right to read every process there is no path.
    for path in [path for one, path in (netns.inhabited() or {}).items() if one != inode]:
        with suppress(OSError), netns.hold_open(path) as fd, rtnl.open_in(fd) as inside:
            numbers.add(nsid.number(host, fd))
            links = nsid.links_over_others(inside)  # after which the kernel has a number for our namespace
            yield from _over(links, nsid.number(inside, own), path)
    for number in nsid.numbers(host) - numbers:
        with suppress(OSError):
            links = nsid.links_over_others(host, attr(nsid.IFLA_TARGET_NETNSID, u32(number)))
            yield from _over(links, nsid.number(host, own), f"{number} of: ip netns list-id")


def _over(links: Iterable[Link], number: int, place: str) -> Iterator[tuple[int, str]]:
    for link in links:
        if link.parent_nsid == number:
            yield link.parent, f"a {link.kind} in the namespace {place}"
