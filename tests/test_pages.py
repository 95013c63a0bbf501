"""The pages are whole: links lead somewhere, and configurations are valid."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from support.pages import PAGES, ROOT, anchor, anchors, blocks, is_network, links, sections, without_code
from support.shipped import DEVICE, plugins

from base.protocol.spec import Config
from cni import config
from ipam import config as ipam_config
from ipam.config import Named
from ipam.models import Parent
from ipam.pool import Prefix
from node.config import settings

NETWORKS = [
    pytest.param(network, id=f"{section} {kind}".strip())
    for page in PAGES
    for section in sections(page)
    for kind, network in section.networks.items()
    if kind != "wrong"
]


# Pages of other projects, and files of a report, that code names.
FOREIGN = {"CONVENTIONS.md", "SPEC.md", "docs/configuration-reference.md", "report.md"}
SOURCES = (
    *("base", "hardware", "cni", "ipam", "agent", "node", "ctl", "packaging"),
    *("tests", "netns-fixtures", "bench", "docs", "conf", ".ci", ".github"),
)
NO_SOURCE = (".md", ".svg", ".pyc")
PAGE_NAME = re.compile(r"(?<![\w/.\\-])\w[\w./-]*\.md\b")
LABEL = re.compile(r"(?<!`)\[`?([\w./-]+\.md)`?\]\(([^)\s]+)\)")


def missing(name: str, pages: Iterable[str]) -> bool:
    """Return whether no page has that path, or that end of a path."""
    return name not in FOREIGN and not any(f"/{page}".endswith(f"/{name}") for page in pages)


def mislabelled(text: str) -> list[str]:
    """Return the links whose label names a page file other than the link's target."""
    return [label for label, target in LABEL.findall(text) if not f"/{target.partition('#')[0]}".endswith(f"/{label}")]


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


def test_code_names_pages_that_exist() -> None:
    """Each page that a program, a comment or a manifest names exists.  A name without a folder may be of any folder."""
    pages = [page.relative_to(ROOT).as_posix() for page in PAGES]
    found = [*ROOT.glob("*"), *(path for folder in SOURCES for path in (ROOT / folder).rglob("*"))]
    files = [path for path in found if path.is_file() and path.suffix not in NO_SOURCE and path != Path(__file__)]
    named = {(path, name) for path in files for name in PAGE_NAME.findall(path.read_text(errors="ignore"))}
    assert len(named) > 50
    assert {f"{path.relative_to(ROOT)}: {name}" for path, name in named if missing(name, pages)} == set()
    assert missing("docs/develop/gone.md", pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_label_names_the_page_of_its_link(page: Path) -> None:
    assert mislabelled(without_code(page.read_text())) == []


def test_a_label_of_a_page_that_is_gone_is_found() -> None:
    assert mislabelled("[design/undo.md](state.md), [state.md](../develop/state.md#undo)") == ["design/undo.md"]


def test_every_page_can_be_found() -> None:
    """Links lead from README to every page."""
    seen, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen:
            seen.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if ".md" in link]
    assert set(PAGES) <= seen, f"no link leads to {sorted(p.name for p in set(PAGES) - seen)}"


def of_parent(_conf: Config, named: Named) -> Mapping[Parent, Prefix]:
    """The subnets of a node's interface."""
    of_both = (Prefix("rail0", ip_network(subnet), (), None) for subnet in ("10.56.8.0/24", "2001:db8:56:8::/64"))
    return {place: one for place, one in zip(Parent, of_both, strict=True) if place in named}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_configuration_that_is_shown_is_one_we_take(network: dict[str, Any]) -> None:
    for plugin in plugins(network):
        if plugin["type"] == "hpn":
            needs_device = plugin.get("kind") == "sriov" and "pf" not in plugin
            attach = config.load(plugin | ({"deviceID": DEVICE} if needs_device else {}), "").attach
            assert attach.strict, "an example shows keys we know"
        if plugin.get("ipam", {}).get("type") == "hpn-ipam":
            assert ipam_config.load(plugin, {}, of_parent).sets


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
