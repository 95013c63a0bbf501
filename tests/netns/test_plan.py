"""hpn plan on a host with real interfaces and routes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import pod_resources
from support.plans import planned
from support.sysfs_tree import Tree
from support.topology import Host, Pod, ip

from base.kernel import syscalls
from base.protocol.errors import LinkUnavailable
from ctl.plan.command import answer

UPLINK = "the host's default route leaves by"


@pytest.fixture
def sys(host: Host) -> Iterator[Path]:
    """/sys of the host's namespace, which has another rail."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    for name in ("rail1", "fabric1"):
        ip("link", "set", name, "up")
    fd = syscalls.mount_sysfs()
    yield Path(f"/proc/self/fd/{fd}")
    os.close(fd)


def test_a_pod_gets_its_interface(host: Host, sys: Path, pod: Pod) -> None:
    """hpn attaches a pod to the network, here without a cluster's API server."""
    network = planned(sys, "rail0").networks["rail0"]
    conf = {key: value for key, value in network.items() if key not in ("resource", "deviceID")}
    del conf["ipam"]["cluster"]
    host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/16"}
    host.ok("DEL", pod, conf)


def test_a_pod_gets_all_rails(host: Host, sys: Path, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one network, with the units that kubelet gave the pod of the label's resources."""
    plan, uid = planned(sys, "rail0", "rail1"), pod_resources.UID
    ((name, conf),) = plan.networks.items()
    assert plan.label["rails"]["networks"] == [f"default/{name}@hpn0"]
    conf = {key: value for key, value in conf.items() if key != "resource"}
    del conf["ipam"]["cluster"]
    folder, offered = pod_resources.kubelet(tmp_path / "kubelet", monkeypatch), plan.offered(sys, tmp_path)
    given = {resource: f"{offered[resource][0]}-5" for resource in plan.label["rails"]["resources"]}
    pod_resources.keep(folder, *(pod_resources.entry(uid, resource, unit) for resource, unit in given.items()))
    host.ok("ADD", pod, conf, CNI_ARGS=pod_resources.CNI_ARGS)
    assert {name: pod.addresses(name) for name in pod.links()} == {"hpn0": {"10.56.0.2/16"}, "hpn1": {"10.57.0.2/16"}}
    host.ok("DEL", pod, conf)


@pytest.mark.parametrize(
    "routes",
    [
        [["default", "dev", "rail0"]],
        [["-6", "default", "dev", "rail0"]],
        [["default", "dev", "rail0", "table", "7"]],
    ],
    ids=["ipv4", "ipv6", "table"],
)
def test_the_uplink(sys: Path, routes: list[list[str]]) -> None:
    assert list(planned(sys, "rail0", "rail1", "--each").networks) == ["rail0", "rail1"]
    for route in routes:
        family = [word for word in route if word == "-6"]
        ip(*family, "route", "add", *(word for word in route if word != "-6"))
        if "table" in route:
            ip("rule", "add", "priority", "9", "lookup", route[-1])
    plan = planned(sys, "rail0", "rail1")
    assert list(plan.networks) == ["rail1"]
    assert f"# rail0: left out, {UPLINK} rail0" in plan.remarks()
    for words in (["--as", "master"], ["--as", "pf"], ["--as", "vf"], []):
        with pytest.raises(LinkUnavailable, match=f"rail0: {UPLINK} rail0"):
            answer(["rail0", *words], sys)


def test_below_the_uplink(sys: Path) -> None:
    """An interface that carries the uplink stays, as one with the uplink's address does."""
    ip("link", "add", "link", "rail0", "name", "over0", "type", "macvlan")
    ip("link", "set", "over0", "up")
    ip("route", "add", "default", "dev", "over0")
    plan = planned(sys, "rail0", "rail1", "over0")
    assert list(plan.networks) == ["rail1"]
    assert [line for line in plan.remarks() if "left out" in line] == [
        f"# over0: left out, {UPLINK} over0",
        f"# rail0: left out, {UPLINK} over0",
    ]


def test_an_address_of_the_host(host: Host, tmp_path: Path) -> None:
    """Pods share a PF that has one, and do not get it."""
    tree = Tree(tmp_path / "sys")
    pf = tree.pci("fffe:18:00.0")
    tree.netdev("rail0", pf)
    tree.rdma("mlx5_0", pf, 0)
    assert planned(tree.root).networks["rail0"]["kind"] == "host-device"
    ip("address", "add", "192.0.2.1/30", "dev", "rail0")
    plan = planned(tree.root)
    assert plan.networks["rail0"].items() >= {"kind": "macvlan", "master": "rail0"}.items()
    why = "it can have no VFs, and the host has 192.0.2.1/30 on it"
    assert plan.remarks()[1] == f"# rail0 (fffe:18:00.0), mlx5_0, NUMA 0: {why}"
    with pytest.raises(LinkUnavailable, match=r"rail0 .*: the host has 192.0.2.1/30 on it"):
        answer(["--as", "pf"], tree.root)


def test_a_bond_that_is_the_uplink(host: Host, tmp_path: Path) -> None:
    """Its members stay too, with their VFs."""
    tree = Tree(tmp_path / "sys")
    for number in range(2):
        tree.netdev(f"ens{number}", tree.pci(f"fffe:18:00.{number}", sriov_totalvfs=8))
        tree.pci(f"fffe:18:01.{number}", pf=f"fffe:18:00.{number}")
    tree.netdev("bond0", below=["ens0", "ens1"])
    (tree.root / "class/net/bond0/bonding").mkdir()
    tree.netdev("rail0", tree.pci("fffe:19:00.0", sriov_totalvfs=8))
    ip("link", "add", "bond0", "up", "type", "veth", "peer", "name", "far")
    ip("link", "set", "far", "up")
    ip("route", "add", "default", "dev", "bond0")
    plan = planned(tree.root)
    assert list(plan.networks) == ["rail0"]
    assert [line for line in plan.remarks() if "left out" in line] == [
        f"# {title}: left out, {UPLINK} bond0" for title in ("ens0 (fffe:18:00.0)", "ens1 (fffe:18:00.1)", "bond0")
    ]
