"""What is: the PFs that rules are for, with their VFs, and how RDMA devices know namespaces.  Changes nothing."""

import os
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
from base.state import journal
from base.state.record import Record
from hardware import inventory, users
from hardware.model import Device, Kind
from node.model import PfRule
from node.provision.matching import matching
from node.provision.model import OPTION_FILE, Pf, State, Vf
from node.provision.plan import plan

_IFLA_MAX_MTU: Final = 51
_SHOWN: Final = 4  # in a sentence
_NONE: Final = Pf(Device("", Kind.PF))


def state(rules: Sequence[PfRule]) -> State:
    """Raises OSError."""
    budget.begin()
    attached = users.owners()
    # Only a running daemon remembers the names of interfaces that pods have, and writes them down.
    devices = matching(rules, inventory.devices(memory=inventory.MEMORY)) if rules else ()
    with rtnl.open_in() as host:
        above = cache(lambda: of_pods(host))
        pfs = tuple(_with_users(_pf(device, attached, host), rules, attached, host, above) for device in devices)
    option = ""
    with suppress(OSError):
        option = Path(OPTION_FILE).read_text(errors="replace")
    return State(pfs, rdma_netlink.is_exclusive(), option)


def count(address: str) -> int | None:
    """How many VFs a PF can have; None without SR-IOV."""
    try:
        return int(sysfs.line(f"{path(address)}/sriov_totalvfs"))
    except ValueError:
        return None


def path(address: str) -> str:
    """A PCI function's directory."""
    return f"{sysfs.SYS}/bus/pci/devices/{address}"


def _pf(device: Device, attached: Mapping[str, Record], host: Rtnl) -> Pf:
    user = users.user(device.id, attached)
    told, known = _of_netdev(device, host)
    guids = sysfs.guids(device.id)
    vfs = [
        _vf(address, number, told.get(number), attached, host) for number, address in enumerate(sysfs.vfs(device.id))
    ]
    return replace(
        known,
        device=device,
        total_vfs=count(device.id),
        vfs=tuple(vfs),
        guid=guids[1] if guids else "",
        user=user,
        lag=lag(device.id),
    )


def _with_users(
    pf: Pf, rules: Sequence[PfRule], attached: Mapping[str, Record], host: Rtnl, above: Callable[[], Mapping[int, str]]
) -> Pf:
    """The PF with what it and its VFs are needed for.  That takes long to find out, and counts only where something is
    to be changed."""
    if not plan(rules, None, State((pf,))).changes:
        return pf
    over_it = whose_over(pf.device, host, above())
    # guard below: what-the-host-needs = replace(pf, over=over_it, vfs=pf.vfs)
    return replace(pf, over=over_it, vfs=tuple(with_users(one, attached, host, above()) for one in pf.vfs))


def whose_over(pf: Device, host: Rtnl, above: Mapping[int, str]) -> str:
    """Whose an interface is over one of the PF's, in words; empty for none.  ``above`` is that of over.py."""
    links = [link for name in pf.netdevs if (link := host.link(name))]
    return next((above[link.index] for link in links if link.index in above), "")


def with_users(one: Vf, attached: Mapping[str, Record], host: Rtnl, above: Mapping[int, str]) -> Vf:
    """A VF with who has it at this moment, and what the host and pods need it for; ``above`` is that of over.py."""
    return replace(one, user=users.user(one.address, attached), needed=users.needed(one.address, host, above))


def _of_netdev(device: Device, host: Rtnl) -> tuple[Mapping[int, vf.Vf], Pf]:
    """What the PF's interface says of its VFs, and of itself."""
    for name in device.netdevs[:1]:
        with suppress(OSError):  # it has just gone
            body = host.call(RTM_GETLINK, 0, get_link(name, filters=RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF))
            link = parse_link(body)
            most = read_u32(attributes(body[LINK.size :]).get(_IFLA_MAX_MTU, b""))
            return vf.parse(link.vfs), replace(_NONE, mtu=link.mtu, most_mtu=most)
    return {}, _NONE


