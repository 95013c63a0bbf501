"""What pods have over the host's interfaces, as a macvlan over a PF.

The kernel does not say it of the interface below: sysfs links two interfaces only where they are in one namespace.  So
the other namespaces are asked, those that we find: by their processes and mounts, and by the numbers that our namespace
has for them.  It has one for each pod to which a veth or a moved interface leads.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from base.kernel import netns, nsid, rtnl
from base.kernel.links import Link
from base.kernel.netlink import attr, u32
from base.kernel.rtnl import Rtnl
from base.state import journal, places

_NAMED: Final = 4  # in a sentence


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
    more = f" and {len(whose) - _NAMED} more" if len(whose) > _NAMED else ""
    return f"{'; '.join(whose[:_NAMED])}{more}"


def _attached() -> Iterator[tuple[int, str]]:
    """The same by the journal, also where nobody can see the pod's namespace."""
    for state_dir in places.distinct_state_dirs():
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
