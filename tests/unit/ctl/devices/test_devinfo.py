"""hpn devinfo: the text of ibv_devinfo, on trees in the format of /sys."""

import json
from pathlib import Path
from textwrap import indent

import pytest
from support.rdma_tree import gid, hca, port
from support.sysfs_tree import Tree

from base.protocol.errors import LinkUnavailable
from ctl.devices.devinfo import answer

PAGE = Path(__file__).parents[4] / "docs" / "user" / "rdma.md"
ERDMA = """\
hca_id:	rocep{slot}s0
	transport:			iWARP (1)
	fw_ver:				0.2.0
	node_guid:			0216:3eff:fe{guid}
	sys_image_guid:			0216:3eff:fe{guid}
	vendor_id:			0x1ded
	vendor_part_id:			4223
	hw_ver:				0x0
	phys_port_cnt:			1
		port:	1
			state:			{state}
			max_mtu:		1024 (3)
			active_mtu:		1024 (3)
			sm_lid:			0
			port_lid:		0
			port_lmc:		0x00
			link_layer:		Ethernet

"""
MLX5 = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	node_guid:			a088:c203:005f:c296
	sys_image_guid:			a088:c203:005f:c296
	vendor_id:			0x02c9
	vendor_part_id:			4129
	hw_ver:				0x0
	board_id:			MT_0000000838
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			0
			port_lid:		0
			port_lmc:		0x00
			link_layer:		Ethernet
"""
MORE = """\
			sm_sl:			0
			pkey_tbl_len:		1
			gid_tbl_len:		255
			active_width:		4X (2)
			active_speed:		100.0 Gbps (128)
			phys_state:		LINK_UP (5)
			GID[  0]:		fe80:0000:0000:0000:a288:c2ff:fe5f:c296, RoCE v1
			GID[  1]:		fe80::a288:c2ff:fe5f:c296, RoCE v2
			GID[  3]:		::ffff:10.0.0.1, RoCE v2
			GID[254]:		fd00::1, RoCE v2
"""
INFINIBAND = """\
hca_id:	ibp59s0
	transport:			InfiniBand (0)
	fw_ver:				20.31.1014
	node_guid:			b8ce:f603:0012:3456
	sys_image_guid:			b8ce:f603:0012:3456
	vendor_id:			0x02c9
	vendor_part_id:			4125
	hw_ver:				0x1A
	phys_port_cnt:			2
		port:	1
			state:			PORT_ACTIVE (4)
			sm_lid:			1
			port_lid:		17
			port_lmc:		0x03
			link_layer:		InfiniBand
			port_cap_flags:		0x2651e848
			sm_sl:			2
			pkey_tbl_len:		1
			gid_tbl_len:		8
			active_width:		4X (2)
			active_speed:		50.0 Gbps (64)
			phys_state:		LINK_UP (5)
			GID[  0]:		fe80:0000:0000:0000:b8ce:f603:0012:3456

		port:	2
			state:			PORT_INIT (2)
			sm_lid:			0
			port_lid:		65535
			port_lmc:		0x00
			link_layer:		InfiniBand
			port_cap_flags:		0x2651e848
			sm_sl:			0
			pkey_tbl_len:		1
			gid_tbl_len:		8
			active_width:		4X (2)
			phys_state:		POLLING (2)

"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


def erdma(tree: Tree, slot: int, guid: str, state: str) -> None:
    """Drawn after the documentation of an Alibaba node."""
    function = tree.pci(f"0000:{slot:02x}:00.0", driver="erdma", vendor="0x1ded", device="0x107f", revision="0x00")
    tree.netdev(f"eth{slot}", function, mtu=1500, dev_port=0, dev_id="0x0")
    guids = dict.fromkeys(("node_guid", "sys_image_guid"), f"0216:3eff:fe{guid}")
    port(hca(tree, f"rocep{slot}s0", function, node_type="4: RNIC", fw_ver="0.2.0", **guids), state=state)


def mlx5(tree: Tree, mtu: int = 9000, **attributes: str) -> Path:
    function = tree.pci("0000:3b:00.0", device="0x1021", revision="0x00")
    tree.netdev("rail0", function, mtu=mtu)
    guids = dict.fromkeys(("node_guid", "sys_image_guid"), "a088:c203:005f:c296")
    device = hca(tree, "mlx5_0", function, fw_ver="28.39.1002", board_id="MT_0000000838", **guids)
    return port(device, places=255, rate="400 Gb/sec (4X NDR)", **attributes)


