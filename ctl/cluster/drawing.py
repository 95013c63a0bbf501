"""What the cluster's store has of a network, as lines and tables.  Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ctl.cluster.own import Own
from ctl.screen import Table, moment
from ipam.cluster.rules.documents import SAID, Block
from ipam.cluster.rules.overview import Overview
from ipam.ranges import Span

_BAR: Final = 30
_SPANS: Final = 3  # so many spans of a node's addresses are shown, and how many more there are


def pictured(survey: Overview, lost: Mapping[int, str]) -> Iterator[Table | str]:
    """A bar, and a row for each node.  ``lost`` are blocks that only this node's file says it has, each with why."""
    yield _head(survey)
    if survey.count is not None:
        yield f"  {_bar(survey.count, len(survey.blocks), len(survey.suspects))}"
    if survey.blocks:
        rows = [_of_node(survey, node, blocks) for node, blocks in survey.nodes.items()]
        yield Table(("  NODE", "BLOCKS", "ADDRESSES", "STATE"), rows)
    yield from (f"  lost: block {index} of this node: {why}" for index, why in lost.items())
    yield from (f"  wrong: {why}" for why in survey.wrong)
    yield ""


def listed(overviews: Sequence[Overview]) -> Table:
    """A row for each block."""
    rows = [
        (f"{one.network}.{b.index}", b.node or "-", _addresses(one, [b]), _state([b]), _taken(b), b.whose or "-")
        for one in overviews
        for b in one.blocks
    ]
    header = ("BLOCK", "NODE", "ADDRESSES", "STATE", "TAKEN", "WHOSE")
    named = any(b.whose for one in overviews for b in one.blocks)
    return Table(header, rows) if named else Table(header[:-1], [row[:-1] for row in rows])


def of_node(blocks: Sequence[Own]) -> Table:
    """A row for each block of this node."""
    rows = [
        (
            f"{one.network}.{one.block.index}",
            _some(one.spans),
            one.block.state,
            f"{one.held}",
            "-" if one.free is None else f"{one.free}",
            "yes" if one.block.taken else "-",
        )
        for one in blocks
    ]
    return Table(("BLOCK", "ADDRESSES", "STATE", "HELD", "FREE", "TAKEN"), rows)


def _head(survey: Overview) -> str:
    if survey.grid is None:
        return f"{survey.network}: no grid, so nobody knows which addresses its blocks are"
    return (
        f"{survey.network}: blocks of {survey.grid.size} host numbers in {', '.join(survey.grid.subnets) or 'nothing'}"
    )


def _bar(count: int, held: int, suspects: int) -> str:
    filled, doubted = -(-_BAR * held // max(count, 1)), -(-_BAR * suspects // max(count, 1))
    bar = "#" * (filled - doubted) + "?" * doubted
    free = count - held if count < 10**9 else f"2^{(count - held).bit_length() - 1}"
    words = ", ".join(filter(None, (f"{held} held", f"{suspects} of them suspect" if suspects else "", f"{free} free")))
    return f"[{bar[:_BAR]:.<{_BAR}}] {words}"


def _of_node(survey: Overview, node: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    return f"  {node or '(none)'}", f"{len(blocks)}", _addresses(survey, blocks), _state(blocks)


def _addresses(survey: Overview, blocks: Sequence[Block]) -> str:
    return _some(survey.shown(blocks))


def _some(spans: Sequence[Span]) -> str:
    more = f" and {len(spans) - _SPANS} more" if len(spans) > _SPANS else ""
    return ", ".join(map(str, spans[:_SPANS])) + more or "-"


def _state(blocks: Sequence[Block]) -> str:
    suspects = [block.suspect for block in blocks if block.suspect]
    if blocks and not blocks[0].node:
        return f"free since {moment(blocks[0].free)}" if len(blocks) == 1 else "free"
    if not suspects:
        return "held"
    some = f"{len(suspects)} of {len(blocks)} " if len(suspects) < len(blocks) else ""
    since = [when for when in suspects if when != SAID]
    return f"{some}suspect" + (f" since {moment(min(since))}" if since else "")


def _taken(block: Block) -> str:
    return "yes" if block.taken else "-"
