"""Facts from the cluster: its API server, and the backend of its shared pools.

A NetworkAttachmentDefinition names the resource of its pods in an annotation (section 3.2.2 of the Network Plumbing
WG's "De-facto Standard").  The status of a Node object lists the node's resources.  A DeviceClass names the resources
of a DRA driver (KEP-5004).
"""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import budget
from base.protocol import location
from base.protocol.errors import BackendRefused, CniError, IoFailure
from base.protocol.spec import Config, Json, network_of
from base.state import journal
from cni import given
from ctl.api_objects import inside
from ctl.doctor import controllers, networks
from ctl.doctor.model import Blocks, Cluster, Controllers, Definition, NodeFile, Slices
from ctl.doctor.reading import Reader
from ipam.cluster import BLOCK, copies, node_blocks
from ipam.cluster.node_blocks import NodeBlocks
from ipam.stores import access

if TYPE_CHECKING:
    from base.kubernetes.client import Client
    from ipam.cluster.rules.network import Network

_DEFINITIONS: Final = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
_CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
_NODES: Final = "/api/v1/nodes"
_RESOURCE: Final = "k8s.v1.cni.cncf.io/resourceName"
_OURS: Final = r'"type"\s*:\s*"hpn(-ipam)?"'

_KEPT = (
    "hpn node keeps this node's blocks by a copy in memory or by the backend's list, until the next boot; "
    "repair the disk"
)


def cluster(read: Reader, kubeconfig: Path) -> Cluster | None:
    """The API server's facts, read with the kubeconfig's credential; None if they cannot be read, which is noted."""
    from base.kubernetes import client  # noqa: PLC0415  # it loads TLS, which few runs need

    try:
        # Thousands of Node objects come in many pages.
        with closing(client.of_operator(kubeconfig)) as server:
            bodies = list(server.listed(_DEFINITIONS))
            nodes, classes = list(server.listed(_NODES)), list(server.listed(_CLASSES))
            by_node = Counter(
                name for node in nodes for name, count in inside(node, "status", "allocatable").items() if count != "0"
            )
            of_classes = {f"{name}" for one in classes if (name := inside(one, "spec").get("extendedResourceName"))}
            offered = frozenset({*by_node, *of_classes})
            definitions = tuple(_definition(one, offered) for one in bodies)
            are_ours = any(one.is_ours for one in definitions)
            others = _controllers(read, kubeconfig, server) if are_ours else Controllers()
    except CniError as e:
        read.unread[f"{kubeconfig}"] = e.msg
        return None
    of_one_node = {name for name, count in by_node.items() if count == 1} - of_classes
    return Cluster(len(nodes), offered, definitions, frozenset(of_one_node), others)


def _controllers(read: Reader, kubeconfig: Path, server: "Client") -> Controllers:
    try:
        return controllers.controllers(server)
    except BackendRefused as e:  # few roles may list them
        read.unread[f"{kubeconfig}"] = e.msg
        return Controllers()


def _definition(body: Json, offered: Collection[str]) -> Definition:
    about = inside(body, "metadata")
    name = f"{about.get('namespace', '')}/{about.get('name', '')}"
    config = f"{inside(body, 'spec').get('config')}"
    found = networks.addresses_in(f"NetworkAttachmentDefinition {name}", config.encode())
    plugins = [*networks.plugins(config.encode())]
    listed = [one for plugin in plugins if plugin.get("type") == "hpn" for one in networks.rails(plugin) if "/" in one]
    return Definition(
        name,
        str(inside(about, "annotations").get(_RESOURCE) or ""),
        tuple(resource for one in listed for resource in given.named(one, offered) or [one]),
        is_ours=re.search(_OURS, config) is not None,
        addresses=tuple(found),
        plugin=f"{plugins[0].get('type', '') if plugins else ''}",
    )


def slices(read: Reader, file: NodeFile | None) -> Slices | None:
    """This node's slices, read with the credential of hpn node; None if its file has no resource by DRA, or is another
    node's."""
    if read.root != Path("/") or not (file and file.settings and any(one.by_dra for one in file.settings.resources)):
        return None
    from node.dra import api  # noqa: PLC0415  # few nodes have slices
    from node.dra.slices import changes  # noqa: PLC0415  # few nodes have slices

    budget.begin()
    try:
        with closing(api.opened(file.kubeconfig, file.environment)) as server:
            found = [changes.stranger(server.node, about) for about in server.slices()]
        return Slices(found.count(""), strangers=tuple(filter(None, found)), node=server.node)
    except CniError as e:
        return Slices(0, e.msg)


