"""hpn ipam blocks, and the blocks in hpn ipam show, from this node's files without the store."""

import json
from pathlib import Path

import pytest
from support.ipam_calls import Net

from ctl.main import main
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import LOST, NodeBlocks, OwnedBlock

SUBNETS = ("10.1.0.0/24", "fd00:1::/64")


def test_this_nodes_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts come from the leases, without the store."""
    net = Net(tmp_path, {"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.15", "exclude": ["10.1.0.9"]}]]})
    for cid in "abc":
        net.add(cid)
    mine = (OwnedBlock(0, "u", "node1"), OwnedBlock(2, "v", "node1", taken=True))
    has = NodeBlocks("net", "kubernetes", "cluster-1", "node1", "uid-node1", 16, SUBNETS, mine)
    node_blocks.write(net.dir, has)
    words = ["hpn", "ipam", "blocks", "--data-dir", str(tmp_path / "ipam")]
    assert main(words) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["BLOCK", "ADDRESSES", "STATE", "HELD", "FREE", "TAKEN"],
        ["net.0", "10.1.0.0-10.1.0.15,", "fd00:1::-fd00:1::f", "held", "3", "10", "-"],
        ["net.2", "10.1.0.32-10.1.0.47,", "fd00:1::20-fd00:1::2f", "held", "0", "0", "yes"],
    ]
    assert main(["hpn", "ipam", "show", *words[3:]]) == 0
    assert "nodes share this pool, and this node allocates from its own blocks (0, 2)" in capsys.readouterr().out
    assert main(["hpn", "ipam", "show", *words[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["networks"][0]["blocks"] == [0, 2]
    node_blocks.write(net.dir, has.having(OwnedBlock(2, "v", "node1", LOST)))
    assert main([*words, "net", "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["blocks"]
    assert (first["held"], first["free"], second["state"]) == (3, 10, "lost")


def test_derived_addresses_need_no_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their range is recorded like others, and leaves the block's numbers free."""
    ranges = [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:2::/64", "embedIPv4": True}]]
    net = Net(tmp_path, {"ranges": ranges})
    net.add("a")
    has = NodeBlocks("net", "etcd", "cluster-1", "node1", "", 16, SUBNETS[:1], (OwnedBlock(0, "u", "node1"),))
    node_blocks.write(net.dir, has)
    assert main(["hpn", "ipam", "blocks", "--data-dir", str(tmp_path / "ipam"), "--json"]) == 0
    (block,) = json.loads(capsys.readouterr().out)["blocks"]
    assert (block["held"], block["free"]) == (1, 13)


def test_more_subnets_than_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An attachment with an address of each subnet uses one host number of the block."""
    subnets = tuple(f"10.{n}.0.0/24" for n in range(1, 6))
    net = Net(tmp_path, {"ranges": [[{"subnet": subnet, "rangeEnd": f"{subnet[:-4]}15"}] for subnet in subnets]})
    for cid in "abc":
        net.add(cid)
    has = NodeBlocks("net", "etcd", "cluster-1", "node1", "", 16, subnets, (OwnedBlock(0, "u", "node1"),))
    node_blocks.write(net.dir, has)
    words = ["hpn", "ipam", "blocks", "--data-dir", str(tmp_path / "ipam")]
    assert main(words) == 0
    shown = "net.0  10.1.0.0-10.1.0.15, 10.2.0.0-10.2.0.15, 10.3.0.0-10.3.0.15 and 2 more  held   3     11    -"
    assert capsys.readouterr().out.splitlines()[1] == shown
    assert main([*words, "--json"]) == 0
    (block,) = json.loads(capsys.readouterr().out)["blocks"]
    assert (block["held"], block["free"], len(block["addresses"])) == (3, 11, 5)


def test_a_file_of_blocks_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """hpn ipam show lists leases even if the file of blocks is unreadable."""
    net = Net(tmp_path, {"ranges": [[{"subnet": "10.1.0.0/24"}]]})
    net.add("a")
    (net.dir / node_blocks.FILE).write_text("{")
    words = ["--data-dir", str(tmp_path / "ipam")]
    assert main(["hpn", "ipam", "show", *words]) == 0
    said = capsys.readouterr().out
    assert "its own blocks (unreadable)" in said
    assert "10.1.0.2" in said
    assert main(["hpn", "ipam", "blocks", *words]) == 1
    assert "hpn ipam: " in capsys.readouterr().err


def test_no_blocks_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["hpn", "ipam", "blocks", "--data-dir", str(tmp_path)]
    assert main(words) == 0
    assert "no block of a shared pool" in capsys.readouterr().out
    assert main([*words, "nets"]) == 1
    assert "no blocks of network nets" in capsys.readouterr().err