def lag(address: str) -> str:
    """The bond that a PF is in, if its members have an RDMA device together; empty for none.

    The driver keeps one for all of them then, at one of their functions (mlx5_lag_dev_alloc: mlx5_bond_0).  Whatever
    name that has, the others have none.  It shares with its own alone, so a NIC of another driver is no such member.
    """
    driver = sysfs.link(f"{path(address)}/driver")
    for name in sysfs.names(f"{path(address)}/net"):
        bond = sysfs.link(f"{sysfs.SYS}/class/net/{name}/master")
        if bond and os.path.exists(f"{sysfs.SYS}/class/net/{bond}/bonding"):
            # guard below: its-own-members (driver)
            members = [one for one in sysfs.functions_under(bond) if one.driver == driver]
            if 0 < sum(bool(sysfs.rdma_names(one.address)) for one in members) < len(members):
                return bond
    return ""


def why_reserved(address: str) -> str:
    """Why the host cannot spare a PF at this moment; empty if it can.  Raises OSError."""
    netdevs = sysfs.names(f"{path(address)}/net")
    return next((why for name, why in users.reserved_interfaces(f"{sysfs.SYS}").items() if name in netdevs), "")


def _mtu_at_home(record: Record | None) -> int:
    """The MTU that a VF's interface gets back when it leaves the pod; 0 if that has no interface."""
    home = record.link.get("home") if record else None
    return int(home["mtu"]) if home else 0


def _vf(address: str, number: int, told: vf.Vf | None, attached: Mapping[str, Record], host: Rtnl) -> Vf:
    link = next((link for name in sysfs.names(f"{path(address)}/net") if (link := host.link(name))), None)
    is_infiniband = told is not None and told.mac is None
    return Vf(
        address,
        number,
        mtu=link.mtu if link else _mtu_at_home(attached.get(address)),
        trust=told.trust if told else None,
        has_guids=bool(told.node_guid and told.port_guid) if told and is_infiniband else None,
        user=users.user(address, attached),
    )  # guard: what-comes-home (_mtu_at_home(attached.get(address)) -> 0)


def of_pods(host: Rtnl) -> Mapping[int, str]:
    """Whose an interface is over a host's interface, in words, by the ifindex of that.  Raises OSError."""
    with netns.hold_open("/proc/self/ns/net") as own:
        seen = _by_index(_seen(host, own))
    # An attachment is told by its pod's name where it has one, rather than by its namespace.
    return seen | _by_index(_attached())


def _by_index(found: Iterable[tuple[int, str]]) -> dict[int, str]:
    whose = dict[int, list[str]]()
    for index, one in found:
        whose.setdefault(index, []).append(one)
    return {index: _named(several) for index, several in whose.items()}


def _named(whose: list[str]) -> str:
    more = f" and {len(whose) - _SHOWN} more" if len(whose) > _SHOWN else ""
    return f"{'; '.join(whose[:_SHOWN])}{more}"


def _attached() -> Iterator[tuple[int, str]]:
    """The same by the journal, also where nobody can see the pod's namespace."""
    for state_dir in users.state_dirs():
        for record in journal.records(state_dir):
            if record.of_this_boot and record.link.get("parent") and not record.link.get("in_container"):
                yield record.link["parent"], record.title


def _seen(host: Rtnl, own: int) -> Iterator[tuple[int, str]]:
    """The same by the kernel.  A namespace that cannot be asked has just ended."""
    numbers = set[int]()
    for path in _paths(netns.inode(own)):  # guard: by-path
        with suppress(OSError), netns.hold_open(path) as fd, rtnl.open_in(fd) as inside:
            numbers.add(nsid.number(host, fd))
            links = nsid.links_over_others(inside)  # which has the kernel give our namespace a number
            yield from _over(links, nsid.number(inside, own), path)
    for number in nsid.numbers(host) - numbers:  # guard: by-number (nsid.numbers(host) - numbers -> set())
        with suppress(OSError):
            links = nsid.links_over_others(host, attr(nsid.IFLA_TARGET_NETNSID, u32(number)))
            yield from _over(links, nsid.number(host, own), f"{number} of: ip netns list-id")


def _paths(own: int) -> list[str]:
    """Where other namespaces are that a process or a mount has; none where we may not look at every process."""
    return [path for inode, path in (netns.inhabited() or {}).items() if inode != own]


def _over(links: Iterable[Link], number: int, place: str) -> Iterator[tuple[int, str]]:
    for link in links:
        if link.parent_nsid == number:  # guard: of-the-hosts = True
            yield link.parent, f"a {link.kind} in the namespace {place}"
