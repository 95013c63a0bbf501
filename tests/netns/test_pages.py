"""The transcripts of docs/ that need no NIC produce their printed output.  HPN_WRITE_PAGES=1 writes the actual output
into the pages instead, for review before a commit."""

import os
from collections.abc import Callable

import pytest
from support.pages import PAGES, Section, sections
from support.shipped import plugins
from support.topology import Host, Pod, ip
from support.transcripts import Shell

SECTIONS = [
    section for page in PAGES for section in sections(page) if any(block.kind == "console" for block in section.blocks)
]


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_transcript(
    section: Section,
    host: Host,
    make_pod: Callable[[], Pod],
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """The transcript is repeated on a node with two rails; their far ends are "fabric" and "fabric1"."""
    if any(plugin.get("kind") == "ipvlan" for network in section.networks.values() for plugin in plugins(network)):
        request.getfixturevalue("ipvlan")
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    for name in ("rail1", "fabric1"):
        ip("link", "set", name, "up")
    page, wrong = Shell(host, make_pod, capsys, section.networks).retype(section, "console")
    if os.environ.get("HPN_WRITE_PAGES"):
        section.page.write_text(page)
    else:
        assert not wrong, "\n\n".join(wrong)
