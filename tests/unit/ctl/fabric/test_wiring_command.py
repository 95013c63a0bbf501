"""hpn fabric wiring: its output, exit statuses, and its request to the API server."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.sysfs_tree import Tree
from support.tls_server import Asked, Server, Told
from support.wired import Wired

from ctl.fabric import command
from ctl.fabric.wiring import command as wiring
from hardware import neighbors
from hardware.neighbors import Neighbor

PAGE = 500


class Pages:
    """The API server's list of slices, page by page."""

    def __init__(self, wired: Wired) -> None:
        self.slices, self.queries = list(wired.slices()), list[dict[str, list[str]]]()

    def route(self, asked: Asked) -> Told:
        query = parse_qs(urlsplit(asked.path).query)
        self.queries.append(query)
        begin = int(query.get("continue", ["0"])[0])
        end = begin + int(query["limit"][0])
        more: dict[str, Any] = {"continue": f"{end}"} if end < len(self.slices) else {}
        return Told(200, {"metadata": more, "items": self.slices[begin:end]})


def looked(api: tuple[Server, Path], wired: Wired, *words: str) -> tuple[str, int, Pages]:
    made = Pages(wired)
    api[0].route = made.route
    return *command.answer(["wiring", "--kubeconfig", f"{api[1]}", *words]), made


def test_a_table(asked: tuple[Server, Path]) -> None:
    text, status, pages = looked(asked, Wired(nodes=4, rails=2, size=2))
    assert status == 0
    assert [line.split() for line in text.splitlines()] == [
        ["GROUP", "RAIL", "LEAF", "NODES", "GB/S", "MAX", "FRAME", "VLAN"],
        ["1", "0", "pod0-leaf0", "2/2", "400", "9216", "100"],
        ["1", "1", "pod0-leaf1", "2/2", "400", "9216", "100"],
        ["2", "0", "pod1-leaf0", "2/2", "400", "9216", "100"],
        ["2", "1", "pod1-leaf1", "2/2", "400", "9216", "100"],
        ["no", "finding:", "4", "nodes,", "8", "ports", "with", "a", "neighbor"],
    ]
    assert pages.queries == [{"fieldSelector": ["spec.driver=hpn-cni.io"], "limit": [f"{PAGE}"]}]


def test_a_finding(asked: tuple[Server, Path]) -> None:
    wired = Wired(rails=4)
    wired.exchange("node7", 2, 3)
    text, status, _ = looked(asked, wired)
    assert status == 1
    assert "\nnode7: rails 2 and 3 are exchanged: rail2 is at pod0-leaf3 Eth8/1" in text
    text, status, _ = looked(asked, wired, "--json")
    document = json.loads(text)
    assert status == 1
    assert [one["kind"] for one in document["findings"]] == ["exchanged"]
    assert document["groups"][0]["expected"] == {f"{rail}": f"pod0-leaf{rail}" for rail in range(4)}
    assert len(document["wires"]) == 32


def test_a_thousand_nodes(asked: tuple[Server, Path]) -> None:
    """8,000 slices with 64,000 VFs come in 16 pages."""
    wired = Wired(nodes=1000, vfs=8)
    wired.exchange("node7", 2, 3)
    began = time.monotonic()
    text, status, pages = looked(asked, wired)
    print(f"1,000 nodes of 8 rails with 8 VFs: {time.monotonic() - began:.1f} s, with the server's part")
    assert (status, len(pages.queries)) == (1, 16)
    assert len([line for line in text.splitlines() if "exchanged" in line]) == 1


def test_it_could_not_look(asked: tuple[Server, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wired = Wired(nodes=1)
    wired.unplug("node0")
    assert looked(asked, wired)[:2] == ("", 2)
    assert "hpn fabric wiring: no ResourceSlice of hpn-cni.io names a leaf; set lldp: true" in capsys.readouterr().err
    asked[0].route = lambda _: Told(403, {"message": "no"})
    assert command.answer(["wiring", "--kubeconfig", f"{asked[1]}"]) == ("", 2)
    assert "does not list resourceslices" in capsys.readouterr().err
    asked[0].route = lambda _: Told(404, {})
    assert command.answer(["wiring", "--kubeconfig", f"{asked[1]}"]) == ("", 2)
    assert "which Kubernetes has from 1.34 on" in capsys.readouterr().err
    assert command.answer(["wiring", "--kubeconfig", f"{tmp_path}/none"]) == ("", 2)


def test_this_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "sys")
    for number in range(3):
        tree.netdev(f"rail{number}", tree.pci(f"fffe:{number:02x}:00.0"))
    options = command.parser().parse_args(["wiring"])
    assert wiring.answer(options, tree.root) == ("", 2)
    assert "hpn node hears no neighbor on this node; set lldp: true" in capsys.readouterr().err
    heard = {
        f"fffe:{number:02x}:00.0": Neighbor("mac", "c", "ifname", f"Eth{number}", f"leaf{number}", ttl=9, speed=400)
        for number in range(2)
    }
    neighbors.write(heard, neighbors.file_of(tree.root))
    text, status = wiring.answer(options, tree.root)
    assert status == 1
    assert [line.split()[:5] for line in text.splitlines()[:4]] == [
        ["PF", "RAIL", "LEAF", "PORT", "GB/S"],
        ["rail0", "0", "leaf0", "Eth0", "400"],
        ["rail1", "1", "leaf1", "Eth1", "400"],
        ["rail2", "2", "-", "-", "-"],
    ]
    assert "rail 2 (rail2) has no neighbor, and others have one" in text
