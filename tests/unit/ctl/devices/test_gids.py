"""hpn gids: the text of show_gids, on trees in the format of /sys."""

import json
from pathlib import Path
from textwrap import indent

import pytest
from support.rdma_tree import ZERO, gid, hca, port
from support.sysfs_tree import Tree

from base.protocol.errors import LinkUnavailable
from ctl.devices.gids import answer

HEADER = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n"
LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe21:03da"
MAPPED = "0000:0000:0000:0000:0000:ffff:c0a8:d3f2"
GLOBAL = "fd00:0000:0000:0000:0ac0:ebff:fe21:03da"
PAGE = Path(__file__).parents[4] / "docs" / "user" / "rdma.md"
V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


def table(tree: Tree, *words: str) -> list[str]:
    """Return the lines below the header."""
    text, status = answer(words, tree.root)
    assert (text.startswith(HEADER), status) == (True, 0)
    return text.removeprefix(HEADER).splitlines()


def test_a_table(tree: Tree) -> None:
    """The output equals that of show_gids for a NIC with an address, byte by byte."""
    one = port(hca(tree, "mlx5_0", tree.pci("0000:3b:00.0")))
    for index, (value, kind) in enumerate(((LINK_LOCAL, V1), (LINK_LOCAL, V2), (MAPPED, V1), (MAPPED, V2))):
        gid(one, index, value, kind, "rdma0")
    golden = [
        f"mlx5_0\t1\t0\t{LINK_LOCAL}\t\t\tv1\trdma0",
        f"mlx5_0\t1\t1\t{LINK_LOCAL}\t\t\tv2\trdma0",
        f"mlx5_0\t1\t2\t{MAPPED}\t192.168.211.242  \tv1\trdma0",
        f"mlx5_0\t1\t3\t{MAPPED}\t192.168.211.242  \tv2\trdma0",
        "n_gids_found=4",
    ]
    assert table(tree) == golden
    assert indent("\n".join([*HEADER.splitlines(), *golden]).expandtabs(), "    ") in PAGE.read_text()


def test_holes(tree: Tree) -> None:
    """Free, unreadable and unset entries are not listed."""
    one = port(hca(tree, "mlx5_0", tree.pci("0000:3b:00.0")), places=6)
    gid(one, 0, "")
    gid(one, 1, "fe80:0000:0000:0000:0000:0000:0000:0000", V1, "rdma0")
    gid(one, 2, GLOBAL, V2, "rdma0")
    gid(one, 3, ZERO, V2, "rdma0")
    gid(one, 5, "zzzz" + GLOBAL[4:], V2, "rdma0")
    gid(one, 4, GLOBAL)  # it belongs to another namespace, so the kernel reports neither type nor interface
    assert table(tree) == [
        f"mlx5_0\t1\t2\t{GLOBAL}\t\t\tv2\trdma0",
        f"mlx5_0\t1\t4\t{GLOBAL}\t\t\t\t",
        "n_gids_found=2",
    ]


def test_order(tree: Tree) -> None:
    """The order equals that of show_gids and ls."""
    for name in ("mlx5_2", "mlx5_10"):
        path = hca(tree, name, tree.pci(f"0000:3b:00.{name[-1]}"))
        for number in (1, 2):
            one = port(path, number, places=11)
            for index in (2, 10):
                gid(one, index, GLOBAL, V2, "rdma0")
    expected = [(name, n, i) for name in ("mlx5_10", "mlx5_2") for n in "12" for i in ("10", "2")]
    assert [tuple(line.split("\t")[:3]) for line in table(tree)[:-1]] == expected
    assert [line.split("\t")[:3] for line in table(tree, "mlx5_2", "2")[:-1]] == [
        ["mlx5_2", "2", "10"], ["mlx5_2", "2", "2"],
    ]  # fmt: skip


def test_infiniband(tree: Tree) -> None:
    """GIDs of InfiniBand have no interface."""
    one = port(hca(tree, "mlx5_0", tree.pci("0000:3b:00.0")), link_layer="InfiniBand")
    gid(one, 0, "fe80:0000:0000:0000:b8ce:f603:0012:3456", V1)
    assert table(tree) == ["mlx5_0\t1\t0\tfe80:0000:0000:0000:b8ce:f603:0012:3456\t\t\tv1\t", "n_gids_found=1"]


def test_a_name_that_a_terminal_would_obey(tree: Tree) -> None:
    one = port(hca(tree, "mlx5\x1b[1m", tree.pci("0000:3b:00.0")))
    gid(one, 0, GLOBAL, V2, "\x1b[31m")
    assert table(tree)[0] == f"mlx5\\x1b[1m\t1\t0\t{GLOBAL}\t\t\tv2\t\\x1b[31m"


def test_json(tree: Tree) -> None:
    one = port(hca(tree, "mlx5_0", tree.pci("0000:3b:00.0")))
    gid(one, 3, MAPPED, V2, "rdma0")
    text, status = answer(["--json"], tree.root)
    assert (json.loads(text), status) == (
        {"gids": [{"device": "mlx5_0", "port": 1, "index": 3, "gid": MAPPED, "ipv4": "192.168.211.242", "type": V2,
                   "netdev": "rdma0"}]},
        0,
    )  # fmt: skip


def test_without_rdma(tree: Tree) -> None:
    assert table(tree) == ["n_gids_found=0"]


@pytest.mark.parametrize("words", [["mlx5_0", "9"], ["mlx5_0", "9", "--json"]])
def test_of_no_port(tree: Tree, words: list[str]) -> None:
    hca(tree, "mlx5_0", tree.pci("0000:3b:00.0"))
    with pytest.raises(LinkUnavailable, match="mlx5_0 has no port 9; its ports: none"):
        answer(words, tree.root)
    port(tree.root / "class/infiniband/mlx5_0", 1)
    with pytest.raises(LinkUnavailable, match=r"mlx5_0 has no port 9; its ports: 1$"):
        answer(words, tree.root)


def test_of_no_device(tree: Tree) -> None:
    with pytest.raises(
        LinkUnavailable, match="no RDMA device 'mlx5_9' in this network namespace; there is none at all"
    ):
        answer(["mlx5_9"], tree.root)
    hca(tree, "mlx5_0", tree.pci("0000:3b:00.0"))
    with pytest.raises(LinkUnavailable, match="there are mlx5_0"):
        answer(["mlx5_9"], tree.root)
