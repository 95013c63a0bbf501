"""An attachment whose record could not be read: its interface is looked for by its name, and removed.

The attachment was there, for it had a record; which kind it was, and what was changed for it, nobody knows.  What is
found in the pod under its name, and could be ours, is taken away.  Only then are its addresses free at once.
"""

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
    """Remove the interface; whether it was there to be removed.  Raises OSError, CniError.

    It is looked for in the namespace that the runtime names or, where it names none, in the one that can still be read
    in the record, if its identity is that of what is there.
    """
    if request.netns:
        try:
            with pods.open_netns(request) as pod:
                return not netns.is_own(pod.fd) and _remove_from(pod, record)  # guard: own-namespace (fd)
        except BadEnvironment:
            pass
    with pods.find(record.identity, record.netns) as found:
        return found is not None and _remove_from(found, record)


def _remove_from(pod: Pod, record: Record) -> bool:
    ifname = record.key.ifname
    link = pod.rtnl.link(ifname)
    if link is None or link.name != ifname:  # an altname is a stranger's  # guard: altname (ifname)
        return False
    with doing(f"removing {ifname} from {pod.path}"):
        if record.link.get("is_the_hosts") and link.kind:  # guard: the-hosts
            _send_home(pod, link)
        # guard below: could-be-ours = True
        elif link.kind in kinds.KINDS and link.parent:  # an InfiniBand VF is an ipoib too, over nothing
            rtnl.delete_link(pod.rtnl, link.index)
        elif link.device:
            _send_home(pod, link)
        else:
            return False
    return True


def _send_home(pod: Pod, link: Link) -> None:
    """Move a device's RDMA devices home, then its interface, which goes down.  The PF keeps what ADD told it: nobody
    knows what it had before."""
    with netns.hold_open("/proc/self/ns/net") as own:
        for name in sysfs.rdma_names(link.device):
            index = rdma_netlink.index_of(name, pod.fd)
            if index is not None:
                rdma_netlink.move(index, to=own, of=pod.fd)
        pod.rtnl.set_link(link.index, mask=links.IFF_UP)
        # The pod's name for it may be taken on the host.
        pod.rtnl.set_link(link.index, attr(IFLA_IFNAME, text(f"vf{link.index}")))
        pod.rtnl.set_link(link.index, attr(IFLA_NET_NS_FD, u32(own)))
