"""hpn ipam pods: which pod of the cluster has which address, and whether its node owns the address's block.

Multus writes each attachment's addresses into its pod's annotation (the Network Plumbing WG's "De-facto Standard",
section 5).  So one list of all pods answers, and an ADD writes nothing for it.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from base.protocol.errors import BackendRefused, IoFailure
from base.protocol.spec import Json
from base.table import abridged
from ctl.api_objects import inside
from ctl.command_line import as_document
from ctl.screen import Table, text
from ipam.cluster import BLOCK, POOL, Documents
from ipam.cluster.rules.documents import Block
from ipam.cluster.rules.network import FOLDER
from ipam.cluster.rules.overview import Overview, overviews

_PODS: Final = "/api/v1/pods"
_DEFINITIONS: Final = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
_STATUS: Final = "k8s.v1.cni.cncf.io/network-status"
_ENDED: Final = ("Succeeded", "Failed")  # phases of a pod without a namespace
_MAY: Final = "--kubeconfig needs a credential that may list pods and network-attachment-definitions in all namespaces"
# A user who may change a pod writes up to 256 KiB into its annotation.  The output must not multiply that.
_LONGEST: Final = 317  # characters of a word: a namespace, "/" and a name
_SHOWN: Final = 8  # addresses of an interface in the table
_NAMED: Final = 3  # other interfaces with the address in a sentence

Address: TypeAlias = IPv4Address | IPv6Address


@dataclass(frozen=True)
class Attached:
    """An interface of a pod, as the pod's annotation describes it.

    - ``network``: the name in the CNI configuration; ``definition``: the NetworkAttachmentDefinition's.
    - ``device``: the PCI address, or empty.
    - ``is_default``: it is on the cluster's own network.
    """

    pod: str
    node: str
    network: str
    definition: str
    ifname: str
    mac: str
    device: str
    addresses: tuple[Address, ...]
    is_default: bool = False

    def to_json(self) -> Json:
        shown = {key: value for key, value in vars(self).items() if key != "is_default"}
        return {**shown, "addresses": list(map(str, self.addresses))}


class Owners:
    """The owner of each address of the cluster's pools."""

    def __init__(self, networks: Sequence[Overview]) -> None:
        self._layouts = {one.network: one.layout for one in networks if one.layout}
        self._blocks = {(one.network, block.index): block for one in networks for block in one.blocks}

    def has(self, network: str) -> bool:
        return network in self._layouts

    def numbered(self, network: str, address: Address) -> tuple[str, Block | None] | None:
        """Return the name of the address's block, and the block if a node owns it; None outside the network's pool."""
        layout = self._layouts.get(network)
        for subnet in map(ip_network, layout.subnets if layout else ()):
            if layout and address in subnet:
                number = int(address) - int(subnet.network_address)
                aside = self._blocks.get((f"{network}/{FOLDER}", number))
                if aside:
                    return f"{aside.network}.{aside.index}", aside
                index = number // layout.size
                return f"{network}.{index}", self._blocks.get((network, index))
        return None

    def blocks(self, one: Attached) -> list[str]:
        found = (self.numbered(one.network, address) for address in one.addresses)
        return list(dict.fromkeys(name for name, _ in filter(None, found)))


def attached(pods: Iterable[Json], definitions: Mapping[str, str]) -> Iterator[Attached]:
    """Yield the interfaces with addresses of these pods, except of those that have ended.

    ``definitions``: each definition's network.  The annotations are untrusted: who may change a pod can change them.
    """
    for pod in pods:
        about = inside(pod, "metadata")
        if inside(pod, "status").get("phase") in _ENDED:
            continue
        for one in _statuses(inside(about, "annotations").get(_STATUS)):
            name = _word(one, "name")
            if addresses := tuple(dict.fromkeys(_addresses(one.get("ips")))):
                yield Attached(
                    pod=f"{_word(about, 'namespace')}/{_word(about, 'name')}",
                    node=_word(inside(pod, "spec"), "nodeName"),
                    network=definitions.get(name, name),
                    definition=name,
                    ifname=_word(one, "interface"),
                    mac=_word(one, "mac"),
                    device=_word(inside(one, "device-info", "pci"), "pci-address"),
                    addresses=addresses,
                    is_default=one.get("default") is True,
                )


