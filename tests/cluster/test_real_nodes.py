"""ADD, DEL and STATUS on a node with a real store that is down for an hour or refuses requests."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checker.servers import Servers
from checker.sides import ApiServer, ThreeMembers
from conftest import require
from support.cluster_nodes import Node
from support.shared_stores import Server, api_server, etcds
from support.tls_server import Authority, authority

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import two_nodes
from cluster.space import Failed

from base.state import policy
from ipam.cluster import node_blocks

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes" / "cluster"
# Sixteen blocks of sixteen.
POOL = {"subnet": "10.0.0.0/24"}
# Makes a node from its name, the store's settings and the section ipam.
Makes = Callable[..., Node]
# The program's connections end with its process; in a test the garbage collector ends them.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Makes:
    monkeypatch.setattr(policy, "FILE", policy.FILE)

    def of(name: str, settings: Mapping[str, Any], **ipam: Any) -> Node:
        file, state = tmp_path / f"{name}.json", tmp_path / name
        state.mkdir(exist_ok=True)
        file.write_text(json.dumps({"backends": {**settings, "nodeName": name}}))
        (kind,) = settings
        return Node(state, {**POOL, "cluster": {"backend": kind}, **ipam}, name=name, node_file=file)

    return of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day in seconds, which the test sets."""
    now = [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def refuse(node: Node, code: int, *words: str) -> None:
    """Assert that the node refuses an ADD with these words, and holds no lease and no block."""
    answered, said = node.refused("ADD", "a")
    assert (answered, [word for word in words if word not in said]) == (code, []), said
    assert not node.leases()
    mine = node_blocks.read(node.dir)
    assert mine is None or mine.giving == ()


def test_an_etcd(make: Makes, clock: list[float], tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with etcds(tmp_path / "one") as one, etcds(tmp_path / "other") as other:
        settings, others = ({"etcd": {"endpoints": it.urls}} for it in (one, other))
        node1 = make("node1", settings)
        assert node1.add("a")
        large = {"backend": "etcd", "blockSize": 32}
        refuse(make("node2", settings, cluster=large), 7, "ipam.cluster.blockSize 32", "set blockSize 16, or give")
        inside = make("node2", settings, subnet="10.0.0.128/25")
        refuse(inside, 7, "subnet 10.0.0.128/25 overlaps 10.0.0.0/24", "write the other nodes' subnet")
        hour(node1, clock, one.members, ThreeMembers(one))
        # Another cluster's etcd proves nothing about the node's blocks; the next check compares the identities.
        make("node1", others)
        clock[0] += node_blocks.HEARTBEAT
        mine = node1.mine
        for _ in range(2):
            code, said = node1.refused("ADD", "elsewhere")
            assert (code, f"correct backends.etcd in {policy.FILE}" in said) == (7, True), said
            node1.call("DEL", "elsewhere")
        assert (node1.mine.identity, node1.mine.blocks) == (mine.identity, mine.blocks)
        assert ThreeMembers(other).blocks() == {}


def test_an_etcd_with_certificates(make: Makes, tmp_path: Path) -> None:
    signer = authority(tmp_path)
    cert, key = files(tmp_path, signer, "server", names="IP:127.0.0.1")
    tls = {"ca": tmp_path / "ca.pem", "cert": cert, "key": key}
    with etcds(tmp_path, tls=tls) as secured:
        about = {"endpoints": secured.urls, "ca": str(tmp_path / "ca.pem")}
        refused = "refuses this node's certificate"
        ended = files(tmp_path, signer, "ended", until="20210101000000Z")
        for ours, code, said in (
            (ended, 111, (refused, "that of backends.etcd in", "expired at 2021-01-01T00:00:00Z; renew it")),
            ((), 111, (refused, "backends.etcd in", "names no certificate; name one, and its key")),
            ((tmp_path / "gone.cert", key), 7, ("gone.cert, which backends.etcd in", "does not exist; create it")),
        ):
            pair = dict(zip(("cert", "key"), map(str, ours), strict=False))
            refuse(make("node1", {"etcd": {**about, **pair}}), code, *said)


def test_an_api_server(make: Makes, clock: list[float], tmp_path: Path) -> None:
    signer = authority(tmp_path)
    try:
        programs = two_nodes.built()
    except Failed as e:
        require("cluster", str(e))
    with api_server(tmp_path, programs, {"somebody": "people"}, tmp_path / "ca.pem") as api:
        side = ApiServer(api, api.authority)
        # The settings by the user of their kubeconfig.
        who = kubeconfigs(tmp_path, side)
        apply = "kubectl apply -k packaging/kubernetes/cluster"
        refuse(make("node1", who({"token": "root"})), 111, "no such CustomResourceDefinition", apply)
        api.apply(*(MANIFESTS / name for name in ("blocks.yaml", "pools.yaml")))
        api.run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        cert, key = files(tmp_path, signer, "expired", until="20210101000000Z")
        pair = {"client-certificate": str(cert), "client-key": str(key)}
        for user, said in (
            ({"token": "nobody"}, ("does not know this node's credential", "name a known one")),
            (pair, ("which expired at 2021-01-01T00:00:00Z", "renew it")),
            ({"token": "somebody"}, ('"somebody" cannot get resource "namespaces"', apply, "ClusterRole hpn-node")),
        ):
            refuse(make("node1", who(user)), 111, *said)
        absent = {"kubernetes": {"kubeconfig": str(tmp_path / "absent")}}
        refuse(make("node1", absent), 111, f"there is no kubeconfig at {tmp_path}/absent", "name it")
        side.born("node1")
        node1 = make("node1", who({"token": "root"}))
        assert node1.add("a")
        hour(node1, clock, [api.server], side)


def kubeconfigs(folder: Path, side: ApiServer) -> Callable[[Mapping[str, str]], Mapping[str, Any]]:
    """Make the API server's settings of a node from the user section of the kubeconfig."""

    def of(user: Mapping[str, str]) -> Mapping[str, Any]:
        about = side.settings([side.api.url], folder)
        file = Path(about["kubernetes"]["kubeconfig"])
        file.write_text(json.dumps(json.loads(file.read_text()) | {"users": [{"name": "root", "user": user}]}))
        return about

    return of


def files(folder: Path, signer: Authority, name: str, **about: str) -> tuple[Path, Path]:
    """A certificate and its key."""
    pair = folder / f"{name}.cert", folder / f"{name}.private"
    for file, text in zip(pair, signer.sign(f"/O={name}", **about), strict=True):
        file.write_bytes(text)
        file.chmod(0o600)
    return pair


def hour(node: Node, clock: list[float], daemons: list[Server], servers: Servers) -> None:
    """Stop the store for an hour: the node serves pods while it has room, then refuses them with the reason.  All works
    again once the store is back."""
    (block,) = node.mine.giving
    for daemon in daemons:
        daemon.kill()
    for minute in range(60):
        clock[0] += 60
        (address,) = node.add(f"minute{minute}")
        assert int(address.rpartition(".")[2]) // 16 == block
        assert node.call("DEL", f"minute{minute}") == {}
    full = [f"full{n}" for n in range(16)]
    answers = {cid: node.call("ADD", cid) for cid in full}
    given = [cid for cid in full if "ips" in answers[cid]]
    assert 12 <= len(given) < 16
    for command, code in (("ADD", 11), ("STATUS", 50)):
        answered, said = node.refused(command, "more")
        reasons = ("addresses are held", "Connection refused", "try again later")
        assert (answered, [word for word in reasons if word not in said]) == (code, []), said
    # A released address is available again without the store.
    assert node.call("DEL", given[0]) == {}
    assert node.add("another")
    assert node.call("ADD", "more")["code"] == 11
    for daemon in daemons:
        daemon.start(wait=False)
    servers.heal()
    assert node.call("STATUS") == {}
    assert node.add("more")
    mine = node.mine
    assert len(mine.giving) == 2
    assert servers.blocks() == dict.fromkeys(mine.giving, node.name)
