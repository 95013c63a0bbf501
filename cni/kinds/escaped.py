"""Find and remove links that outlive the interface.

The pod may have moved the interface to a namespace of its own, or stacked links on it.  The kernel attaches stacked
links to the master itself.

The search covers the pod's namespace, those that the pod moved something to (base/kernel/nsid.py), and so on from
there.  It spares the host's namespace and those of other attachments.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from base.kernel import budget, netns, nsid, rtnl
from base.kernel.links import PAIRS, Link
from base.kernel.rtnl import Rtnl
from base.state import chains, journal, libcni_cache
from base.state.journal import Entry
from base.state.pod import Identity, Pod
from base.state.record import Record

# The limits of one search, because a pod can make any number of namespaces.
_NAMESPACES: Final = 100
_SECONDS: Final = 4.0
# Repetitions of the search for what ADD made, which may move from one place to another meanwhile.
_LOOKS: Final = 3
# Seconds that the kernel may take to remove a dead pod's links.
_CLEANUP: Final = 3.0
_POLL: Final = 0.01
_NAMED: Final = 5  # the most names in a message


@dataclass(frozen=True)
class Search:
    """The links to search: those over the host's device of index ``lower``, of these ``kinds`` (if empty, any but
    PAIRS), except the ``others`` that existed before ADD.

    ``index`` and ``mac`` identify the link that ADD made; 0 and empty if it is gone.  With ``by_index`` the search is
    for that link only, because for these kinds the kernel does not report the lower device's namespace.  If no search
    is possible, ``lower`` is 0; then ``missing`` is the reason why ADD's link may still exist, or ``note`` why it does
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
        """Whether the link is over that device.  ``host_number`` is the host's number in the link's namespace."""
        if self.by_index:
            return link.index == self.index and link.kind in self.kinds
        return link.parent_nsid == host_number and self.is_of_kinds(link)

    def is_of_kinds(self, link: Link) -> bool:
        return link.kind in self.kinds if self.kinds else link.kind not in PAIRS

    def suspects(self, link: Link) -> bool:
        """Whether the link was not there before ADD, and is over a device of that index in some namespace."""
        return link.parent == self.lower and link.index not in self.others and self.is_of_kinds(link)

    def is_what_add_made(self, link: Link) -> bool:
        return bool(self.index) and (link.index == self.index or link.mac == self.mac)


def may_have_escaped(inside: Rtnl, searches: Sequence[Search], *, knows: int) -> list[bool]:
    """For each search, whether a link may have escaped, judged from the pod's namespace alone, by two queries for all.

    ``knows`` is the number of other namespaces that it knows anyway: the host's, if a link in the pod has its lower
    device there.  If it knows one more, a link may have been moved there.
    """
    if len(nsid.numbers(inside)) > knows:
        return [True] * len(searches)
    there = nsid.links_over(inside, [search.lower for search in searches])
    return [any(map(search.suspects, there)) for search in searches]


def stacked(index: int, pod: Pod | None) -> Search | None:
    """Return the search for links that the pod stacked on a device that has come home, and that are still attached to
    it.  ``index`` is the device's ifindex at home, 0 if it is not home.  Returns None if no search is needed."""
    if not index or not pod:
        return None
    search = Search(index)
    with netns.hold_open("/proc/self/ns/net") as own:
        # On the move home the kernel gave the host a number in the pod's namespace (netif_change_net_namespace).
        knows = int(nsid.number(pod.rtnl, own) >= 0)
    return search if any(may_have_escaped(pod.rtnl, [search], knows=knows)) else None


def remove(search: Search, entry: Entry, record: Record, pod: Pod | None) -> str:
    """Search and remove.  Returns the reason why ADD's link may still exist; empty if it is gone."""
    if not search.lower:
        return search.missing
    with rtnl.open_in() as host:
        if host.link(index=search.lower) is None:
            return ""  # and with it all links over it
        if pod is None:
            return _remove_of_dead(search, host)
    # The runtime caches a result under the request's own names.
    whole = chains.named(entry.state_dir, entry.key.container_id).get(entry) if record.claim else None
    network, key = (whole.network, whole.key) if whole else (record.network, record.requested)
    return _Hunt(search, entry, record, libcni_cache.interfaces(network, key)).run(pod)


