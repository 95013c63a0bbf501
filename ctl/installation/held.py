"""Which pods have interfaces and addresses from hpn.  Without the program nobody would take them back."""

from collections.abc import Collection, Iterator
from pathlib import Path

from cni import attachments
from cni.protocol.errors import RecordUnreadable
from cni.protocol.spec import Key
from ctl.installation import state
from ipam import sandboxes
from ipam.cluster import held as blocks
from ipam.inventory import networks
from ipam.inventory import state as state_of
from ipam.stores.contents import Contents, Listed
from ipam.stores.holdings import Lease, Lost


def holders(root: Path) -> list[str]:
    """A line for each attachment whose pod may live, and for each address that is held.

    Records and leases that cannot be read get a line too, because a pod may need what they stood for.
    Raises IoFailure.
    """
    attached, unreadable, _ = attachments.list_all(state.state_dirs(root))
    living = {Key(one["containerID"], one["ifname"]): one for one in attached if one["alive"]}
    lines = [f"{key.of(one['pod'], one['network'])}" for key, one in living.items()]
    lines += [f"{path}, which cannot be read" for path in unreadable]  # guard: unreadable
    for data_dir in filter(Path.is_dir, state.data_dirs(root)):
        for network in networks(data_dir, sandboxes.gone):
            lines += [_of_lease(network.name, one) for one in network.listed if _is_held(one, living)]
            lines += _unread(network)  # guard: leases-unread
    return lines


def claimed(root: Path) -> list[str]:
    """A line for each network of which the cluster's store says that this node has blocks.  Raises IoFailure."""
    return [line for data_dir in state.data_dirs(root) for line in _claimed(data_dir)]


def _claimed(data_dir: Path) -> Iterator[str]:
    for file in sorted(data_dir.glob(f"*/{blocks.FILE}")):
        try:
            mine = blocks.read(file.parent)
        except RecordUnreadable:
            yield f"{file} cannot be read; see on another node what this one has: hpn ipam show --cluster"
            continue
        if mine and mine.blocks:
            yield (
                f"the cluster's store says still that node {mine.node} has {len(mine.blocks)} blocks of "
                f"{mine.network}; to have them free at once, on another node: "
                f"hpn ipam release-node {mine.node} {mine.network} --force"
            )


def _unread(network: Contents) -> Iterator[str]:
    if network.problem:
        yield f"{network.problem}; nobody knows what it holds"
    if network.unreadable:
        yield f"{network.place}/leases, line {', '.join(map(str, network.unreadable))}, which cannot be read"


def _is_held(one: Listed, living: Collection[Key]) -> bool:
    """Whether a pod may use the addresses, and is not among the ``living`` that have been named."""
    if isinstance(one.holding, Lease) and one.holding.owner.key in living:
        return False
    # guard below: leases ((one)), set-aside (Lost) and not one.is_over)
    return state_of(one) in ("held", "doubtful") or (isinstance(one.holding, Lost) and not one.is_over)


def _of_lease(network: str, one: Listed) -> str:
    addresses = ", ".join(map(str, one.holding.ips))
    if isinstance(one.holding, Lease):
        return f"{addresses} of {one.holding.owner.key.of(one.holding.owner.pod, network)}"
    if isinstance(one.holding, Lost):
        return f"{addresses} of network {network}, whose lease could not be read"
    return f"{addresses} of network {network}, which a deleted pod may still use"
