"""Removal of an attachment with an unreadable record.

The record proves that the attachment existed; its kind and its changes are unknown.  So the interface is searched by
its name, and removed if it could be ours.  Only then are its addresses free at once.
"""

from contextlib import suppress

from base.kernel import links, netns, rdma_netlink, rtnl, sysfs
from base.kernel.links import IFLA_IFNAME, IFLA_NET_NS_FD, Link
from base.kernel.netlink import attr, text, u32
from base.protocol.errors import BadEnvironment, doing
from base.protocol.spec import Request
from base.state import pod as pods
from base.state.pod import Pod
from base.state.record import Record
from cni import kinds


def remove(record: Record, request: Request) -> bool:
    """Remove the interface; return whether it was found.  Raises OSError, CniError.

    The search is in the namespace that the runtime names.  If it names none, the search is in the namespace that the
    record names, if that path still leads to the record's identity.
    """
    if request.netns:
        with suppress(BadEnvironment), pods.open_netns(request) as pod:
            return not netns.is_own(pod.fd) and _remove_from(pod, record)
    with pods.find(record.identity, record.netns) as found:
        return found is not None and _remove_from(found, record)


def _remove_from(pod: Pod, record: Record) -> bool:
    ifname = record.key.ifname
    link = pod.rtnl.link(ifname)
    if link is None or link.name != ifname:  # an altname is not ours
        return False
    with doing(f"removing {ifname} from {pod.path}"):
        if record.link.get("is_the_hosts") and link.kind:
            _send_home(pod, link)
        elif link.kind in kinds.KINDS and link.parent:  # an InfiniBand VF is of kind ipoib too, but has no parent
            rtnl.delete_link(pod.rtnl, link.index)
        elif link.device:
            _send_home(pod, link)
        else:
            return False
    return True


def _send_home(pod: Pod, link: Link) -> None:
    """Move a device's RDMA devices home, then its interface, which goes down.  The VF's attributes on the PF stay,
    because the former ones are unknown."""
    with netns.hold_open("/proc/self/ns/net") as own:
        for name in sysfs.rdma_names(link.device):
            index = rdma_netlink.index_of(name, pod.fd)
            if index is not None:
                rdma_netlink.move(index, to=own, of=pod.fd)
        pod.rtnl.set_link(link.index, mask=links.IFF_UP)
        # The name that it has in the pod may be taken on the host.
        pod.rtnl.set_link(link.index, attr(IFLA_IFNAME, text(f"vf{link.index}")))
        pod.rtnl.set_link(link.index, attr(IFLA_NET_NS_FD, u32(own)))
