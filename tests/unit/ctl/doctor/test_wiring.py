"""hpn doctor names a rail whose neighbor differs: from all nodes' by the slices, or from this node's other rails."""

from pathlib import Path

import pytest
from support.doctor_node import PFS
from support.tls_server import Server, Told
from support.wired import Wired

from ctl.doctor import wiring
from ctl.doctor.checks.devices import wiring_differs
from ctl.doctor.model import Facts, Finding, Hardware, Nic, Slices
from ctl.doctor.reading import Reader
from hardware import neighbors
from hardware.model import Device, Kind
from hardware.neighbors import Neighbor

RAILS = tuple(
    Nic(Device(pf, Kind.PF, netdevs=(f"rail{n}",), pf=pf, pf_netdev=f"rail{n}", link_type="ether"), f"/sys/{pf}")
    for n, pf in enumerate(PFS)
)
ONE = Neighbor("mac", "02:00:00:00:00:01", "ifname", "Eth1", "leaf0", max_frame=9216, speed=400)


def found(read: Reader, node: str = "", kubeconfig: Path | None = None) -> list[Finding]:
    facts = Facts(wiring=tuple(wiring.wiring(read, Hardware(RAILS), Slices(1, node=node), kubeconfig)))
    return list(wiring_differs(facts))


def node_with(root: Path, *heard: Neighbor) -> Reader:
    neighbors.write(dict(zip(PFS, heard, strict=False)), root / f"{neighbors.FILE}".lstrip("/"))
    return Reader(root)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((), "rail 1 (rail1) has no neighbor, and others have one"),
        ((Neighbor("mac", "02:00:00:00:00:02", "ifname", "Eth1", "leaf1", max_frame=9216, speed=200),), ""),
    ],
)
def test_this_node_alone(tmp_path: Path, other: tuple[Neighbor, ...], words: str) -> None:
    """Two rails at two leaves are right.  speed-differs reports another speed."""
    said = found(node_with(tmp_path, ONE, *other))
    assert [(one.evidence.partition(": ")[0], words in one.evidence) for one in said] == [
        (f"{tmp_path}{neighbors.FILE}", True)
    ] * bool(words)


def test_no_node_that_hears(tmp_path: Path) -> None:
    assert found(Reader(tmp_path)) == []


def test_the_cluster(asked: tuple[Server, Path], tmp_path: Path) -> None:
    """Of all nodes' findings those of this one, each with its remedy."""
    (server, kubeconfig), wired = asked, Wired(rails=4)
    wired.exchange("node7", 2, 3)
    wired.unplug("node6", 1)
    server.route = lambda _: Told(200, {"metadata": {}, "items": list(wired.slices())})
    read = node_with(tmp_path, ONE)
    (one,) = found(read, "node7", kubeconfig)
    assert one.evidence.startswith(f"{kubeconfig}: node7: rails 2 and 3 are exchanged: rail2 is at pod0-leaf3 Eth8/1")
    assert one.remedy == "exchange their cables"
    assert found(read, "node5", kubeconfig) == []
    assert server.asked[0].path.startswith("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=")


def test_slices_that_cannot_be_read(asked: tuple[Server, Path], tmp_path: Path) -> None:
    """Then this node's own file counts, and the refusal is noted."""
    (server, kubeconfig), read = asked, node_with(tmp_path, ONE)
    server.route = lambda _: Told(403, {"message": "no"})
    (one,) = found(read, "node7", kubeconfig)
    assert "rail 1 (rail1) has no neighbor" in one.evidence
    assert "does not list resourceslices" in read.unread[f"{kubeconfig}"]
