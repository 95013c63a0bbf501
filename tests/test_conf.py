"""The shipped configurations are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.shipped import DEVICE, FILES, NODE, documents, plugins, requests, texts

from base.protocol import spec
from cni import config
from ipam import config as ipam_config
from node.config import own, settings

HPN, HPN_IPAM = "hpn", "hpn-ipam"
SHIPPED = [pytest.param(plugin, id=f"{path.name}-{at}") for path in FILES for at, plugin in enumerate(requests(path))]
SHOWN = [pytest.param(plugin, id=name) for name, network in texts().items() for plugin in plugins(network)]


def test_every_file_has_something_of_ours() -> None:
    assert FILES
    for path in FILES:
        of_ours = [p for network in documents(path) for p in plugins(network) if HPN in (p["type"], *_ipam(p))]
        assert of_ours or any(HPN_IPAM in _ipam(p) for n in documents(path) for p in plugins(n)), path


def _ipam(plugin: dict[str, Any]) -> list[str]:
    return [plugin["ipam"]["type"]] if plugin.get("ipam") else []


@pytest.mark.parametrize("plugin", SHIPPED + SHOWN)
def test_loads(plugin: dict[str, Any]) -> None:
    assert spec.version_of(plugin, "ADD") == plugin["cniVersion"]
    assert plugin["cniVersion"] == spec.WIDELY_TAKEN, "containerd 1.6 and podman 4 take nothing newer"
    if plugin["type"] == HPN:
        config.load({"deviceID": DEVICE, **plugin} if "rails" in plugin else plugin, "")
        assert plugin.get("strict", True), "an example shows keys we know"
    if HPN_IPAM in _ipam(plugin):
        assert ipam_config.load(plugin, {}).sets


def test_the_nodes_file_has_every_kind() -> None:
    found = settings(NODE.read_bytes(), is_yaml=True)
    assert (found.dialect, found.left_out, found.notes) == ("hpn", (), ())
    assert set(re.findall(r"^  kind: (\w+)$", NODE.read_text(), re.MULTILINE)) == set(own.KINDS)


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
