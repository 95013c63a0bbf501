"""What hpn plan prints, as the programs that it is for read it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.shipped import plugins

from cni import config as cni_config
from ctl.plan.command import answer
from ipam import config as ipam_config
from node import check, config
from node.model import Settings

ADDRESS = "0000:3b:00.2"  # that Multus adds for a resource


@dataclass(frozen=True)
class Planned:
    """The texts, the settings of the device file, each network's plugin, and the label's meaning."""

    text: str
    settings: Settings
    networks: dict[str, dict[str, Any]]
    label: dict[str, Any]

    @property
    def device_file(self) -> Any:
        return yaml.safe_load(self.text.split("---\n")[0])

    def remarks(self) -> list[str]:
        """The comments of the device file."""
        return [line for line in self.text.split("---\n")[0].splitlines() if line.startswith("#")]

    def offered(self, root: Path) -> dict[str, list[str]]:
        """What hpn node --check lists for the file: the devices of each resource.  Nothing else is remarkable."""
        file = root.parent / "planned.yaml"
        file.write_text(self.text.split("---\n")[0])
        text, status = check.answer(file, root=root, as_json=True)
        document = json.loads(text)
        assert (status, document["leftOut"], document["notes"]) == (0, [], [])
        return {one["name"]: [device["id"] for device in one["devices"]] for one in document["resources"]}


def planned(root: Path, *words: str) -> Planned:
    """Run the command.  hpn node, hpn and hpn-ipam accept its documents."""
    text, status = answer(words, root)
    assert status == 0
    first, *definitions, label = text.split("---\n")
    networks = {}
    for definition in map(yaml.safe_load, definitions):
        network = json.loads(definition["spec"]["config"])
        named = definition["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/resourceName")
        (plugin,) = plugins(network, ADDRESS if named else "")
        cni_config.load(plugin, "")
        assert ipam_config.load(plugin, {}).sets
        assert network["name"] == definition["metadata"]["name"]
        networks[network["name"]] = plugin | {"resource": named}
    meaning = yaml.safe_load(label)
    assert meaning["data"]["label"] == "hpn.io/type"
    settings = config.settings(first.encode(), is_yaml=True)
    assert not settings.left_out
    return Planned(text, settings, networks, json.loads(meaning["data"]["values"]))
