"""The released hpn node maintains its blocks in a real etcd, also after an outage of etcd."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address, ip_interface
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cluster.space import until
from conftest import require
from support.node_process import NodeProcess
from support.shared_stores import Etcds, etcds

from base.kernel import budget
from base.protocol import report
from base.protocol.result import Ip
from base.protocol.spec import Key
from ipam.cluster import BLOCK
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings
from ipam.cluster.node_blocks import NodeBlocks, OwnedBlock, write
from ipam.cluster.rules.documents import SAID, Block
from ipam.ranges import Span
from ipam.stores import Owner
from ipam.stores.access import open_in

FIRST = int(ip_address("10.0.0.0"))


class Store:
    """The data of node1 in etcd."""

    def __init__(self, servers: Etcds, gateway: Gateway) -> None:
        self.servers, self.etcd = servers, Etcd(gateway, "/hpn")

    def blocks(self) -> list[Block]:
        budget.begin()
        return [Block.of(one) for one in self.etcd.listed(BLOCK, "net")]

    def suspect(self, index: int) -> None:
        """Suspect the block's owner, as another node does."""
        budget.begin()
        (document,) = [one for one in self.etcd.listed(BLOCK, "net") if one.body["index"] == index]
        assert self.etcd.replace(document, document.body | {"suspect": SAID})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with etcds(tmp_path) as servers, closing(Gateway(Settings(tuple(servers.urls)))) as gateway:
        budget.begin()
        yield Store(servers, gateway)


@pytest.fixture
def process(store: Store) -> Iterator[NodeProcess]:
    """hpn node on a node with one block of four numbers and a pod on each."""
    if not Path(binary := os.environ.get("HPN_BINARY", "unset")).exists():
        require("cluster", "HPN_BINARY, which `make test` sets after building it")
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        ipam, file = Path(folder, "hpn/ipam"), Path(folder, "hpn.json")
        block = Block("net", 0, 4, "node1", "", "nonce")
        made = store.etcd.create(BLOCK, block.name, "net", block.to_json())
        assert made
        about = NodeBlocks("net", "etcd", store.etcd.identity(), "node1", "", 4, ("10.0.0.0/24",))
        write(ipam / "net", about.having(OwnedBlock(0, made.uid, "node1")))
        for number in range(4):
            ips = (Ip(ip_interface((FIRST + number, 24)), None),)
            owner = Owner(Key(f"c{number}", "net1"))
            open_in(ipam, "net", []).reserve(owner, lambda _, ips=ips: ips, ((Span(4, FIRST, FIRST + 63),),))
        file.write_text(json.dumps({"backends": {"etcd": {"endpoints": store.servers.urls}, "nodeName": "node1"}}))
        process = NodeProcess(Path(folder), [{"name": "example.com/vf", "kind": "vf"}])
        process.program = [binary]
        run, _ = process.mounts  # the process is in the machine's network namespace, and /sys shows that
        process.mounts = [
            run,
            "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/cni",
            f"cp -a {folder}/hpn /var/lib/cni/hpn",
            f"mount -t tmpfs tmpfs /etc && mkdir -p /etc/hpn && cp {file} /etc/hpn/policy.json",
        ]
        yield process


def test_it_claims_and_answers(process: NodeProcess, store: Store) -> None:
    store.suspect(0)
    with process:
        process.says("node1 was suspected to be dead; it lives")
        until(lambda: len(store.blocks()) == 2, "another block", 60, 0.1)
        assert {(block.node, block.suspect) for block in store.blocks()} == {("node1", 0)}
        until(lambda: process.sleeps(2), "it to sleep", 120)


def test_the_store_is_away(process: NodeProcess, store: Store) -> None:
    """hpn node reports the outage once, and claims the block on request after the store is back."""
    store.servers.kill()
    with process:
        process.says("network net: ")
        assert len([line for line in process.said if "network net: " in line]) == 1
        store.servers.members[0].start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as command:
            command.sendto(report.LOW, f"/proc/{process.process.pid}/root{report.ROOM}")
        until(lambda: len(store.blocks()) == 2, "another block", 120, 0.5)
