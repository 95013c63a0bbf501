"""Removes what a pod did with its interface and what does not end with that.  The pod may have moved the interface to a
namespace of its own, or stacked links on it, which the kernel attaches to the master itself.

Looked at are the pod's namespace, those that the pod moved something to (kernel/nsid.py), and so on from there, but not
another attachment's namespace nor the host's.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from base.kernel import budget, netns, nsid, rtnl
from base.kernel.links import PAIRS, Link
from base.kernel.rtnl import Rtnl
from base.protocol.spec import Json
from base.state import journal, libcni_cache
from base.state.journal import Entry
from base.state.pod import Identity, Pod
from base.state.record import Record

# A pod can make more namespaces than we have time for.
_NAMESPACES: Final = 100
_SECONDS: Final = 4.0
# How often what ADD made is looked for: while we look in one place it may be moved to another.
_LOOKS: Final = 3
# Of a pod that is gone, how long the kernel may take to do away with its links.
_CLEANUP: Final = 3.0
_POLL: Final = 0.01
_NAMED: Final = 5  # in a message


@dataclass(frozen=True)
class Search:
    """What may still be there: links over the host's device of index ``lower``, of these ``kinds`` (of any but PAIRS if
    none are named), without the ``others`` that were there before ADD.

    ``index`` and ``mac`` are of the link that ADD made, 0 and empty where that is gone.  With ``by_index`` only that
    link is looked for: of these kinds the kernel does not say in which namespace the lower device is.  Where nothing
    can be looked for, ``lower`` is 0: then ``missing`` says why what ADD made may be somewhere still, or ``note`` why
    not.
    """

    lower: int
    kinds: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    index: int = 0
    mac: str = ""
    missing: str = ""
    note: str = ""
    by_index: bool = False

    def finds(self, link: Link, host_number: int) -> bool:
        """Whether the link is over that device, seen from a namespace where the host's has this number."""
        if self.by_index:
            return link.index == self.index and link.kind in self.kinds
        return link.parent_nsid == host_number and self.is_of_kinds(link)  # guard: same-host (parent_nsid)

    def is_of_kinds(self, link: Link) -> bool:
        return link.kind in self.kinds if self.kinds else link.kind not in PAIRS

    def is_what_add_made(self, link: Link) -> bool:
        return bool(self.index) and (link.index == self.index or link.mac == self.mac)


def may_have_escaped(inside: Rtnl, search: Search, *, knows: int) -> bool:
    """Whether anything may have escaped, as far as the pod's namespace alone tells.  It takes two questions.

    It ``knows`` so many others anyway: the host's, where the lower device of a link in it is.  If it knows one more,
    something may have been moved there.
    """
    if len(nsid.numbers(inside)) > knows:
        return True
    links = nsid.links_over(inside, search.lower)
    # guard below: suspected-over = False
    return any(link.index not in search.others for link in links if search.is_of_kinds(link))


def stacked(index: int, pod: Pod | None) -> Search | None:
    """The search for what the pod made over a device that has come home from it, where the device has this ifindex (0:
    it has not); that hangs on it still.  None if there is nothing to be looked for."""
    if not index or not pod:
        return None
    search = Search(index)
    with netns.hold_open("/proc/self/ns/net") as own:
        # With the move home the kernel has told the pod's namespace the host's number (netif_change_net_namespace).
        knows = int(nsid.number(pod.rtnl, own) >= 0)
    return search if may_have_escaped(pod.rtnl, search, knows=knows) else None


def remove(search: Search, entry: Entry, record: Record, pod: Pod | None) -> str:
    """Remove what is found.  Returns, in words, why the link that ADD made may still be there; empty if it is gone."""
    if not search.lower:
        return search.missing
    with rtnl.open_in() as host:
        if host.link(index=search.lower) is None:
            return ""  # and so is all that was over it
        if pod is None:
            return _remove_of_dead(search, host)  # guard: of-the-dead = ""

    def others() -> list[Record]:
        return [r for r in journal.records(entry.state_dir) if r.of_this_boot and _name(r) != _name(record)]

    strangers = {r.identity for r in others()} - {record.identity}

    def mates() -> list[Json]:
        return [r.link for r in others() if r.identity == record.identity]

    return _Hunt(search, mates, strangers, libcni_cache.interfaces(record.network, record.key)).run(pod)


