"""Count and name what the backend holds of each network, for people and metrics.  Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from ipam.cluster import Document
from ipam.cluster.rules.documents import Block, PoolLayout, layout_name, overlapping
from ipam.cluster.rules.network import FOLDER
from ipam.ranges import Span, common, joined, whole

_SPAN: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


@dataclass(frozen=True)
class Overview:
    """A network as the backend holds it.

    - ``layout``: its pool layout; None if only blocks are left.
    - ``wrong``: the documents that cannot be read, described in words.
    - ``aside``: for a network of reserved numbers, those numbers ("256-511").
    - ``overlaps``: its subnets that other networks have too, described in words.
    """

    network: str
    layout: PoolLayout | None
    blocks: tuple[Block, ...]
    wrong: tuple[str, ...] = ()
    aside: str = ""
    overlaps: tuple[str, ...] = ()

    @property
    def count(self) -> int | None:
        """The number of blocks in its subnets; None without a layout.

        An attachment gets one address of each family, so the smallest family counts.
        """
        if self.layout is None:
            return None
        most = dict[int, int]()
        for subnet in self.layout.subnets:
            version = ip_network(subnet).version
            most[version] = max(most.get(version, 0), blocks_in(subnet, self.layout.size))
        aside = _SPAN.fullmatch(self.aside)
        return min([*most.values(), *([int(aside[2]) - int(aside[1]) + 1] if aside else [])], default=0)

    @property
    def nodes(self) -> dict[str, list[Block]]:
        """The blocks by owner, both sorted."""
        found = dict[str, list[Block]]()
        for block in sorted(self.blocks, key=lambda one: (one.node, one.index)):
            found.setdefault(block.node, []).append(block)
        return found

    @property
    def suspects(self) -> list[Block]:
        return [block for block in self.blocks if block.suspect]

    def to_json(self) -> Json:
        return {
            "network": self.network,
            "blockSize": self.layout and self.layout.size,
            "subnets": list(self.layout.subnets) if self.layout else [],
            "count": self.count,
            "held": len(self.blocks),
            "suspect": len(self.suspects),
            "nodes": [{"node": node, "blocks": len(blocks)} for node, blocks in self.nodes.items()],
            "blocks": [self.described(block) for block in self.blocks],
            **({"overlaps": list(self.overlaps)} if self.overlaps else {}),
            **({"wrong": list(self.wrong)} if self.wrong else {}),
        }

    def described(self, block: Block) -> Json:
        """Return a block for ``--json``: its document, and its addresses."""
        return {**block.to_json(), "addresses": list(map(str, self.spans([block])))}

    def spans(self, blocks: Sequence[Block]) -> list[Span]:
        """Return the blocks' addresses in every subnet, with neighbours joined."""
        return [span for subnet in self._subnets for span in spans_in(subnet, blocks)]

    def shown(self, blocks: Sequence[Block]) -> Sequence[Span]:
        """Return the blocks' addresses in the first subnet with any; those in other subnets follow from them."""
        return next(filter(None, (spans_in(subnet, blocks) for subnet in self._subnets)), ())

    @property
    def _subnets(self) -> tuple[str, ...]:
        return self.layout.subnets if self.layout else ()


def overviews(layouts: Sequence[Document], blocks: Sequence[Document]) -> list[Overview]:
    """Return the networks of these documents, sorted by name."""
    wrong, found, held = dict[str, list[str]](), dict[str, PoolLayout](), dict[str, list[Block]]()
    for document in layouts:
        try:
            found[document.name] = PoolLayout.of(document)
        except RecordUnreadable as e:
            wrong.setdefault(document.name, []).append(e.msg)
    for document in blocks:
        name = document.name.rpartition(".")[0]
        try:
            held.setdefault(name, []).append(Block.of(document))
        except RecordUnreadable as e:
            wrong.setdefault(name, []).append(e.msg)
    aside = {f"{layout.network}/{FOLDER}": layout.sticky for layout in found.values()}
    every = list[Overview]()
    for name in {*found, *held, *wrong}:
        layout, own = found.get(name), sorted(held.get(name, []), key=lambda one: one.index)
        network = layout.network if layout else own[0].network if own else name
        shared = overlapping(network, layout.subnets, found.values()) if layout and "/" not in network else ()
        overlaps = tuple(f"{one} is {theirs} of network {other} too" for one, other, theirs in shared)
        every.append(
            Overview(network, layout, tuple(own), tuple(wrong.get(name, [])), aside.get(network, ""), overlaps)
        )
    return sorted(every, key=lambda one: one.network)


def named(overviews: Sequence[Overview], network: str) -> Overview | None:
    return next((one for one in overviews if network in (one.network, layout_name(one.network))), None)


def blocks_in(subnet: str, size: int) -> int:
    """Return how many blocks of that size begin in the subnet."""
    return -(-ip_network(subnet).num_addresses // size)


def spans_in(subnet: str, blocks: Iterable[Block]) -> tuple[Span, ...]:
    """Return the subnet's addresses with the blocks' numbers, in order, with neighbours joined.

    Numbers beyond the subnet's end are left out.
    """
    there = whole(ip_network(subnet))
    spans = (Span(there.version, there.first + block.first, there.first + block.last) for block in blocks)
    return joined(common(spans, [there]))