def blocks(read: Reader, data_dirs: Iterable[Path]) -> Iterator[Blocks]:
    """The blocks of each network.  A backend is read only for this node's own files."""
    ask = cache(asked if read.root == Path("/") else lambda _: ("", 0.0))
    folders = set(data_dirs)
    networks, problems = copies.networks(folders)
    read.unread |= {f"{one.filename}": f"{one.strerror}; {_KEPT}" for one in problems}
    for directory in networks:
        if read.root != Path("/") and directory.parent not in folders:
            continue  # the copies are of this host
        file = directory / node_blocks.FILE
        try:
            mine = node_blocks.read(directory)
            if mine:
                yield _counted(file, mine, *ask(mine.backend))
        except CniError as e:
            read.unread[f"{file}"] = f"{e.msg}; {_KEPT}"


def _counted(file: Path, mine: NodeBlocks, silent: str, ahead: float) -> Blocks:
    from ipam.cluster.rules import counting  # noqa: PLC0415  # few nodes have such a network

    contents = access.open_in(file.parent.parent, file.parent.name, []).contents()
    have = counting.counted(mine, counting.pool(mine, contents.sets), counting.held_in(contents))
    states = Counter(block.state for block in mine.blocks)
    # A node without a block gives only numbers reserved for names, and needs none.
    room = counting.room(have, mine) if have.free and mine.blocks else -1
    return Blocks(f"{file}", states, room, time.time() - mine.looked, silent, ahead)


def silence(kind: str) -> str:
    """Why the backend cannot be read; empty if it answers."""
    return asked(kind)[0]


def asked(kind: str) -> tuple[str, float]:
    """Why the backend cannot be read, empty if it answers; and this node's clock minus the backend's, in seconds."""
    from ipam.cluster.backends import backend  # noqa: PLC0415  # few nodes have such a network

    budget.begin()
    try:
        documents = backend.opened(kind).documents
        documents.identity()
        return "", time.time() - documents.now()
    except CniError as e:
        return e.msg, 0.0


def refusals(root: Path) -> list[str] | None:
    """A line for each shared network for which no block could be claimed, with the reason; None without such a network.

    Raises IoFailure.
    """
    from ipam import config  # noqa: PLC0415  # few nodes have such a network
    from ipam.cluster.rules.network import Network  # noqa: PLC0415

    lines, silent, shared = list[str](), cache(silence), list(_shared(root))
    for source, conf in shared:
        try:
            pool = config.load(conf, {})
            if not pool.cluster:
                continue
            network = Network(network_of(conf), access.directory(conf), pool.cluster, pool)
            why = silent(pool.cluster.backend) or _refusal(network)
        except CniError as e:
            why = e.msg
        if why:
            lines.append(f"{source}: no block can be claimed for network {conf.get('name')}: {why}")
    return lines if shared else None


def _refusal(network: "Network") -> str:
    """Why an answering backend would refuse a claim; empty if it would not."""
    # Few nodes have such a network.
    from ipam.cluster.backends import backend  # noqa: PLC0415
    from ipam.cluster.reconcile import sync  # noqa: PLC0415

    budget.begin()
    try:
        shared = backend.opened(network.cluster.backend)
        shared.documents.machine(shared.node)
        sync.refuse_disagreeing(shared.documents, network.name, network.cluster, network.subnets)
        shared.documents.listed(BLOCK, network.name, shared.node)
    except CniError as e:
        return e.msg
    return ""


def _shared(root: Path) -> Iterator[tuple[str, Config]]:
    """The configurations with ``ipam.cluster``, from the node's files and its attachments; each network once."""
    seen = set[object]()
    for source, conf in _all(root):
        ipam, name = conf.get("ipam"), conf.get("name")
        if isinstance(ipam, dict) and ipam.get("cluster") and name not in seen:
            seen.add(name)
            yield source, conf


def _all(root: Path) -> Iterator[tuple[str, Config]]:
    read = Reader(root)
    found = networks.networks(read)
    for path, why in read.unread.items():
        raise IoFailure(f"reading {path}: {why}; run hpn as root")
    yield from ((one.source, one.conf) for one in found)
    records = journal.files(Path(read.at(f"{location.state_dir()}")))
    yield from ((f"{path}", record.config) for path, record in records if record)
