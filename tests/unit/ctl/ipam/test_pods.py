"""hpn ipam pods: the pods of an API server's list, beside the blocks of a cluster's store."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.documents import Memory
from support.tls_server import Server, Told

from base.protocol.errors import BackendRefused, IoFailure
from ctl.ipam import cluster as command
from ctl.ipam import command as addresses
from ipam.cluster import BLOCK, POOL
from ipam.cluster.rules.documents import Block, PoolLayout

STATUS = "k8s.v1.cni.cncf.io/network-status"
SUBNETS = ("10.1.0.0/24", "fd00:1::/64")
Hpn = Callable[..., str]


@pytest.fixture
def store() -> Memory:
    """A network: node1 owns blocks 0 and 5, node2 block 3, and number 70 is that of a name on node2."""
    it = Memory()
    it.create(POOL, "net", "net", PoolLayout("net", 16, SUBNETS, sticky="64-79").to_json())
    for index, node in ((0, "node1"), (5, "node1"), (3, "node2")):
        put(it, Block("net", index, 16, node, "", "nonce"))
    put(it, Block("net/sticky", 70, 1, "node2", "", "nonce", whose="default/web-0:hpn0"))
    return it


def put(store: Memory, block: Block) -> None:
    assert store.create(BLOCK, block.name, block.network, block.to_json())


def pod(name: str, node: str, *statuses: Any, phase: str = "Running") -> dict[str, Any]:
    """A pod as the API server lists it; the annotation as Multus writes it."""
    annotations = {STATUS: json.dumps(statuses)}
    metadata = {"namespace": "default", "name": name, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def on(network: str, *ips: str, **more: Any) -> dict[str, Any]:
    return {"name": network, "interface": "hpn0", "mac": "02:00:00:00:00:01", "ips": list(ips), "dns": {}, **more}


def definition(name: str, /, **conf: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name}, "spec": {"config": json.dumps(conf)}}


def listed(*items: Any, more: str = "") -> Told:
    return Told(200, {"items": list(items), "metadata": {"continue": more}})


RAIL0, RAIL1 = definition("rail0", name="net"), definition("rail1")


@pytest.fixture
def hpn(asked: tuple[Server, Path], store: Memory, tmp_path: Path) -> Hpn:
    """Return a function that runs ``hpn ipam pods`` with these pods; the last is on a second page."""

    def run(*pods: Any, words: tuple[str, ...] = (), status: int = 0) -> str:
        server, kubeconfig = asked
        server.tell(listed(RAIL0, RAIL1), listed(*pods[:-1], more="page"), listed(*pods[-1:]))
        argv = ["pods", f"--kubeconfig={kubeconfig}", f"--data-dir={tmp_path}", *words]
        said, done = command.of_backend(addresses.parser().parse_args(argv), store, {})
        assert done == status, said
        return said

    return run


def test_every_pod_of_the_cluster(hpn: Hpn, server: Server, store: Memory) -> None:
    own = on("cbr0", "10.244.1.2", default=True)
    said = hpn(
        pod("b", "node2", own, on("default/rail0", "10.1.0.48", "fd00:1::30")),
        pod("web-0", "node2", own, on("default/rail0", "10.1.0.70")),
        pod("a", "node1", own, on("default/rail0", "10.1.0.9", "fd00:1::9"), on("default/rail1", "10.9.0.1")),
        pod("ended", "node1", own, on("default/rail0", "10.1.0.9"), phase="Succeeded"),
        pod("without", "node1", own, {"name": "default/rail1", "interface": "hpn0"}),
        {"metadata": {"namespace": "kube-system", "name": "dns"}, "spec": {"nodeName": "node1"}},
    )
    assert [re.split(r"  +", line) for line in said.splitlines()] == [
        ["POD", "NODE", "NETWORK", "IFNAME", "ADDRESSES", "BLOCK"],
        ["default/a", "node1", "net", "hpn0", "10.1.0.9, fd00:1::9", "net.0"],
        ["default/b", "node2", "net", "hpn0", "10.1.0.48, fd00:1::30", "net.3"],
        ["default/web-0", "node2", "net", "hpn0", "10.1.0.70", "net/sticky.70"],
        # It has no pool in the store, and its definition no name of its own.
        ["default/a", "node1", "rail1", "hpn0", "10.9.0.1", "-"],
    ]
    assert [one.path.rpartition("/")[2] for one in server.asked] == [
        "network-attachment-definitions?limit=500", "pods?limit=500", "pods?limit=500&continue=page",
    ]  # fmt: skip


def test_the_rails_of_one_network(hpn: Hpn) -> None:
    """Multus writes an entry for each interface of the result."""
    rails = [on("default/rail0", "10.1.0.9"), on("default/rail0", "fd00:1::9", interface="hpn1")]
    assert [re.split(r"  +", line)[2:] for line in hpn(pod("a", "node1", *rails)).splitlines()[1:]] == [
        ["net", "hpn0", "10.1.0.9", "net.0"], ["net", "hpn1", "fd00:1::9", "net.0"],
    ]  # fmt: skip


def test_as_a_document(hpn: Hpn) -> None:
    device = {"type": "pci", "pci": {"pci-address": "0000:3b:10.1"}}
    one, other = (
        json.loads(hpn(pod("a", "node1", on("default/rail0", "10.1.0.9", **{"device-info": device})),
                       pod("c", "node1", on("default/rail1", "10.9.0.1")), words=("--json", *words)))["pods"]
        for words in (("net",), ("default/rail1",))
    )  # fmt: skip
    assert one == [{
        "pod": "default/a", "node": "node1", "network": "net", "definition": "default/rail0", "ifname": "hpn0",
        "mac": "02:00:00:00:00:01", "device": "0000:3b:10.1", "addresses": ["10.1.0.9"], "blocks": ["net.0"],
        "wrong": [],
    }]  # fmt: skip
    assert [found["pod"] for found in other] == ["default/c"]
    with pytest.raises(IoFailure, match="no pod has an address of network nets"):
        hpn(pod("a", "node1", on("default/rail0", "10.1.0.9")), words=("nets",))


def test_addresses_of_no_block_of_the_node(hpn: Hpn) -> None:
    said = hpn(
        pod("a", "node1", on("default/rail0", "10.1.0.50")),
        pod("b", "node1", on("default/rail0", "10.1.0.200")),
        pod("c", "node1", on("default/rail0", "10.1.0.9")),
        pod("d", "node1", on("default/rail0", "10.1.0.9")),
        pod("e", "node1", on("default/rail0", "10.2.0.9")),
        status=1,
    )
    assert [line.partition(": ")[2] for line in said.splitlines() if line.startswith("wrong: ")] == [
        "default/c:hpn0: 10.1.0.9 is also an address of default/d:hpn0",
        "default/d:hpn0: 10.1.0.9 is also an address of default/c:hpn0",
        "default/a:hpn0: 10.1.0.50 is in block net.3, which node node2 owns, and the pod is on node1",
        "default/b:hpn0: 10.1.0.200 is in block net.12, which no node owns, and the pod is on node1",
    ]


def test_the_clusters_own_network_with_a_pool(hpn: Hpn) -> None:
    assert "default/a  node1" in hpn(pod("a", "node1", on("net", "10.1.0.9", default=True)))


@pytest.mark.parametrize(
    "annotation",
    ["", "[", "{}", "[1]", '[{"name": 1, "ips": "10.1.0.9"}]', '[{"name": "net", "ips": ["x"]}]', "[" * 9999],
)
def test_an_annotation_that_is_none(hpn: Hpn, annotation: str) -> None:
    """Who may change a pod can write anything there."""
    it = pod("a", "node1")
    it["metadata"]["annotations"][STATUS] = annotation
    assert hpn(it) == "no pod has an address besides that of the cluster's network\n"


@pytest.mark.parametrize(
    "statuses",
    [
        [on("default/rail0", "10.1.0.50", interface=f"i{number}") for number in range(2300)],
        [on("default/rail0", *["10.1.0.50"] * 15_500)],
        [on("default/rail0", *(f"10.2.{n >> 8}.{n & 255}" for n in range(15_000)))],
        [on("default/rail0", "10.1.0.50", interface="i" * 200_000)],
        [on("r" * 200_000, "10.1.0.50")],
    ],
    ids=["entries", "one-address", "addresses", "interface", "network"],
)
def test_an_annotation_of_200_kb(hpn: Hpn, statuses: list[dict[str, Any]]) -> None:
    """It neither multiplies nor hides the other pods' lines."""
    evil = pod("evil", "node2", *statuses)
    size = len(evil["metadata"]["annotations"][STATUS])
    assert 200_000 < size < 1 << 18
    others = [pod(f"p{number}", "node1", on("default/rail0", f"10.1.0.{number}")) for number in range(16)]
    said = hpn(evil, *others, status=int(len(statuses) > 1))
    assert len(said) < 4 * size
    assert [line.split()[:3] for line in said.splitlines() if line.startswith("default/p15 ")] == [
        ["default/p15", "node1", "net"]
    ]


