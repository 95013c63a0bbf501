"""hpn devices, hpn gids and hpn devinfo on an InfiniBand HCA, compared with the output of rdma.

libibverbs does not know this HCA, so there is no ibv_devinfo to compare with.
"""

import json
from pathlib import Path

from guest.hca import NAME, PF, RDMA, Node
from guest.texts import ours, theirs

GIDS = Path(f"/sys/class/infiniband/{RDMA}/ports/1/gids")


def test_devinfo(node: Node) -> None:
    (device,) = json.loads(theirs("rdma", "-j", "dev", "show", RDMA))
    (port,) = json.loads(theirs("rdma", "-j", "link", "show", f"{RDMA}/1"))
    assert (port["state"], port["physical_state"]) == ("ACTIVE", "LINK_UP")
    lines = ours("devinfo", "-v", "-d", RDMA).splitlines()
    for line in (
        f"hca_id:\t{RDMA}",
        "\ttransport:\t\t\tInfiniBand (0)",
        f"\tnode_guid:\t\t\t{device['node_guid']}",
        f"\tsys_image_guid:\t\t\t{device['sys_image_guid']}",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
        f"\t\t\tsm_lid:\t\t\t{port['sm_lid']}",
        f"\t\t\tport_lid:\t\t{port['lid']}",
        f"\t\t\tport_lmc:\t\t0x{port['lmc']:02x}",
        "\t\t\tlink_layer:\t\tInfiniBand",
        "\t\t\tphys_state:\t\tLINK_UP (5)",
        f"\t\t\tgid_tbl_len:\t\t{len(list(GIDS.iterdir()))}",
        f"\t\t\tGID[  0]:\t\t{(GIDS / '0').read_text().strip()}",
    ):
        assert line in lines
    assert not any("mtu" in line for line in lines)


def test_gids(node: Node) -> None:
    """The GIDs belong to no interface."""
    *rows, last = ours("gids", RDMA).splitlines()[2:]
    assert rows[0] == f"{RDMA}\t1\t0\t{(GIDS / '0').read_text().strip()}\t\t\tv1\t"
    assert last == f"n_gids_found={len(rows)}"


def test_a_port_and_its_interface(node: Node) -> None:
    """An HCA without a subnet manager: its interfaces have no carrier."""
    text = ours("devices", "-v", NAME)
    assert f"\n{RDMA} port 1 ==> {NAME} (Down)\n" in text
    (row,) = (line for line in text.splitlines() if line.startswith(f"vf0 {node.device}"))
    assert {f"{RDMA}/1", "ACTIVE", "InfiniBand", "free"} <= set(row.split())
    (pf,) = json.loads(ours("devices", "--json", PF))["devices"]
    assert [one["netdevs"] for one in pf["below"]] == [[f"ib{number}"] for number in (1, 2, 3, 4)]
