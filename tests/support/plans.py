"""What hpn plan prints, as the programs that it is for read it; and trees of NICs for it.

The trees are drawn in the format of /sys.  None was recorded on a machine.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.shipped import plugins
from support.sysfs_tree import Tree

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
    classes: list[dict[str, Any]]

    @property
    def device_file(self) -> Any:
        return yaml.safe_load(self.text.split("---\n")[0])

    def remarks(self) -> list[str]:
        """The comments of the device file."""
        return [line for line in self.text.split("---\n")[0].splitlines() if line.startswith("#")]

    def offered(self, root: Path, folder: Path | None = None) -> dict[str, list[str]]:
        """What hpn node --check lists for the file: the devices of each resource.  Nothing else is remarkable."""
        file = (folder or root.parent) / "planned.yaml"
        file.write_text(self.text.split("---\n")[0])
        text, status = check.answer(file, root=root, as_json=True)
        document = json.loads(text)
        assert (status, document["leftOut"], document["notes"]) == (0, [], [])
        return {one["name"]: [device["id"] for device in one["devices"]] for one in document["resources"]}


def planned(root: Path, *words: str) -> Planned:
    """Run the command.  hpn node, hpn and hpn-ipam accept its documents."""
    text, status = answer(words, root)
    assert status == 0
    first, *rest = text.split("---\n")
    by_kind = defaultdict[str, list[Any]](list)
    for one in filter(None, map(yaml.safe_load, rest)):  # without a network, its document is empty
        by_kind[one["kind"]].append(one)
    networks = {}
    for definition in by_kind["NetworkAttachmentDefinition"]:
        network = json.loads(definition["spec"]["config"])
        named = definition["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/resourceName")
        (plugin,) = plugins(network, ADDRESS if named else "")
        cni_config.load(plugin | ({"deviceID": ADDRESS} if "rails" in plugin else {}), "")
        assert ipam_config.load(plugin, {}).sets
        assert network["name"] == definition["metadata"]["name"]
        networks[network["name"]] = plugin | {"resource": named}
    (meaning,) = by_kind["ConfigMap"]
    assert meaning["data"]["label"] == "hpn.io/type"
    (values, status) = answer([*words, "--helm"], root)
    assert status == 0
    _compare(yaml.safe_load(values), first, networks, json.loads(meaning["data"]["values"]))
    settings = config.settings(first.encode(), is_yaml=True)
    assert not settings.left_out
    return Planned(text, settings, networks, json.loads(meaning["data"]["values"]), by_kind["DeviceClass"])


def _compare(values: Any, devices: str, networks: dict[str, dict[str, Any]], label: dict[str, Any]) -> None:
    """Assert that the values for Helm are the other documents."""
    assert values["devices"] == devices
    assert values["label"] == {"enabled": True, "name": "hpn.io/type", "values": label}
    assert values.get("provision", False) is ("pfs:" in devices or "rdmaNamespaces:" in devices)
    assert values.get("claims", {}) == ({"enabled": True} if "by: dra" in devices else {})
    assert values.get("clusterAddresses", {}) == ({"enabled": True} if networks else {})
    found = {}
    for one in values["networks"]:
        made = {"cniVersion": "1.0.0", "name": one["name"]} | one["config"]
        (plugin,) = plugins(made, ADDRESS if "resourceName" in one else "")
        found[one["name"]] = plugin | {"resource": one.get("resourceName")}
    assert found == networks


# No machine has this PCI domain.
OVS = "Open vSwitch owns its interface and may carry the host's traffic through it"
INFINIBAND = {"class": "0x020700"}
PFS = [f"fffe:{bus:02x}:00.0" for bus in range(0x18, 0x20)]


def add(tree: Tree, address: str, name: str = "", *, rdma: str = "", **values: Any) -> Path:
    """Add a NIC with an interface and an RDMA device."""
    path = tree.pci(address, **values)
    if name:
        tree.netdev(name, path, **({"type": 32} if values.get("class") == "0x020700" else {}))
    if rdma:
        tree.rdma(rdma, path, int(rdma.rpartition("_")[2]))
    return path


def vfs(tree: Tree, pf: str, count: int) -> list[str]:
    """Add VFs of a PF, with the PF's kind of link."""
    name = next((tree.root / "bus/pci/devices" / pf / "net").iterdir())
    kind = (name / "type").read_text().strip()
    above = name.resolve().parents[2].relative_to(tree.root.resolve() / "devices")
    made = [f"{pf[:-4]}{1 + number // 8:02x}.{number % 8}" for number in range(count)]
    for number, address in enumerate(made):
        path = tree.pci(address, pf=pf, above=f"{above}", **({"class": "0x020700"} if kind == "32" else {}))
        tree.netdev(f"{name.name}v{number}", path, type=kind)
        tree.rdma(f"{name.name}_{number}", path, 100 + int(pf[5:7], 16) * 100 + number)
    return made


def bond(tree: Tree, *members: str) -> None:
    tree.netdev("bond0", below=members)
    (tree.root / "class/net/bond0/bonding").mkdir()
    for name in members:
        (tree.root / "class/net" / name / "master").symlink_to("../bond0")


def dgx(tree: Tree) -> None:
    """Drawn after a DGX: eight NICs, each below one switch with a GPU, four on each NUMA node.  And a PF that Open
    vSwitch owns."""
    for number, address in enumerate(PFS):
        above, numa = f"pcifffe:{number:02x}/fffe:{number:02x}:01.0", number // 4
        add(tree, address, f"rail{number}", rdma=f"mlx5_{number}", above=f"{above}/fffe:{number:02x}:02.0",
            numa_node=numa, sriov_totalvfs=16)  # fmt: skip
        tree.pci(f"fffe:{number + 64:02x}:00.0", above=f"{above}/fffe:{number:02x}:03.0", driver="nvidia",
                 numa_node=numa, **{"class": "0x030200"})  # fmt: skip
    add(tree, "fffe:f0:00.0", "eno1", sriov_totalvfs=8)
    tree.netdev("ovs-system", below=["eno1"])
