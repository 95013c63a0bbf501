"""The host's end of a pod's own interface, as Calico's cali123 and Cilium's lxc123.  Who has it has the pod's packets.

On the host it is nobody's: it has link-local addresses at most, it is in no bridge, and Cilium sends to it without a
route.  The kernel says in which namespace the other end is.  That a pod has been attached there, the journal says of
our attachments, and libcni's results say it of all others.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from cni.kernel import netns, nsid
from cni.kernel.links import Link
from cni.kernel.rtnl import Rtnl
from cni.kinds.escaped import PAIRS
from cni.protocol.errors import LinkUnavailable
from cni.state import journal, libcni_cache
from cni.state.record import netns_in


def is_pair(link: Link) -> bool:
    """Whether the link has another end, in another namespace.  It takes no time to ask."""
    return link.parent_nsid is not None and link.kind in PAIRS


def refuse(link: Link, host: Rtnl, state_dirs: Iterable[Path], *, said: str = "", own: int | None = None) -> None:
    """Raise LinkUnavailable for the host's end of a pod's interface; ``is_pair`` has to say that it may be one.

    ``own`` is the namespace of the pod that asks, which may have both ends.
    """
    if own is not None and nsid.number(host, own) == link.parent_nsid:  # guard: its-own
        return
    leads_to = cache(partial(_leads_to, link, host))
    for network, name, sandbox in libcni_cache.all_interfaces():
        if leads_to(sandbox) if sandbox else name == link.name:  # guard: its-name (name == link.name)
            raise _taken(said, link, f"network {network}{f', {sandbox}' if sandbox else ''}")
    # guard below: our-attachments (state_dirs -> ())
    for file, text in (found for one in state_dirs for found in journal.texts(one)):
        if leads_to(netns_in(text)) and (record := journal.decoded(file, text)) and record.of_this_boot:
            raise _taken(said, link, record.whose)


def _leads_to(link: Link, host: Rtnl, sandbox: str) -> bool:
    """Whether the other end is in the namespace with that path."""
    with suppress(OSError), netns.hold_open(sandbox) as fd:  # it has ended
        return nsid.number(host, fd) == link.parent_nsid  # guard: its-namespace = False
    return False


def _taken(said: str, link: Link, whose: str) -> LinkUnavailable:
    return LinkUnavailable(
        f"{said}{link.name!r} is the host's end of the interface of another pod ({whose}); name another interface"
    )
