"""The configurations we ship are ones we take."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni import config, spec
from ipam import config as ipam_config

CONF = Path(__file__).parents[1] / "conf"
HPN, HPN_IPAM = "hpn", "hpn-ipam"

# Kubernetes wraps a configuration in a NetworkAttachmentDefinition's spec.config: a block of JSON ("config: |"
# and deeper lines) or one quoted line.  Whatever else YAML can say is not in our files.
_BLOCK = re.compile(r"^(?P<indent> *)config: *\|-?\n(?P<text>(?:(?P=indent) +.*\n|\s*\n)+)", re.MULTILINE)
_QUOTED = re.compile(r"^ *config: *'(?P<text>(?:[^']|'')*)'$", re.MULTILINE)


def documents(path: Path) -> list[dict[str, Any]]:
    """The network configurations in a file."""
    text = path.read_text()
    if path.suffix not in (".yaml", ".yml"):
        return [json.loads(text)]
    wrapped = [m["text"] for m in _BLOCK.finditer(text)] + [
        m["text"].replace("''", "'") for m in _QUOTED.finditer(text)
    ]
    found = [json.loads(document) for document in wrapped]
    expected = len(re.findall(r"^kind: *NetworkAttachmentDefinition *$", text, re.MULTILINE))
    assert len(found) == expected, f"{path}: {expected} definitions, {len(found)} configurations"
    return found


def plugins(network: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What each plugin of the network would get on stdin, as libcni makes it."""
    common = {k: network[k] for k in ("cniVersion", "name") if k in network}
    for plugin in network.get("plugins", [network]):
        yield common | {k: v for k, v in plugin.items() if k != "capabilities"}


FILES = sorted(p for p in CONF.rglob("*") if p.suffix in (".conflist", ".conf", ".json", ".yaml", ".yml"))
SHIPPED = [
    pytest.param(plugin, id=f"{path.name}-{at}")
    for path in FILES
    for at, plugin in enumerate(plugin for network in documents(path) for plugin in plugins(network))
]


def test_every_file_has_something_of_ours() -> None:
    assert FILES
    for path in FILES:
        of_ours = [p for network in documents(path) for p in plugins(network) if HPN in (p["type"], *_ipam(p))]
        assert of_ours or any(HPN_IPAM in _ipam(p) for n in documents(path) for p in plugins(n)), path


def _ipam(plugin: dict[str, Any]) -> list[str]:
    return [plugin["ipam"]["type"]] if plugin.get("ipam") else []


@pytest.mark.parametrize("plugin", SHIPPED)
def test_loads(plugin: dict[str, Any]) -> None:
    assert spec.version_of(plugin, "ADD") == plugin["cniVersion"]
    if plugin["type"] == HPN:
        config.load(plugin, "")
        assert plugin.get("strict", True), "an example shows keys we know"
    if HPN_IPAM in _ipam(plugin):
        assert ipam_config.load(plugin, {}).sets


def test_wrapped_configurations_are_found(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "kind: NetworkAttachmentDefinition\n"
        "spec:\n"
        "  config: |\n"
        '    {"name": "a",\n'
        "\n"
        '     "type": "hpn"}\n'
        "---\n"
        "kind: NetworkAttachmentDefinition\n"
        "spec:\n"
        """  config: '{"name": "it''s", "type": "hpn"}'\n"""
    )
    assert documents(path) == [{"name": "a", "type": "hpn"}, {"name": "it's", "type": "hpn"}]
    path.write_text("kind: NetworkAttachmentDefinition\nspec:\n  config: {name: a}\n")
    with pytest.raises(AssertionError, match="1 definitions, 0 configurations"):
        documents(path)
