"""The host's end of a pod's own interface, as Calico's cali123 and Cilium's lxc123.  Who has it has the pod's packets.

On the host it is nobody's: it has link-local addresses at most, it is in no bridge, and Cilium sends to it without a
route.  The kernel says in which namespace the other end is.  That a pod has been attached there, the journal says of
our attachments, and libcni's results say it of all others.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from cni.kernel import netns, nsid
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.kinds.escaped import PAIRS
from cni.protocol.errors import LinkUnavailable
from cni.state import journal, libcni_cache


def is_pair(link: Link) -> bool:
    """Whether the link has another end, in another namespace.  It takes no time to ask."""
    return link.parent_nsid is not None and link.kind in PAIRS


def refuse(link: Link, host: Rtnl, state_dirs: Iterable[Path], *, said: str = "", own: int | None = None) -> None:
    """Raise LinkUnavailable for the host's end of a pod's interface; ``is_pair`` has to say that it may be one.

    ``own`` is the namespace of the pod that asks, which may have both ends.
    """
    if own is not None and nsid.number(host, own) == link.parent_nsid:
        return
    seen = set[str]()
    for name, sandbox, whose in _attached(state_dirs):
        leads_there = False
        if sandbox and sandbox not in seen:
            seen.add(sandbox)
            with suppress(OSError), netns.hold_open(sandbox) as fd:  # it has ended
                leads_there = nsid.number(host, fd) == link.parent_nsid
        if leads_there or (name == link.name and not sandbox):
            raise LinkUnavailable(
                f"{said}{link.name!r} is the host's end of the interface of another pod ({whose}); "
                "name another interface"
            )


def _attached(state_dirs: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """What is known of pods' interfaces: name, path of the namespace (empty for an interface of the host), and whose it
    is in words."""
    for network, name, sandbox in libcni_cache.all_interfaces():
        yield name, sandbox, f"network {network}{f', {sandbox}' if sandbox else ''}"
    for record in (r for one in state_dirs for r in journal.records(one) if r.of_this_boot):
        yield "", record.netns, record.whose
