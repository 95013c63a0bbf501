"""The output of hpn plan on a test node equals the output in the page."""

from pathlib import Path

from support.pages import is_shown
from support.sysfs_tree import Tree
from support.topology import Host, ip

from ctl.plan.command import answer


def test_plan(host: Host, tmp_path: Path) -> None:
    """The case: an uplink, a PF that can have VFs, and one that has them."""
    tree = Tree(tmp_path / "sys")
    tree.netdev("eno1", tree.pci("0000:19:00.0", driver="igb", sriov_totalvfs=7))
    for number, name in enumerate(("ens1", "ens2")):
        pf = tree.pci(f"0000:{59 + number:x}:00.0", numa_node=number, sriov_totalvfs=16)
        tree.netdev(name, pf)
        tree.rdma(f"mlx5_{number}", pf, number)
    for number in range(4):
        tree.rdma(f"mlx5_{2 + number}", tree.pci(f"0000:3c:00.{2 + number}", pf="0000:3c:00.0"), 2 + number)
    ip("link", "add", "eno1", "up", "type", "veth", "peer", "name", "far")
    ip("link", "set", "far", "up")
    ip("route", "add", "default", "dev", "eno1")
    text, status = answer([], tree.root)
    assert status == 0
    is_shown("commands.md", "hpn plan", text)
    present = tmp_path / "devices.yaml"
    present.write_text(
        "resources:\n- {name: nvidia.com/rail0, kind: vf, selectors: {pfNames: [ens1]}}\n"
        "pfs:\n- {selectors: {ifNames: [ens1]}, numVfs: 4}\nrdmaNamespaces: exclusive\n"
    )
    text, status = answer(["--check", "--config", f"{present}"], tree.root)
    assert status == 1
    is_shown("commands.md", "hpn plan --check", text.replace(f"{present}", "/etc/hpn/devices.yaml"))
