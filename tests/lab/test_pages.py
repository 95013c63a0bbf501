"""The transcripts of docs/ that need VFs produce the output on the page."""

from collections.abc import Callable

import pytest
from guest.node import Node
from support.pages import PAGES, Section, sections
from support.topology import Pod
from support.transcripts import Shell

KIND = "console lab"
SECTIONS = [
    section for page in PAGES for section in sections(page) if any(block.kind == KIND for block in section.blocks)
]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_transcript(
    section: Section, node: Node, make_pod: Callable[[], Pod], capsys: pytest.CaptureFixture[str]
) -> None:
    _, wrong = Shell(node, make_pod, capsys, section.networks).retype(section, KIND)
    assert not wrong, "\n\n".join(wrong)
