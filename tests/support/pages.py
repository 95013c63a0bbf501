"""The pages of README and docs/: their links, the configurations in them, and their transcripts.

A block ```json that has "plugins" is a network configuration, as a file in /etc/cni/net.d, or in the directory beside
it that the fence names ("json rail1.d"); "json wrong" is one that hpn refuses.  A block ```console is what was typed,
and what came out: a line that begins with "node# " or "pod1# " is a command on the node or in a pod.  "console lab"
needs the lab's hardware.  "sh node" and "sh kubectl" are typed in tests/cluster, with the files that "yaml NAME" shows.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "conf").glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) +(.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
_PROMPT = re.compile(r"^(node|pod\d)# (.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: what the fence says it is, and the text's place in the page."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of the second level, with its transcripts."""

    page: Path
    title: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return f"{self.page.name}#{anchor(self.title)}"

    @property
    def networks(self) -> dict[str, dict[str, Any]]:
        """By what else the fence says."""
        return {b.kind.removeprefix("json").strip(): json.loads(b.text) for b in self.blocks if is_network(b)}


def is_network(block: Block) -> bool:
    return block.kind.startswith("json") and '"plugins"' in block.text


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        yield Block(found["kind"].strip(), found["text"], found.start("text"))


def sections(page: Path) -> Iterator[Section]:
    """Split at the headings of the second level; what stands before the first is the page's own."""
    text = page.read_text()
    fenced = [(found.start(), found.end()) for found in _FENCE.finditer(text)]
    heads = [(0, page.stem)] + [
        (found.start(), found[2])
        for found in _HEADING.finditer(text)
        if len(found[1]) == 2 and not any(start < found.start() < end for start, end in fenced)
    ]
    for (start, title), (end, _) in zip(heads, [*heads[1:], (len(text), "")], strict=True):
        yield Section(page, title, tuple(b for b in blocks(text) if start <= b.start < end))


def commands(transcript: str) -> Iterator[tuple[str, str, list[str]]]:
    """Where, what, and the lines that came out."""
    where, command, out = "", "", list[str]()
    for line in transcript.splitlines():
        if prompt := _PROMPT.match(line):
            if where:
                yield where, command, out
            where, command, out = prompt[1], prompt[2], []
        else:
            assert where, f"a transcript begins with a command: {line!r}"
            out.append(line)
    if where:
        yield where, command, out


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def links(page: Path) -> list[str]:
    return _LINK.findall(without_code(page.read_text()))


def anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.lower()))
    return kept.strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(title) for _, title in _HEADING.findall(_FENCE.sub("", page.read_text()))}