def test_many_interfaces_with_one_address(hpn: Hpn) -> None:
    said = hpn(*(pod(f"p{number}", "node1", on("default/rail0", "10.1.0.9")) for number in range(6)), status=1)
    assert [line for line in said.splitlines() if line.startswith(("wrong: default/p0:", "wrong: default/p5:"))] == [
        f"wrong: default/p{one}:hpn0: 10.1.0.9 is also an address of {others} and 2 more"
        for one, others in (
            (0, "default/p1:hpn0, default/p2:hpn0, default/p3:hpn0"),
            (5, "default/p0:hpn0, default/p1:hpn0, default/p2:hpn0"),
        )
    ]


def test_a_credential_that_may_not(asked: tuple[Server, Path], store: Memory) -> None:
    server, kubeconfig = asked
    server.tell(listed(), Told(403, {"message": "pods is forbidden"}))
    options = addresses.parser().parse_args(["pods", f"--kubeconfig={kubeconfig}"])
    with pytest.raises(BackendRefused, match="does not list pods: pods is forbidden; --kubeconfig needs a credential"):
        command.of_backend(options, store, {})
    with pytest.raises(SystemExit):
        addresses.parser().parse_args(["pods"])


def test_a_network_with_pods_is_not_retired(asked: tuple[Server, Path], store: Memory, tmp_path: Path) -> None:
    server, kubeconfig = asked
    argv = ["retire", "net", f"--kubeconfig={kubeconfig}", f"--data-dir={tmp_path}"]

    def run(*pods: Any) -> tuple[str, int]:
        server.tell(listed(RAIL0, RAIL1), listed(*pods))
        return command.of_backend(addresses.parser().parse_args(argv), store, {})

    before = dict(store.documents)
    others = pod("b", "node1", on("default/rail1", "10.9.0.1"))
    assert run(pod("a", "node1", on("default/rail0", "10.1.0.9")), others) == (
        "pods have addresses of network net: default/a:hpn0; delete them first; nothing is removed\n", 1
    )  # fmt: skip
    assert store.documents == before
    assert run(others)[1] == 0
    assert store.documents == {}
