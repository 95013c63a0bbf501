"""InfiniBand VFs as devices of the node: on the host, and in a pod."""

from pathlib import Path

from guest.hca import NAME, PF, RDMA, Node
from support.topology import Pod, until

from hardware.inventory import Inventory
from hardware.model import Kind
from node.model import Resource, Selector, Sharing
from node.offer.offers import offers


def test_a_vf_that_a_pod_has(node: Node, pod: Pod, tmp_path: Path) -> None:
    """The selectors still find the VF by partition key and link type, and its RDMA device's nodes are known."""
    kept = Inventory(memory=tmp_path / "devices.json")
    key = int(Path(f"/sys/class/infiniband/{RDMA}/ports/1/pkeys/0").read_text(), 16) & 0x7FFF
    selector = Selector(
        netdevs=frozenset({NAME}), link_types=frozenset({"infiniband"}), pkeys=frozenset({key}), rdma=True
    )

    def found() -> list[str]:
        (offer,), _ = offers([Resource("ex.com", "r", Sharing.EXCLUSIVE, (selector,))], kept.devices())
        return [unit.id for unit in offer.units]

    (vf,) = (device for device in kept.devices() if device.id == node.device)
    assert (vf.kind, vf.index, vf.pf_netdev, vf.netdevs) == (Kind.VF, 0, PF, (NAME,))
    (rdma,) = vf.rdma
    assert (rdma.name, len(rdma.umad), len(rdma.issm)) == (RDMA, 1, 1)
    for path in (rdma.uverbs, *rdma.umad, *rdma.issm):
        assert Path(path).is_char_device()
    assert found() == [node.device]
    node.ok("ADD", pod)
    (taken,) = (device for device in kept.devices() if device.id == node.device)
    assert (taken.netdevs, taken.names, taken.link_type, taken.pkeys) == ((), (NAME,), "infiniband", {key})
    assert (taken.rdma[0].uverbs, found()) == (rdma.uverbs, [node.device])
    # A restart of hpn node meanwhile, with and without its memory.
    for memory in (tmp_path / "devices.json", tmp_path / "none.json"):
        (again,) = (device for device in Inventory(memory=memory).devices() if device.id == node.device)
        assert (again.kind, again.pf_netdev, again.index, again.link_type) == (Kind.VF, PF, 0, "infiniband")
    node.ok("DEL", pod)
    until(lambda: vf in kept.devices())