def wrong(found: Sequence[Attached], owners: Owners) -> dict[Attached, list[str]]:
    """Return the faults of each interface: a block that its node does not own, and an address that another has too."""
    users = defaultdict[tuple[str, Address], list[Attached]](list)
    for one in found:
        for address in one.addresses:
            users[one.network, address].append(one)
    return {one: faults for one in found if (faults := list(_faults(one, owners, users)))}


def _faults(one: Attached, owners: Owners, users: Mapping[tuple[str, Address], Sequence[Attached]]) -> Iterator[str]:
    for address in one.addresses:
        name, block = owners.numbered(one.network, address) or ("", None)
        if name and (block is None or block.node != one.node):
            owner = f"node {block.node}" if block and block.node else "no node"
            yield f"{address} is in block {name}, which {owner} owns, and the pod is on {one.node}"
        there = users[one.network, address]
        if len(there) > 1:
            others = (other for other in islice(there, _NAMED + 1) if other is not one)
            named = [f"{other.pod}:{other.ifname}" for other in islice(others, _NAMED)]
            more = len(there) - 1 - len(named)
            yield f"{address} is also an address of {', '.join(named)}{f' and {more} more' if more else ''}"


def answer(options: argparse.Namespace, documents: Documents) -> tuple[str, int]:
    """Return the command's output and exit status.  Raises IoFailure, BackendRefused, Unreachable, InvalidConfig."""
    pods = of_all_pods(options.kubeconfig)
    # Later than the pods, because a node claims a block before a pod has an address of it.
    owners = Owners(overviews(documents.listed(POOL), documents.listed(BLOCK)))
    found = [one for one in pods if not one.is_default or owners.has(one.network)]
    faults = wrong(found, owners)
    if options.network:
        found = [one for one in found if {one.network, one.definition} & {*options.network}]
        known = {one.network for one in found} | {one.definition for one in found}
        if missing := [name for name in options.network if name not in known and not owners.has(name)]:
            raise IoFailure(f"no pod has an address of network {', '.join(missing)}; see: hpn ipam pods")
    found.sort(key=lambda one: (one.network, [(ip.version, int(ip)) for ip in one.addresses]))
    status = 1 if any(one in faults for one in found) else 0
    if options.json:
        shown = [one.to_json() | {"blocks": owners.blocks(one), "wrong": faults.get(one, [])} for one in found]
        return as_document({"backend": documents.identity(), "pods": shown}), status
    rows = [
        (one.pod, one.node, one.network, one.ifname, abridged([*map(str, one.addresses)], _SHOWN),
         abridged(owners.blocks(one), _SHOWN) or "-")
        for one in found
    ]  # fmt: skip
    table = Table(("POD", "NODE", "NETWORK", "IFNAME", "ADDRESSES", "BLOCK"), rows)
    lines = [f"wrong: {one.pod}:{one.ifname}: {why}" for one in found for why in faults.get(one, ())]
    return text([table, *lines] if found else ["no pod has an address besides that of the cluster's network"]), status


def of_all_pods(kubeconfig: Path) -> list[Attached]:
    """Return the interfaces of all pods of the API server.  Raises BackendRefused, Unreachable, InvalidConfig."""
    from base.kubernetes import client  # noqa: PLC0415  # it loads TLS

    with closing(client.of_operator(kubeconfig)) as server:
        try:
            definitions = dict(map(_network, server.listed(_DEFINITIONS)))
            return list(attached(server.listed(_PODS, "it knows no pods"), definitions))
        except BackendRefused as e:
            raise BackendRefused(f"{e.msg}; {_MAY}") from e


def _network(definition: Json) -> tuple[str, str]:
    """Return the definition's name, as in the annotation, and its network's; Multus gives a nameless one the
    definition's name."""
    about = inside(definition, "metadata")
    conf = _parsed(inside(definition, "spec").get("config"))
    name = _word(about, "name")
    return f"{_word(about, 'namespace')}/{name}", (_word(conf, "name") if isinstance(conf, dict) else "") or name


def _statuses(annotation: object) -> Iterator[Json]:
    found = _parsed(annotation)
    yield from (one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()


def _addresses(ips: object) -> Iterator[Address]:
    for one in ips if isinstance(ips, list) else ():
        with suppress(ValueError):
            yield ip_address(str(one).partition("/")[0])


def _parsed(document: object) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(document) if isinstance(document, str) else None
    return None


def _word(body: Json, key: str) -> str:
    found = body.get(key)
    return found[:_LONGEST] if isinstance(found, str) else ""
