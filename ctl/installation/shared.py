"""What the store that a cluster's nodes share would refuse this node, before an ADD needs it; nothing changes there."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cni.kernel import budget
from cni.protocol.errors import CniError, IoFailure
from cni.protocol.spec import Config, network_of
from cni.state import journal
from ctl.doctor.blocks import silence
from ctl.doctor.networks import networks
from ctl.doctor.reading import Reader
from ctl.installation import state
from ipam import config, stores
from ipam.cluster import BLOCK, grids
from ipam.cluster.giving import Network
from ipam.cluster.opening import opened


def refusals(root: Path) -> list[str]:
    """In words, of each network whose addresses the nodes share, why no block could be claimed for it.

    No store is asked where there is no such network.  Raises IoFailure if it cannot be seen whether there is one.
    """
    lines, silent = list[str](), cache(silence)
    for source, conf in _shared(root):
        try:
            pool = config.load(conf, {})
            if not pool.cluster:
                continue
            network = Network(network_of(conf), stores.directory(conf), pool.cluster, pool)
            why = silent(pool.cluster.store) or _refusal(network)
        except CniError as e:
            why = e.msg
        if why:
            lines.append(f"{source}: no block can be claimed for network {conf.get('name')}: {why}")
    return lines


def _refusal(network: Network) -> str:
    """Why the store would refuse it, though it answers; empty if it would not."""
    budget.begin()
    try:
        shared = opened(network.cluster.store)
        shared.machine()
        grids.refuse_disagreeing(shared.documents, network.name, network.cluster, network.subnets)
        shared.documents.listed(BLOCK, network.name, shared.node)
    except CniError as e:
        return e.msg
    return ""


def _shared(root: Path) -> Iterator[tuple[str, Config]]:
    """Configurations with ``ipam.cluster``, of the node's files and of its attachments; each network once."""
    seen = set[object]()
    for source, conf in _all(root):
        ipam, name = conf.get("ipam"), conf.get("name")
        if isinstance(ipam, dict) and ipam.get("cluster") and name not in seen:
            seen.add(name)
            yield source, conf


def _all(root: Path) -> Iterator[tuple[str, Config]]:
    read = Reader(root)
    yield from ((one.source, one.conf) for one in networks(read))
    for path, why in read.unread.items():
        raise IoFailure(f"reading {path}: {why}; run hpn as root")
    for state_dir in state.state_dirs(root):
        yield from ((f"{path}", record.config) for path, record in journal.files(state_dir) if record)
