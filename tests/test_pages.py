"""The pages are whole: links lead somewhere, and configurations are valid."""

from pathlib import Path
from typing import Any

import pytest
from support.pages import PAGES, ROOT, anchor, anchors, blocks, is_network, links, sections
from support.shipped import DEVICE, plugins

from cni import config
from ipam import config as ipam_config
from node.config import settings

NETWORKS = [
    pytest.param(network, id=f"{section} {kind}".strip())
    for page in PAGES
    for section in sections(page)
    for kind, network in section.networks.items()
    if kind != "wrong"
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, name = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, and there is no such file"
        if name:
            assert name in anchors(target), f"{page.name} links to {link}, and there is no such heading"


def test_every_page_can_be_found() -> None:
    """Links lead from README to every page; a moved page leaves one line for links from outside."""
    moved = {page for page in PAGES if page.read_text().startswith("This page is now [")}
    seen, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if ".md" in link]
    assert set(PAGES) - moved <= seen, f"no link leads to {sorted(p.name for p in set(PAGES) - moved - seen)}"


@pytest.mark.parametrize("network", NETWORKS)
def test_a_configuration_that_is_shown_is_one_we_take(network: dict[str, Any]) -> None:
    for plugin in plugins(network):
        if plugin["type"] == "hpn":
            needs_device = plugin.get("kind") == "sriov" and "pf" not in plugin
            attach = config.load(plugin | ({"deviceID": DEVICE} if needs_device else {}), "").attach
            assert attach.strict, "an example shows keys we know"
        if plugin.get("ipam", {}).get("type") == "hpn-ipam":
            assert ipam_config.load(plugin, {}).sets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_file_of_hpn_node_that_is_shown_is_one_we_take(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.kind == "yaml" and block.text.startswith("resources:"):
            assert not settings(block.text.encode(), is_yaml=True).left_out


def test_every_transcript_has_its_configuration() -> None:
    for page in PAGES:
        for section in sections(page):
            if any(block.kind.startswith("console") for block in section.blocks):
                assert section.networks, f"{section} shows a transcript, and not the configuration it is of"


def test_pages_are_read_as_github_reads_them() -> None:
    assert anchor("A DEL that is told less") == "a-del-that-is-told-less"
    assert anchor("`policyRouting`, and more") == "policyrouting-and-more"
    text = 'a\n```json\n{"plugins": []}\n```\nb\n```console lab\nnode# true\n```\n'
    first, second = blocks(text)
    assert (is_network(first), second.kind, second.text) == (True, "console lab", "node# true\n")