@dataclass
class _Hunt:
    """``mates`` are the plans of the pod's other attachments, whose links stay, ``strangers`` other pods, and
    ``plugins`` the interfaces in the pod that plugins made, None where nobody knows.  ``doubtful`` are links in the pod
    over the same device of which nobody knows that."""

    search: Search
    mates: Callable[[], list[Json]]
    strangers: set[Identity]
    plugins: frozenset[str] | None
    doubtful: set[str] = field(default_factory=set)
    found: bool = False
    visited: int = 0

    def run(self, pod: Pod) -> str:
        deadline, looks, removed = budget.clock() + _SECONDS, 0, 0
        self.found = not self.search.index
        with netns.hold_open("/proc/self/ns/net") as own:
            while looks < (1 if self.found else _LOOKS):  # guard: again (found)
                removed = self._remove_once(pod.fd, own, deadline)
                looks = 0 if removed else looks + 1
                if budget.clock() > deadline or self.visited >= _NAMESPACES:  # guard: ends (_NAMESPACES)
                    return f"the pod has more namespaces or links than {_SECONDS:.0f} s are enough for"
        if not self.found:  # guard: not-found
            return f"it is neither in the pod nor in {self.visited - 1} other namespaces that the pod moved links to"
        if self.doubtful:
            names = ", ".join(sorted(self.doubtful)[:_NAMED])
            return f"over the same device the pod has {names}, and nothing tells whether another plugin made that"
        return ""

    def _remove_once(self, top: int, own: int, deadline: float) -> int:
        """Look once at every namespace and remove what is found there.  Returns how many links that were."""
        count, self.visited, host = 0, 0, netns.inode(own)

        def is_strange(fd: int, inside: Rtnl) -> bool:
            inode = netns.inode(fd)
            # guard below: strangers (strangers)
            return inode == host or Identity(inode, netns.cookie(inside.sock)) in self.strangers

        def look(inside: Rtnl, *more: bytes) -> list[Link]:
            return nsid.links_over(inside, self.search.lower, *more)

        with nsid.walk(top, is_strange, look, _NAMESPACES) as places:
            for _, inside in places:
                self.visited += 1
                there = look(inside)  # which has the kernel give the host's namespace a number
                number = nsid.number(inside, own)
                links = [link for link in there if self.search.finds(link, number)]
                # After the links: an ADD has its record before it has a link.
                mates = self.mates() if links else []
                ours = [link for link in links if not self._stays(link, mates)]
                # Apart from the others: only if the kernel removes it, it is gone.  It may have left since we looked.
                its = [link.index for link in ours if self.search.is_what_add_made(link)]
                # guard below: found-only-if-removed = nsid.remove_links(inside, its) or bool(its) or self.found
                self.found = nsid.remove_links(inside, its) or self.found
                nsid.remove_links(inside, [link.index for link in ours if link.index not in its])
                count += len(ours)
                if budget.clock() > deadline:
                    break
        return count

    def _stays(self, link: Link, mates: list[Json]) -> bool:
        if self.search.is_what_add_made(link):
            return False
        if self._is_known(link, mates):
            return True
        # In the pod itself, and only there, it may be another plugin's.
        return self.visited == 1 and bool(self.search.kinds) and self._is_plugins(link)

    def _is_known(self, link: Link, mates: list[Json]) -> bool:
        """Whether the link belongs to another attachment of ours, or was there before ADD."""
        over = [plan for plan in mates if plan.get("parent") == self.search.lower]
        theirs = any(
            link.index == (plan["index"] or plan.get("born_as")) or link.mac == plan["mac"] != "" for plan in over
        )
        return theirs or link.index in self.search.others  # guard: mates (theirs), others (others)

    def _is_plugins(self, link: Link) -> bool:
        """Whether another plugin made the link, or may have made it."""
        if self.plugins is None:
            self.doubtful.add(link.name)
        return self.plugins is None or link.name in self.plugins


def _remove_of_dead(search: Search, host: Rtnl) -> str:
    """The same where the pod's namespace is gone or cannot be seen.  As long as the link that ADD made exists, its
    master receives for its MAC."""
    if not search.index or not search.mac:
        return ""
    for _ in budget.attempts(_CLEANUP, _POLL):
        if search.mac not in nsid.bridge_macs(host, search.lower):
            return ""
    with netns.hold_open("/proc/self/ns/net") as own:
        for inode, path in (netns.inhabited() or {}).items():
            if inode != netns.inode(own):
                with suppress(OSError):
                    _remove_from(path, search, own)
    if search.mac not in nsid.bridge_macs(host, search.lower):
        return ""
    return f"its master still receives for {search.mac}, and it is in no namespace that can be seen"


def _remove_from(path: str, search: Search, own: int) -> None:
    with netns.hold_open(path) as fd, rtnl.open_in(fd) as inside, closing(inside.sock):
        number = nsid.number(inside, own)
        links = [link for link in nsid.links_over(inside, search.lower) if search.finds(link, number)]
        nsid.remove_links(inside, [link.index for link in links if link.mac == search.mac])


def _name(record: Record) -> tuple[str, str]:
    return record.network, str(record.key)
