"""The configurations in conf/, as a runtime would give them to each plugin."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctl.main import HELP

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
NODE = CONF / "devices.yaml"  # what hpn node offers, and no network
# Nor are these: what is made of its metrics.
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

# Kubernetes wraps a configuration in a NetworkAttachmentDefinition's spec.config: a block of JSON ("config: |"
# and deeper lines) or one quoted line.  Whatever else YAML can say is not in our files.
_BLOCK = re.compile(r"^(?P<indent> *)config: *\|-?\n(?P<text>(?:(?P=indent) +.*\n|\s*\n)+)", re.MULTILINE)
_QUOTED = re.compile(r"^ *config: *'(?P<text>(?:[^']|'')*)'$", re.MULTILINE)
_DEFINITION = re.compile(r"^kind: *NetworkAttachmentDefinition *$", re.MULTILINE)
_RESOURCE = re.compile(r"^ *k8s.v1.cni.cncf.io/resourceName: *\S+$", re.MULTILINE)


def documents(path: Path) -> list[dict[str, Any]]:
    """The network configurations in a file."""
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
    """The network configurations that a person is shown: README's, and that of ``hpn help``."""
    found = {}
    for name, text in (("README.md", (ROOT / "README.md").read_text()), ("hpn help", HELP)):
        start = text.index('{\n  "cniVersion"' if name == "README.md" else '{"cniVersion"')
        found[name], _ = json.JSONDecoder().raw_decode(text[start:])
    return found


def plugins(network: dict[str, Any], device: str = "") -> Iterator[dict[str, Any]]:
    """What each plugin of the network would get on stdin, as libcni makes it; with the device that Multus adds to a
    network of which it knows the resource."""
    common = {k: network[k] for k in ("cniVersion", "name") if k in network}
    if device:
        common["deviceID"] = device
    for plugin in network.get("plugins", [network]):
        yield common | {k: v for k, v in plugin.items() if k != "capabilities"}


def requests(path: Path, device: str = DEVICE) -> Iterator[dict[str, Any]]:
    """All that all plugins of a file would get; ``device`` is what the kubelet gave the pod, where it asks for one."""
    asks = path.suffix in (".yaml", ".yml") and bool(_RESOURCE.search(path.read_text()))
    for network in documents(path):
        yield from plugins(network, device if asks else "")