def test_erdma(tree: Tree) -> None:
    erdma(tree, 156, "2c:b8f3", "1: DOWN")
    erdma(tree, 26, "10:f8b0", "4: ACTIVE")
    both = [(26, "10:f8b0", "PORT_ACTIVE (4)"), (156, "2c:b8f3", "PORT_DOWN (1)")]
    golden = [ERDMA.format(slot=slot, guid=guid, state=state) for slot, guid, state in both]
    assert answer([], tree.root) == ("".join(golden), 0)
    assert answer(["-d", "rocep156s0"], tree.root) == (golden[1], 0)


def test_mlx5(tree: Tree) -> None:
    one = mlx5(tree)
    assert answer([], tree.root) == (f"{MLX5}\n", 0)
    assert indent(MLX5.expandtabs(), "    ") in PAGE.read_text()
    for index, value, kind in (
        (0, "fe80:0000:0000:0000:a288:c2ff:fe5f:c296", "IB/RoCE v1"),
        (1, "fe80:0000:0000:0000:a288:c2ff:fe5f:c296", "RoCE v2"),
        (2, "fd00:0000:0000:0001:0000:0000:0000:0000", "RoCE v2"),  # its lower half is not set
        (3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        (254, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"),
    ):
        gid(one, index, value, kind, "rail0")
    assert answer(["-v"], tree.root) == (f"{MLX5}{MORE}\n", 0)


@pytest.mark.parametrize(
    ("mtu", "active"),
    [
        (9000, "4096 (5)"),
        (4192, "4096 (5)"),
        (4191, "2048 (4)"),
        (1500, "1024 (3)"),
        (1119, "512 (2)"),
        (351, "256 (1)"),
    ],
)
def test_mtu_of_roce(tree: Tree, mtu: int, active: str) -> None:
    """RDMA's headers take 96 bytes of the interface's MTU (iboe_get_mtu)."""
    mlx5(tree, mtu)
    assert f"\t\t\tactive_mtu:\t\t{active}\n" in answer([], tree.root)[0]


def test_infiniband(tree: Tree) -> None:
    """The MTU is omitted: the subnet manager sets it, and only verbs report it."""
    function = tree.pci("0000:3b:00.0", device="0x101d", revision="0x1a", **{"class": "0x020700"})
    device = hca(tree, "ibp59s0", function, fw_ver="20.31.1014")
    common = {"link_layer": "InfiniBand", "cap_mask": "0x2651e848", "places": 8}
    first = port(
        device, 1, lid="0x11", sm_lid="0x1", sm_sl="2", lid_mask_count="3", rate="200 Gb/sec (4X HDR)", **common
    )
    gid(first, 0, "fe80:0000:0000:0000:b8ce:f603:0012:3456", "IB/RoCE v1")
    port(device, 2, state="2: INIT", phys_state="2: Polling", lid="0xffff", rate="10 Gb/sec (4X SDR)", **common)
    assert answer(["-v"], tree.root) == (INFINIBAND, 0)


def test_of_an_unknown_driver(tree: Tree) -> None:
    """Values that only verbs report are omitted, not guessed."""
    function = tree.pci("0000:3b:00.0", driver="hns3", revision="0x21")
    tree.netdev("rail0", function, mtu=1500)
    port(hca(tree, "hns_0", function))
    text, _ = answer([], tree.root)
    assert not any(word in text for word in ("vendor_id", "vendor_part_id", "hw_ver", "mtu", "board_id", "fw_ver"))
    assert "\tnode_guid:\t\t\tb8ce:f603:0012:3456\n\tsys_image_guid:" in text


def test_json(tree: Tree) -> None:
    """The document has the text's names and values."""
    one = mlx5(tree)
    gid(one, 3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "rail0")
    (device,) = json.loads(answer(["--json", "-v"], tree.root)[0])["devices"]
    (described,) = device["ports"]
    assert (device["hca_id"], device["vendor_id"], described["state"]) == ("mlx5_0", "0x02c9", "PORT_ACTIVE (4)")
    assert (described["port"], described["gids"]) == (1, {"3": "::ffff:10.0.0.1, RoCE v2"})
    assert "gids" not in json.loads(answer(["--json"], tree.root)[0])["devices"][0]["ports"][0]


def test_without_rdma(tree: Tree) -> None:
    for words in ([], ["--json"]):
        with pytest.raises(LinkUnavailable, match="there is no RDMA device in this network namespace"):
            answer(words, tree.root)
    with pytest.raises(LinkUnavailable, match="no RDMA device 'mlx5_0'"):
        answer(["-d", "mlx5_0"], tree.root)
