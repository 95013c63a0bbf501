"""Three nodes with hpn node, which a real Prometheus reads in a healthy and in an unhealthy state."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.node_process import NodeProcess
from support.sysfs_tree import Tree, write
from support.topology import until
from system.machine import Tools
from system.prometheus import Prometheus, example, rules

from base.protocol.location import IPAM_DIR
from base.protocol.result import Ip
from base.protocol.spec import Key
from ipam.cluster import node_blocks
from ipam.cluster.node_blocks import LOST, NodeBlocks, OwnedBlock
from ipam.ranges import Span
from ipam.stores import Owner
from ipam.stores.access import open_in

# Five usable addresses: the second to the sixth.
OURS = {"type": "hpn-ipam", "subnet": "10.56.0.0/29"}
SHARED = "shared"
# An IPAM plugin that is slow, then fails.
SLOW = "#!/bin/sh\nsleep 3\nexit 1\n"
RESOURCE = {"name": "example.com/rail0", "kind": "master", "selectors": {"ifNames": ["rail0"], "kinds": ["netdev"]}}
QUICK = {"downAfter": 0, "upAfter": 0}
LINKS = (
    *("mount -t tmpfs tmpfs /var/lib", "ip link add rail0 type veth peer name fabric"),
    *("ip link set lo up", "ip link set rail0 up", "ip link set fabric up"),
)


@dataclass(frozen=True)
class Seen:
    """The alerts while all was ``well``, and while all was ``ill``; ``then`` is the time of the latter."""

    prometheus: Prometheus
    well: dict[str, dict[str, Any]]
    ill: dict[str, dict[str, Any]]
    then: float


class Attaching:
    """A node with a NIC rail0 that has a link, for pods; its files are invisible outside."""

    def __init__(self, tools: Tools, folder: Path, stack: ExitStack) -> None:
        self.tools, self.folder, self.stack = tools, folder, stack
        self.process = node(tools, folder, f"unix:{folder}/metrics.sock", RESOURCE)
        self.process.mounts += LINKS
        stack.enter_context(self.process)
        self.process.says("offers example.com/rail0: ")
        self.pod = self._start("unshare", "--net", "sleep", "600")
        until(lambda: Path(f"/proc/{self.pod.pid}/comm").read_text() == "sleep\n")
        (folder / "slow").write_text(SLOW)
        (folder / "slow").chmod(0o755)

    def run(self, *words: str) -> None:
        assert self._start(*words).wait(60) == 0

    def add(self, *ifnames: str, ipam: dict[str, str]) -> list[int]:
        """Attach these at once; return their exit statuses."""
        attached = [self._add(ifname, ipam) for ifname in ifnames]
        return [one.wait(60) for one in attached]

    def lose_a_block(self) -> None:
        """Set up a cluster's network of one full block, and a lost one, last reconciled two hours ago."""
        ours = NodeBlocks(SHARED, "etcd", "cluster", "node1", "", 1, ("10.57.0.0/24",), looked=int(time.time()) - 7200)
        node_blocks.write(
            self.folder / SHARED, ours.having(OwnedBlock(5, "a", "node1"), OwnedBlock(6, "b", "node1", LOST))
        )
        span = Span.of(ip_address("10.57.0.5"), ip_address("10.57.0.5"))
        ips = (Ip(ip_interface("10.57.0.5/24"), None),)
        open_in(self.folder, SHARED, []).reserve(Owner(Key("pod2", "hpn0")), lambda _: ips, ((span,),))
        self.run("cp", "-r", f"{self.folder / SHARED}", f"{IPAM_DIR}/{SHARED}")

    def _add(self, ifname: str, ipam: dict[str, str]) -> "subprocess.Popen[bytes]":
        env = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "pod1",
            "CNI_NETNS": f"/proc/{self.pod.pid}/ns/net",
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(self.folder),
        }
        network = {"cniVersion": "1.0.0", "name": "rail0", "type": "hpn", "master": "rail0", "ipam": ipam}
        return self._start(str(self.tools.hpn), env=env, stdin=json.dumps(network))

    def _start(self, *words: str, env: dict[str, str] | None = None, stdin: str = "") -> "subprocess.Popen[bytes]":
        argv = ["nsenter", f"--target={self.process.process.pid}", "--mount", "--net", *words]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            argv, env={**os.environ, **(env or {})}, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        assert process.stdin
        with process.stdin as pipe:
            pipe.write(stdin.encode())
        return process


