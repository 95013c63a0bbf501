"""Chain mode with a VF of each of two NICs, in exclusive mode: one ADD moves both with their RDMA devices, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest import node as guest_node
from guest.gid_tables import PATIENT
from guest.node import NAME, RDMA, Node, macvlan, netdev, pci, rdma_devs
from guest.recovery import recovered
from support import chained
from support.topology import Pod, until

from base.protocol.spec import Request
from base.state import claims

VFS, HCAS = (NAME, "rail1v0"), (RDMA, "hca1v0")
NAMED = ("mlx5_0", "mlx5_1")  # the RDMA devices in the pod
ATTACHED = {f"hpn{n}": {f"10.56.{n}.2/30", f"fd00:{56 + n}::2/126"} for n in range(2)}


class Cluster(Node):
    """The node, with the requests of the cluster's conflist."""

    def conf(self, **keys: Any) -> dict[str, Any]:
        return chained.conf(self, **keys)

    def request(self, command: str, pod: Pod | None, conf: Any, **environ: str) -> Request:
        return super().request(command, pod, conf, **(chained.variables(pod) if pod else {}) | environ)


@pytest.fixture
def cluster(node: Node, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(claims, "FOLDER", f"{node.tmp_path}/claims")
    return Cluster(node.tmp_path)


def vf(node: Node, number: int, **keys: Any) -> claims.ClaimedDevice:
    """The VF of a NIC, attached as hpn<number>, with settings that an undo has to put back."""
    rdma = PATIENT | {"mode": "exclusive", "required": True, "name": NAMED[number]}
    config = {"vlan": 7, "trust": "on", "mtu": 1400, "rdma": rdma} | keys.pop("config", {})
    own = {"kind": "vf", "id": pci(VFS[number]), "mac": f"02:00:00:00:00:7{number}"}
    return chained.device(node, number, config=config, **own | keys)


def picture() -> tuple[Any, ...]:
    """Both VFs with their RDMA devices on the host."""
    return (*guest_node.picture(), netdev(VFS[1]))


def assert_none(pod: Pod, claim: claims.Claim, before: tuple[Any, ...], where: str) -> None:
    assert (pod.links(), rdma_devs(pod.name)) == (set(), set()), f"in the pod {where}"
    assert picture() == before, f"not as it was {where}"
    assert not [n for n in range(2) if Path(claims.gate(claim.uid, n)).exists()], f"a gate is open {where}"


def test_one_that_fails_undoes_the_other(node: Node, cluster: Cluster, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """Whether the second VF is another pod's, or fails in the plan, when it is in the pod, or for an address."""
    other = make_pod()
    late = node.program("late", '[ $CNI_COMMAND = DEL ] || { echo \'{"code":133,"msg":"away"}\'; exit 1; }')
    pool = {"type": "hpn-ipam", "subnet": "10.57.0.0/30"}
    node.ok("ADD", other, macvlan(node, name="full", ipam=pool))
    assert node.leases() == {"10.57.0.2"}
    before = picture()
    for keys, code in (
        ({"config": {"name": "full", "ipam": pool}}, 103),
        ({"config": {"rdma": PATIENT | {"name": NAMED[0]}}}, 100),  # which is the first one's name already
        ({"config": {"ipam": {"type": "late"}}}, 133),
        ({"config": {"mtu": 9000}}, 7),
    ):
        claim = chained.prepared(node, pod, [vf(node, 0), vf(node, 1, **keys)])
        error = cluster.refused("ADD", pod, CNI_PATH=late)
        assert error["code"] == code, error
        assert_none(pod, claim, before, f"after {keys}")
        claims.forget(claim.uid)
    node.ok("DEL", other, macvlan(node, name="full", ipam=pool))
    assert node.state_files() == set()

    devices, before = [vf(node, n) for n in range(2)], picture()
    node.ok("ADD", other, node.conf(deviceID=pci(VFS[1])))  # afterwards the VF is the claim's
    claim = chained.prepared(node, pod, devices)
    error = cluster.refused("ADD", pod)
    assert error["code"] == 109, error
    assert (pod.links(), rdma_devs(pod.name), rdma_devs(other.name)) == (set(), set(), {HCAS[1]})
    # Dead owners do not count.
    other.gone()
    assert cluster.ok("ADD", pod) == chained.PREVIOUS
    assert {name: pod.addresses(name) for name in pod.links()} == ATTACHED
    assert rdma_devs(pod.name) == set(NAMED)
    cluster.ok("DEL", pod)
    assert_none(pod, claim, before, "after DEL")
    assert node.state_files() == set()


def test_a_claims_pf(node: Node, cluster: Cluster, pod: Pod) -> None:
    """The whole NIC, with the keys that Prepare gives it, and a MAC of the claim's."""
    before, keys = netdev("rail1"), {"kind": "sriov", "pfOnly": True}
    pf = chained.device(node, 0, kind="pf", id=pci("rail1"), config=keys, interface="", mac="02:00:00:00:00:79")
    claim = chained.prepared(node, pod, [pf])
    cluster.ok("ADD", pod)
    link = pod.link("claim0") or {}
    assert (link["parentdev"], link["address"]) == (pf.id, pf.mac)
    assert cluster.call("CHECK", pod).exit_code == 0
    cluster.ok("DEL", pod)
    assert (pod.links(), Path(claims.gate(claim.uid, 0)).exists()) == (set(), False)
    # The kernel changes the flags of a carrier after the state.
    until(lambda: netdev("rail1") == before, 120)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_every_boundary(node: Node, cluster: Cluster, pod: Pod, command: str) -> None:
    before, claim = picture(), chained.prepared(node, pod, [vf(node, n) for n in range(2)])
    for where in recovered(cluster, pod, command, cluster.conf()):
        assert_none(pod, claim, before, where)
