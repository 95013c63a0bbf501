"""On real servers and under all faults, no address has two owners and no block is lost.

Each run draws its faults from the day's seed (HPN_DRAW).  HPN_CHECKER_SECONDS sets a longer run, HPN_CHECKER_STORES
selects one store, and HPN_CHECKER_NODES is the number of nodes besides the few that are killed.  HPN_CHECKER_SPEED is
the speed of the clocks; at 300 or less the store may also be silent.
"""

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

import drawn
import pytest
from checker.faults import SPEED
from checker.servers import Servers
from checker.sides import ApiServer, ThreeMembers
from checker.start import world
from checker.world import NAMES, SIZE
from conftest import require
from support.shared_stores import api_server, etcds
from support.tls_server import authority

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster import two_nodes
from cluster.space import Failed

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes" / "cluster"
# The time for each store; both run in parallel.
SECONDS = float(os.environ.get("HPN_CHECKER_SECONDS", "60" if drawn.draw().everything else "30"))
STORES = os.environ.get("HPN_CHECKER_STORES", "etcd,kubernetes").split(",")
MANY = int(os.environ.get("HPN_CHECKER_NODES", "20"))
FEW = 3
# So few blocks that nodes run out of them and reclaim those of dead nodes.
BLOCKS = FEW + MANY + max(8, MANY // 8)
LAST = SIZE * BLOCKS - 1
# Names take the numbers of two blocks.  A sticky lease expires before anyone asks for its address again.
IPAM = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.0.0.0/16", "rangeEnd": f"{IPv4Address('10.0.0.0') + LAST}"}]]}
ASIDE = "8-15"
ADDRESSES = LAST - 1 - 8  # without the addresses of the network and the gateway


def test_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn.noted("histories", len(STORES))
    if "kubernetes" in STORES:
        try:
            two_nodes.built()
        except Failed as e:
            require("cluster", str(e))
    checks: dict[str, Callable[[Path], tuple[str, list[str]]]] = {"etcd": of_etcd, "kubernetes": of_kubernetes}
    for store in STORES:
        (tmp_path / store / "nodes").mkdir(parents=True)
    with ThreadPoolExecutor(len(STORES)) as threads:
        under_way = {store: threads.submit(checks[store], tmp_path / store) for store in STORES}
    found = {store: one.result() for store, one in under_way.items()}
    with capsys.disabled():
        for store, (told, _) in found.items():
            print(f"\n{store}, seed of {drawn.draw()}, {SECONDS:.0f} s, {FEW + MANY} nodes, speed {SPEED:.0f}: {told}")
    wrong = {store: wrong for store, (_, wrong) in found.items() if wrong}
    assert wrong == {}, f"how that came about: {tmp_path}/*/nodes/record"


def of_etcd(folder: Path) -> tuple[str, list[str]]:
    with etcds(folder, 3) as three:
        return checked(folder, ThreeMembers(three), "etcd", {})


def of_kubernetes(folder: Path) -> tuple[str, list[str]]:
    it = authority(folder)
    cert, key = it.sign("/CN=api", names="IP:127.0.0.1")
    files = {"cert": folder / "proxy.cert", "key": folder / "proxy.private"}
    files["cert"].write_bytes(cert)
    files["key"].write_bytes(key)
    with api_server(folder, two_nodes.built(), {}) as api:
        api.apply(*(MANIFESTS / name for name in ("blocks.yaml", "pools.yaml")))
        api.run("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        secured = {name: str(path) for name, path in files.items()}
        return checked(folder, ApiServer(api, it.ca), "kubernetes", secured)


def checked(folder: Path, servers: Servers, store: str, secured: Mapping[str, str]) -> tuple[str, list[str]]:
    """Run the checker on a store; return the summary and the violations."""
    ipam = {**IPAM, "sticky": 1, "cluster": {"backend": store, "blockSize": SIZE, "sticky": ASIDE}}
    with world(folder / "nodes", servers, drawn.seed(), (FEW, MANY), ipam, secured) as it:
        it.name_all()
        it.run(SECONDS)
        it.settle()
        told = it.told()
        if wrong := [*it.history.wrong, *it.unknown()]:
            return told, wrong
        wrong = [f"{name} has no address" for name in it.have_all_names()]
        given = it.exhaust(ADDRESSES + len(NAMES))
        if given != ADDRESSES + len(NAMES):
            wrong.append(f"of {ADDRESSES + len(NAMES)} addresses {given} are to be had")
        return told, [*wrong, *it.history.wrong]