def node(tools: Tools, folder: Path, metrics: str, *resources: dict[str, Any]) -> NodeProcess:
    (folder / "kubelet/plugins_registry").mkdir(parents=True)
    process = NodeProcess(folder, [], "--metrics", metrics)
    process.write(list(resources), health=QUICK)
    process.program, process.namespaces = [str(tools.hpn)], ["--mount", "--net"]
    return process


def targets(*addresses: str) -> list[dict[str, Any]]:
    """node1 and so on, each read as conf/ shows for such an address."""
    entries = example()["scrape_configs"][0]["static_configs"]
    found = []
    for number, address in enumerate(addresses, 1):
        unix = address.startswith("unix:")
        [entry] = [one for one in entries if ("__unix_socket__" in one["labels"]) == unix]
        labels = {"instance": f"node{number}"} | ({"__unix_socket__": address[5:]} if unix else {})
        assert labels.keys() == entry["labels"].keys()
        found.append({"targets": entry["targets"] if unix else [address], "labels": labels})
    return found


@contextmanager
def seen(tools: Tools, programs: Path) -> Iterator[Seen]:
    """Start all, make all fail, and record the alerts."""
    # A socket's path has at most 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as path, ExitStack() as stack:
        folders = [Path(path, name) for name in ("attaching", "rdma", "ending", "prometheus")]
        for folder in folders:
            folder.mkdir()
        attaching = Attaching(tools, folders[0], stack)
        port = _with_rdma(tools, folders[1], stack)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        ending = node(tools, folders[2], address, RESOURCE)
        ending.namespaces, ending.mounts = ["--mount"], ending.mounts[:1]  # Prometheus must reach its loopback
        prometheus = Prometheus(programs, folders[3])
        read = targets(*(f"unix:{folder}/metrics.sock" for folder in folders[:2]), address)
        prometheus.configure(*read)
        with ending:
            stack.enter_context(prometheus)
            until(prometheus.ready, 120)
            assert attaching.add("hpn0", "hpn1", ipam=OURS) == [0, 0]
            until(lambda: prometheus.query("sum(up) == 3 and sum(hpn_attachments) == 2"), 120)
            # time: nothing is to happen
            time.sleep(5)
            well = prometheus.alerts()
        _damage(attaching, port)
        every = [rule["alert"] for rule in rules() if rule["alert"] != "HpnAbsent"]
        for _ in range(15):  # a rate needs a few readings, and a runtime retries too
            _fail(attaching, port)
            if prometheus.fire(every):
                break
        ill, then = prometheus.alerts(), time.time()
        prometheus.configure()
        prometheus.reload()
        until(lambda: prometheus.fire(["HpnAbsent"]), 120)
        ill["HpnAbsent"] = prometheus.alerts()["HpnAbsent"]
        yield Seen(prometheus, well, ill, then)


def _with_rdma(tools: Tools, folder: Path, stack: ExitStack) -> Path:
    """A node with an HCA; its port in sysfs."""
    tree = Tree(folder / "sys")
    hca = tree.pci("0000:3b:00.0")
    tree.netdev("eth0", hca)
    tree.rdma("mlx5_0", hca, 0)
    port = hca / "infiniband/mlx5_0/ports/1"
    write(port, state="4: ACTIVE")
    for folder_, counters in (
        ("counters", ("port_rcv_data", "port_xmit_data", "symbol_error")),
        ("hw_counters", ("out_of_sequence",)),
    ):
        (port / folder_).mkdir()
        write(port / folder_, **dict.fromkeys(counters, 0))
    process = node(tools, folder, f"unix:{folder}/metrics.sock", {"name": "rdma/hca", "kind": "shared"})
    process.show(folder / "sys")
    stack.enter_context(process)
    process.says("offers rdma/hca: ")
    return port


def _damage(attaching: Attaching, port: Path) -> None:
    write(port, state="1: DOWN")
    assert attaching.add("hpn2", "hpn3", "hpn4", ipam=OURS) == [0, 0, 0]
    attaching.lose_a_block()
    attaching.run("ip", "link", "set", "fabric", "down")
    registry = f"{attaching.process.registry}"
    attaching.run("mount", "--bind", registry, registry)
    attaching.run("mount", "-o", "remount,bind,ro", registry)
    attaching.process.write([RESOURCE, RESOURCE | {"name": "example.com/more"}], health=QUICK)  # which has no socket
    attaching.process.reload()


def _fail(attaching: Attaching, port: Path) -> None:
    """For three seconds, make commands fail and a port count errors."""
    write(port / "counters", port_rcv_data=int(time.time()), symbol_error=int(time.time()))
    assert 0 not in attaching.add("slow0", "slow1", ipam={"type": "slow"})