@dataclass
class _Hunt:
    """One search from a living pod, for an attachment and its record.

    ``plugins`` are the interfaces that other plugins made in the pod; None if unknown.  ``doubtful`` are links in the
    pod over the same device that may be another plugin's.  ``unread`` are the records that cannot be read, if one of
    them may be of a namespace that the search spared.
    """

    search: Search
    entry: Entry
    record: Record
    plugins: frozenset[str] | None
    doubtful: set[str] = field(default_factory=set)
    found: bool = False
    visited: int = 0
    shut: list[OSError] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def run(self, pod: Pod) -> str:
        deadline, looks, removed = budget.clock() + _SECONDS, 0, 0
        self.found = not self.search.index
        with netns.hold_open("/proc/self/ns/net") as own:
            while looks < (1 if self.found else _LOOKS):
                removed = self._remove_once(pod.fd, own, deadline)
                looks = 0 if removed else looks + 1
                if budget.clock() > deadline or self.visited >= _NAMESPACES:
                    return f"the pod has more namespaces or links than a search of {_SECONDS:.0f} s covers"
        if self.unread:
            return f"it may be in a namespace that was left alone, as another pod's: {self.unread[0]} cannot be read"
        if not self.found:
            entered = f"it is neither in the pod nor in {self.visited - 1} other namespaces that the pod moved links to"
            # Among these may be the host's, so their number says nothing.
            return f"{entered}; others cannot be entered: {self.shut[0]}" if self.shut else entered
        if self.doubtful:
            names = ", ".join(sorted(self.doubtful)[:_NAMED])
            return f"over the same device the pod has {names}, which another plugin may have made"
        return ""

    def _remove_once(self, top: int, own: int, deadline: float) -> int:
        """Search every namespace once and remove what is found.  Returns the number of links found."""
        count, self.visited, self.shut, host = 0, 0, list[OSError](), netns.inode(own)

        def is_strange(fd: int, inside: Rtnl) -> bool:
            here, unread = Identity(netns.inode(fd), netns.cookie(inside.sock)), list[str]()
            if here.inode == host or here == self.record.identity:
                return here.inode == host
            if any(self._attached(here, unread)):
                return True
            self.unread += unread
            return bool(unread)

        def look(inside: Rtnl, *more: bytes) -> list[Link]:
            return nsid.links_over(inside, [self.search.lower], *more)

        with nsid.walk(top, is_strange, look, _NAMESPACES, self.shut) as places:
            for _, inside in places:
                self.visited += 1
                there = look(inside)  # this also makes the kernel give the host's namespace a number
                number = nsid.number(inside, own)
                links = [link for link in there if self.search.finds(link, number)]
                # Read after the links, because an ADD writes its record before it makes its link.
                mates = [*self._attached(self.record.identity)] if links else []
                ours = [link for link in links if not self._stays(link, mates)]
                # On its own: it may have moved away since, and is gone only if the kernel removes it.
                its = [link.index for link in ours if self.search.is_what_add_made(link)]
                self.found = nsid.remove_links(inside, its) or self.found
                nsid.remove_links(inside, [link.index for link in ours if link.index not in its])
                count += len(ours)
                if budget.clock() > deadline:
                    break
        return count

    def _attached(self, where: Identity, unread: list[str] | None = None) -> Iterator[Record]:
        """The other attachments in a namespace, by the journal.  Records that cannot be read are added to ``unread``.
        Raises IoFailure."""
        ours = self.record.network, self.record.key
        named = journal.naming(self.entry.state_dir, where.inode, "inode", unread)
        return (r for r in named if r.of_this_boot and r.identity == where and (r.network, r.key) != ours)

    def _stays(self, link: Link, mates: list[Record]) -> bool:
        if self.search.is_what_add_made(link):
            return False
        if self._is_known(link, mates):
            return True
        # Only in the pod itself may it be another plugin's.
        if self.visited > 1 or not self.search.kinds:
            return False
        if self.plugins is None:
            self.doubtful.add(link.name)
            return True
        # The pod may have given it the name of one of ours.
        ours = {self.record.key.ifname, self.record.rail_of, *(one.key.ifname for one in mates)}
        return link.name in self.plugins - ours

    def _is_known(self, link: Link, mates: list[Record]) -> bool:
        """Whether the link belongs to another attachment of ours, or existed before ADD."""
        over = [one.link for one in mates if one.link.get("parent") == self.search.lower]
        theirs = any(
            link.index == (plan["index"] or plan.get("born_as")) or link.mac == plan["mac"] != "" for plan in over
        )
        return theirs or link.index in self.search.others


def _remove_of_dead(search: Search, host: Rtnl) -> str:
    """Search and remove without the pod's namespace.  As long as ADD's link exists, its master receives for its MAC."""
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
    return f"its master still receives for {search.mac}, and it is in no visible namespace"


def _remove_from(path: str, search: Search, own: int) -> None:
    with netns.hold_open(path) as fd, rtnl.open_in(fd) as inside, closing(inside.sock):
        number = nsid.number(inside, own)
        links = [link for link in nsid.links_over(inside, [search.lower]) if search.finds(link, number)]
        nsid.remove_links(inside, [link.index for link in links if link.mac == search.mac])
