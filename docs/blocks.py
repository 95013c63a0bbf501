# ruff: noqa: INP001  # a folder of pages is not a package
"""make docs: draw the picture of cluster-addresses.md; its numbers are those of ipam/cluster/rules/documents.py."""

import sys
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Final

from ipam.cluster.rules.documents import SIZE, Block

PICTURE: Final = Path(__file__).parent / "user" / "cluster-addresses.svg"
RAILS: Final = ("10.1.0.0/16", "10.2.0.0/16", "fd00:1::/64", "fd00:2::/64")
NODES: Final = {"node1": "#0969da", "node2": "#1a7f37", "node3": "#bf3989"}
# The owners of the first blocks: each node has claimed its first, and node1 a second when that was full.
HELD: Final = {0: "node1", 2: "node3", 3: "node2", 5: "node1"}
SHOWN: Final = 2  # the block that is drawn below
_WIDE, _HIGH, _CELL, _LEFT = 860, 500, 66, 34
_STYLE: Final = """\
<style>
  .page { fill: #ffffff; stroke: #d0d7de }
  .head { font-size: 16px; font-weight: bold; fill: #1f2328 }
  .name { font-weight: bold; fill: #1f2328 }
  .note { font-size: 12px; fill: #59636e }
  .path { font-family: monospace; font-size: 12px; fill: #1f2328 }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .file { fill: #fff8c5; stroke: #bf8700 }
  .free { fill: #ffffff; stroke: #8c959f; stroke-dasharray: 4 3 }
  .calls { stroke: #59636e; fill: none; marker-end: url(#tip) }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
  <path d="M0 0 L8 4 L0 8 z" fill="#59636e"/></marker></defs>"""


def picture() -> str:
    """Return the page's picture, as SVG."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}"'
    parts = [
        f'{head} font-family="sans-serif" font-size="14">',
        "<title>The backend records each block's owner; each node allocates addresses from its own blocks</title>",
        _STYLE,
        f'<rect class="page" x="0.5" y="0.5" width="{_WIDE - 1}" height="{_HIGH - 1}" rx="10"/>',
        *_store(),
        *(line for at, node in enumerate(NODES) for line in _node(at, node)),
        *_addresses(),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _block(index: int) -> Block:
    return Block("rails", index, SIZE, HELD.get(index, ""), "", "")


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{words}</text>'


def _store() -> Iterator[str]:
    """Draw the backend: a cell for each block."""
    yield _text("head", 24, 34, "The backend: the API server of Kubernetes, or an etcd")
    yield '<rect class="box" x="24" y="46" width="812" height="92" rx="5"/>'
    yield _text("path", _LEFT, 65, f"network rails: blocks of {SIZE} host numbers, valid in every range of the network")
    for index in range(12):
        x, node = _LEFT + _CELL * index, HELD.get(index)
        look = f'fill="{NODES[node]}" fill-opacity="0.25" stroke="{NODES[node]}"' if node else 'class="free"'
        yield f'<rect {look} x="{x}" y="76" width="{_CELL - 6}" height="34" rx="3"/>'
        yield _text("path", x + 6, 97, node or "free")
        yield _text("note", x + 6, 126, f"{_block(index).first}-{_block(index).last}")


def _node(at: int, node: str) -> Iterator[str]:
    """Draw a node with its two files, and how it gets a block."""
    x, own = 24 + 276 * at, [_block(index) for index, owner in HELD.items() if owner == node]
    spans = ", ".join(f"{block.first}-{block.last}" for block in own)
    yield f'<path class="calls" d="M{x + 40} 214V144"/>'
    yield _text("note", x + 48, 172, "one call, to claim a block:")
    yield _text("note", x + 48, 188, "when its own blocks are full")
    look = f'fill="#f6f8fa" stroke="{NODES[node]}" stroke-width="2"'
    yield f'<rect {look} x="{x}" y="216" width="260" height="104" rx="5"/>'
    yield _text("name", x + 12, 238, node)
    yield _text("note", x + 66, 238, "ADD and DEL read and write")
    yield f'<rect class="file" x="{x + 12}" y="248" width="236" height="26" rx="3"/>'
    yield _text("path", x + 20, 265, f"blocks: {spans}")
    yield f'<rect class="file" x="{x + 12}" y="282" width="236" height="26" rx="3"/>'
    yield _text("path", x + 20, 299, "leases: each address and its owner")


def _addresses() -> Iterator[str]:
    """Draw one block's addresses: the same numbers in every range."""
    block, node = _block(SHOWN), HELD[SHOWN]
    yield _text("head", 24, 356, f"One block: {block.first} to {block.last} of {node}, on all rails at once")
    for at, text in enumerate(RAILS):
        subnet, y = ip_network(text), 384 + 26 * at
        yield _text("path", _LEFT, y, f"rail {at % 2}  {subnet}")
        first, last = (_address(subnet, number) for number in (block.first, block.last))
        look = f'fill="{NODES[node]}" fill-opacity="0.25"'
        yield f'<rect {look} x="250" y="{y - 16}" width="320" height="22" rx="3"/>'
        yield _text("path", 262, y, f"{first} - {last}")
    yield _text("note", 590, 384, "A pod that is aligned has one")
    yield _text("note", 590, 401, f"number everywhere, for example {block.first + 5}:")
    for at, text in enumerate(RAILS[1:3]):
        yield _text("path", 590, 421 + 18 * at, f"{_address(ip_network(text), block.first + 5)}")
    yield _text("note", 590, 460, "No other node has that number")
    yield _text("note", 590, 477, "on any rail, so nodes need no other check.")


def _address(subnet: IPv4Network | IPv6Network, number: int) -> str:
    return f"{subnet[number]}"


def main() -> int:
    if not PICTURE.exists() or PICTURE.read_text() != picture():
        PICTURE.write_text(picture())
        sys.stdout.write(f"{PICTURE.name}: made anew\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
