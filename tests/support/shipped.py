"""The configurations in conf/, as a runtime passes them to each plugin."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctl.main import HELP

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
NODE = CONF / "devices.yaml"  # the devices of hpn node, not a network
# These are no networks either: they process hpn node's metrics.
PROMETHEUS, RULES, DASHBOARD = (
    CONF / name for name in ("prometheus.yaml", "prometheus-rules.yaml", "grafana-dashboard.json")
)
FILES = sorted(
    path
    for path in CONF.rglob("*")
    if path.suffix in (".conflist", ".conf", ".json", ".yaml", ".yml")
    and path not in (NODE, PROMETHEUS, RULES, DASHBOARD)
)
DEVICE = "0000:3b:02.0"

# Kubernetes wraps a configuration in a NetworkAttachmentDefinition's spec.config: a block of JSON ("config: |" and
# deeper lines) or one quoted line.  Our files use no other syntax of YAML.
_BLOCK = re.compile(r"^(?P<indent> *)config: *\|-?\n(?P<text>(?:(?P=indent) +.*\n|\s*\n)+)", re.MULTILINE)
_QUOTED = re.compile(r"^ *config: *'(?P<text>(?:[^']|'')*)'$", re.MULTILINE)
_DEFINITION = re.compile(r"^kind: *NetworkAttachmentDefinition *$", re.MULTILINE)
_RESOURCE = re.compile(r"^ *k8s.v1.cni.cncf.io/resourceName: *\S+$", re.MULTILINE)


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the network configurations in a file."""
    text = path.read_text()
    if path.suffix not in (".yaml", ".yml"):
        return [json.loads(text)]
    wrapped = [m["text"] for m in _BLOCK.finditer(text)] + [
        m["text"].replace("''", "'") for m in _QUOTED.finditer(text)
    ]
    found = [json.loads(document) for document in wrapped]
    expected = len(_DEFINITION.findall(text))
    assert len(found) == expected, f"{path}: {expected} definitions, {len(found)} configurations"
    return found


def texts() -> dict[str, dict[str, Any]]:
    """Return the network configurations that README and ``hpn help`` show."""
    found = {}
    for name, text in (("README.md", (ROOT / "README.md").read_text()), ("hpn help", HELP)):
        start = text.index('{\n  "cniVersion"' if name == "README.md" else '{"cniVersion"')
        found[name], _ = json.JSONDecoder().raw_decode(text[start:])
    return found


def plugins(network: dict[str, Any], device: str = "") -> Iterator[dict[str, Any]]:
    """Yield the stdin of each plugin of the network, as libcni makes it.

    If Multus knows the network's resource, it adds the device.
    """
    common = {k: network[k] for k in ("cniVersion", "name") if k in network}
    if device:
        common["deviceID"] = device
    for plugin in network.get("plugins", [network]):
        yield common | {k: v for k, v in plugin.items() if k != "capabilities"}


def alone(network: dict[str, Any]) -> dict[str, Any]:
    """Return the network with the addresses of this node alone, for a node without a cluster's API server."""
    for plugin in network.get("plugins", [network]):
        plugin.get("ipam", {}).pop("cluster", None)
    return network


def requests(path: Path, device: str = DEVICE) -> Iterator[dict[str, Any]]:
    """Yield the stdin of each plugin of a file; ``device`` is kubelet's allocation, used if the annotation names a
    resource."""
    asks = path.suffix in (".yaml", ".yml") and bool(_RESOURCE.search(path.read_text()))
    for network in documents(path):
        yield from plugins(network, device if asks else "")
