"""Read README and the pages of docs/: links, configurations and transcripts.

A block ```json that has "plugins" is a network configuration, as a file in /etc/cni/net.d.  A fence such as "json
rail1.d" names another directory beside it.  hpn refuses a block "json wrong".  A block ```console shows commands and
their output: a line that begins with "node# " or "pod1# " is a command on the node or in a pod.  "console lab" needs
the lab's hardware.  tests/cluster runs "sh node" and "sh kubectl" with the files that "yaml NAME" shows;
tests/test_typed.py names the test of each.
"""

import json
import os
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
    """A fenced block: the words of its fence, its text, and the text's offset in the page."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of the second level, with its blocks."""

    page: Path
    title: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return f"{self.page.name}#{anchor(self.title)}"

    @property
    def networks(self) -> dict[str, dict[str, Any]]:
        """Return the network configurations by the other words of their fences."""
        return {b.kind.removeprefix("json").strip(): json.loads(b.text) for b in self.blocks if is_network(b)}


def is_network(block: Block) -> bool:
    return block.kind.startswith("json") and '"plugins"' in block.text


def blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        yield Block(found["kind"].strip(), found["text"], found.start("text"))


def sections(page: Path) -> Iterator[Section]:
    """Split the page at the headings of the second level; the part before the first has the page's name."""
    text = page.read_text()
    fenced = [(found.start(), found.end()) for found in _FENCE.finditer(text)]
    heads = [(0, page.stem)] + [
        (found.start(), found[2])
        for found in _HEADING.finditer(text)
        if len(found[1]) == 2 and not any(start < found.start() < end for start, end in fenced)
    ]
    for (start, title), (end, _) in zip(heads, [*heads[1:], (len(text), "")], strict=True):
        yield Section(page, title, tuple(b for b in blocks(text) if start <= b.start < end))


def shown(page: Path, title: str, kind: str) -> str:
    """The text of the section's only block of that kind."""
    (section,) = (one for one in sections(page) if one.title == title)
    (block,) = (block for block in section.blocks if block.kind == kind)
    return block.text


def commands(transcript: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield for each command its place, its text, and its lines of output."""
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
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.lower()))
    return kept.strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(title) for _, title in _HEADING.findall(_FENCE.sub("", page.read_text()))}


def is_shown(name: str, command: str, printed: str) -> None:
    """Compare the output with the one block of a user's page that begins with this command.  HPN_WRITE_PAGES=1 writes
    the output into the page."""
    path = ROOT / "docs" / "user" / name
    begin = f"```text\nnode# {command}\n"
    head, found, rest = path.read_text().partition(begin)
    assert found
    block, end, rest = rest.partition("```\n")
    if os.environ.get("HPN_WRITE_PAGES"):
        path.write_text(head + begin + printed + end + rest)
    else:
        assert block == printed
