"""No address has two owners, and no block is lost, whatever goes wrong: histories, on real servers.

Each run draws its faults by a seed.  HPN_CHECKER_SEED chooses another one, HPN_CHECKER_SECONDS a longer run, and
HPN_CHECKER_NODES how many nodes there are beside the few that are killed.  HPN_CHECKER_SPEED says how fast the clocks
go: at 300 or less the store may also be silent.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from checker.faults import SPEED
from checker.servers import Servers
from checker.sides import ApiServer, ThreeMembers
from checker.world import NAMES, SIZE, world
from conftest import require
from shared_stores import api_server, etcds
from unit.tls_server import authority

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import two_nodes
from cluster.space import Failed

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes" / "cluster"
SEED = int(os.environ.get("HPN_CHECKER_SEED", "1"))
SECONDS = float(os.environ.get("HPN_CHECKER_SECONDS", "12"))
MANY = int(os.environ.get("HPN_CHECKER_NODES", "20"))
FEW = 3
# A subnet with about twice as many blocks of four as nodes.
BITS = (8 * (FEW + MANY) - 1).bit_length()
# Two blocks' numbers go to names.  What an address is kept back for is over before anybody asks again.
IPAM = {"type": "hpn-ipam", "ranges": [[{"subnet": f"10.0.0.0/{32 - BITS}"}]], "sticky": 1}
ASIDE = "8-15"
ADDRESSES = (1 << BITS) - 3 - 8  # without the network's own, the gateway's and the broadcast address


def test_etcd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with etcds(tmp_path, 3) as three:
        check(tmp_path, ThreeMembers(three), "etcd", {}, capsys)


def test_kubernetes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    it = authority(tmp_path)
    cert, key = it.sign("/CN=api", names="IP:127.0.0.1")
    files = {"cert": tmp_path / "proxy.cert", "key": tmp_path / "proxy.private"}
    files["cert"].write_bytes(cert)
    files["key"].write_bytes(key)
    try:
        programs = two_nodes.built()
    except Failed as e:
        require("cluster", str(e))
    with api_server(tmp_path, programs, {}) as api:
        api.apply(*(MANIFESTS / name for name in ("blocks.yaml", "grids.yaml")))
        api.run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        secured = {name: str(path) for name, path in files.items()}
        check(tmp_path, ApiServer(api, it.ca), "kubernetes", secured, capsys)


def check(
    folder: Path, servers: Servers, store: str, secured: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    ipam = {**IPAM, "cluster": {"store": store, "blockSize": SIZE, "sticky": ASIDE}}
    (folder / "nodes").mkdir()
    with world(folder / "nodes", servers, SEED, (FEW, MANY), ipam, secured) as it:
        it.name_all()
        it.run(SECONDS)
        it.settle()
        with capsys.disabled():
            print(f"\n{store}, seed {SEED}, {SECONDS:.0f} s, {FEW + MANY} nodes, speed {SPEED:.0f}: {it.told()}")
        assert it.history.wrong == []
        assert it.unknown() == []
        assert it.have_all_names() == []
        assert it.exhaust(ADDRESSES + len(NAMES)) == ADDRESSES + len(NAMES)
        assert it.history.wrong == []
