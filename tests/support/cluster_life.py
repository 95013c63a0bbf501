"""A cluster over days: nodes come and go, and pods with them, on a clock of its own.

Each node runs the real ADD, DEL, scheduling of rounds and rounds, with its own files.  All share a backend
(life_backends.py).  The link of all pods answers probes for the living ones.
"""

import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.cluster_nodes import Node
from support.ipam_calls import of
from support.life_backends import ApiServer, Gateway
from support.life_hosts import Background, Host

from base.protocol import report
from base.protocol.result import Address, Ip
from base.state import policy
from ctl.ipam import release
from ipam import link
from ipam.allocation import Allocation
from ipam.cluster import Documents, Machine, copies, node_blocks
from ipam.cluster.backends import backend
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.node_blocks import GRACE, LOST
from ipam.cluster.reconcile import reconcile
from ipam.cluster.rules.network import directory_in
from ipam.stores import none_gone
from node import blocks

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
STEP = 5 * MINUTE
# The time in which the block of a machine that is gone must be free, or a needy node's.
MOST = GRACE + HOUR
# Little room is less than two addresses of a block.
SIZE = 8
# Requests per node about its other networks in the rounds that follow a job's start.
JOB = 2.0
NAMES = [f"web-{number}" for number in range(4)]
# The other networks of a node with GPUs.
RAILS = [f"rail{number}" for number in range(3)]
# Addresses of "net" that a later configuration excludes.
EXCLUDED = ip_network("10.0.0.128/26")
FULL, TRY_AGAIN, UNKNOWN = 103, 11, 5


class Life:
    """The cluster.  ``wrong`` collects violations, ``counted`` the events.

    ``numbers`` are those of nodes, of spot machines at once, and of blocks in the network of most nodes: all machines
    together need more.
    """

    def __init__(
        self, root: Path, kind: str, seed: int, numbers: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number, self.spot_machines, self._blocks = numbers
        self.root, self.kind, self.draw = root, kind, random.Random(seed)
        self.time = self.began = 1_800_000_000.0
        self.wrong, self.counted = list[str](), Counter[str]()
        self.hosts, self.numbers = list[Host](), 0
        self._is_edited = False
        # The network of nodes in another pool, and those that were retired.
        self.other, self.retired = "other", set[str]()
        # Since when the CronJob runs, without the time in which the backend was silent; None if it does not.
        self._gc: float | None = None
        # When each machine was gone, without that time.
        self.gone = dict[str, float]()
        self.served, self.node_seconds = 0.0, 0.0
        # Requests of refused ADDs.
        self.refused = 0
        # Since when each network has blocks that are free, or of a machine that is gone for long enough.
        self._free = dict[str, float]()
        # Since when a machine with pods has no report in the etcd.
        self._unreported = dict[str, float]()
        # The machine and the pod of each living pod's address, by network and address.
        self._used = dict[tuple[str, str], tuple[str, str]]()
        self.api, self.gateway = ApiServer(self.time), Gateway(lambda: self.time)
        self._clients = dict[str, Documents]()
        self._entered: Host | None = None
        self._patch(monkeypatch)
        for place in range(number):
            self.arrive(f"node{place}", "net", has_gpus=place % 4 == 0)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("store_of_life")
        module.opened = self._opened  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "store_of_life", module)
        monkeypatch.setattr(backend, "KINDS", dict.fromkeys(backend.KINDS, "store_of_life"))
        monkeypatch.setattr(backend, "_host", lambda: self._here.machine)
        monkeypatch.setattr("time.time", lambda: self.time + (self._entered.clock if self._entered else 0))
        for module_name, name in ((policy, "FILE"), (copies, "FOLDER")):
            monkeypatch.setattr(module_name, name, getattr(module_name, name))
        monkeypatch.setattr(link, "hold", self._probed)
        monkeypatch.setattr(report, "_send_if", self._notified)
        monkeypatch.setattr(Background, "now", staticmethod(lambda: self.time))
        monkeypatch.setattr(blocks, "Background", Background)
        monkeypatch.setattr(blocks.sockets, "Datagrams", lambda *_: None)
        monkeypatch.setattr(blocks.time, "monotonic", lambda: self.time)
        # The program's random choices repeat with the seed, too.
        chance = random.Random(self.draw.random())
        monkeypatch.setattr("secrets.randbelow", chance.randrange)
        monkeypatch.setattr("secrets.token_hex", lambda number: chance.randbytes(number).hex())
        for of_module in (random.random, random.uniform):
            monkeypatch.setattr(random, of_module.__name__, getattr(chance, of_module.__name__))

    @property
    def _here(self) -> Host:
        assert self._entered
        return self._entered

    @property
    def store(self) -> ApiServer | Gateway:
        return self.api if self.kind == "kubernetes" else self.gateway

    def _opened(self, _about: object, name: str) -> tuple[Documents, str]:
        if self.kind == "kubernetes":
            return self.api, name
        return self._clients.setdefault(f"{name} {self._here.machine}", Etcd(self.gateway, "/hpn")), name  # type: ignore[arg-type]

    def _probed(self, allocation: Allocation, *, again: bool) -> tuple[Ip, ...]:  # noqa: ARG002
        """As ipam.link.hold, on a link on which all living pods answer."""
        network = Path(allocation.store.directory).name

        def ask(addresses: Collection[Address]) -> Mapping[Address, str]:
            used = {one: self._used.get((network, f"{one}")) for one in addresses}
            return {one: f"02:{hash(owner) & 0xFF:02x}" for one, owner in used.items() if owner}

        asked = link.Prober(ask, "the link", [s.all_spans for s in allocation.pool.sets])
        requested = allocation.pool.requested
        hold = partial(allocation.hold, requested)
        ips = link.resolve(allocation.store, allocation.request.key, requested, hold, asked, allocation.log)
        allocation.note_probed(ips)
        return ips

    def _notified(self, is_so: Callable[[], bool], line: bytes) -> None:
        if is_so() and self._here.daemon:
            self._here.datagrams += 1
            self._here.daemon._receive([line])

    def enter(self, host: Host) -> None:
        self._entered = host
        host.node.enter()
        os.environ["HPN_STATE_DIR"] = f"{host.node.state}"

    # Nodes

    def arrive(self, name: str, network: str, *, has_gpus: bool = False) -> Host:
        """Start a new machine of that name, with an empty disk."""
        self.numbers += 1
        machine, state = f"uid-{self.numbers}", self.root / f"{self.numbers}"
        state.mkdir()
        file = self.root / f"{self.numbers}.json"
        file.write_text(json.dumps({"backends": {"nodeName": name}}))
        file.chmod(0o600)
        node = Node(state, {}, {"name": network}, name=name, node_file=file)
        host = Host(name, machine, node, network, has_gpus=has_gpus)
        self.hosts.append(host)
        self.enter(host)
        self._renew(host)
        self.restart(host)
        for rail in RAILS if has_gpus else ():
            self._attach(host, f"gpu-{machine}x", rail)
        return host

    def restart(self, host: Host) -> None:
        """Restart hpn node."""
        self.enter(host)
        host.daemon = blocks.Blocks(None, partial(self._rounds, host), Path("/nonexistent"))  # type: ignore[arg-type]

    def _rounds(self, host: Host, due_only: bool = False) -> Any:
        self.enter(host)
        networks, problems = copies.networks([host.node.state / "ipam"])
        if not networks and not problems:
            return None
        return tuple(reconcile.rounds(networks, none_gone, due_only=due_only))

    def leave(self, host: Host) -> None:
        """End the machine and all its pods, minutes after its last pod came."""
        self.enter(host)
        host.run(MINUTE)
        self.hosts.remove(host)
        for pod, ip in host.pods.items():
            if self._used.get((host.network, ip)) == (host.machine, pod):
                del self._used[host.network, ip]
        self.gone[host.machine] = self.served
        self.api.machines.pop(host.name, None)
        shutil.rmtree(host.node.state)
        shutil.rmtree(f"{host.node.state}.copies", ignore_errors=True)

    def replace(self, host: Host) -> None:
        """Let an autoscaler replace the machine: the next one may have its name, and serve another network."""
        self.leave(host)
        self.counted["replaced"] += 1
        has_same_name = self.draw.random() < 0.5
        name = host.name if has_same_name else f"node{self.numbers + 1000}"
        self.arrive(name, self.other if self.draw.random() < 0.3 else "net", has_gpus=host.has_gpus)

    def spot(self) -> None:
        """Let spot machines come for half an hour, and as many others after them, each until its pod runs."""
        self.counted["spot machines"] += 2 * self.spot_machines
        for lives in (HOUR / 2, 6 * HOUR):
            new = [self.arrive(f"spot{self.numbers + 1}", "net") for _ in range(self.spot_machines)]
            until = self.time + lives
            for host in new:
                host.quiet = until + DAY
                self.start(host)
            while new and self.time < until and not self.wrong:
                self.step()
                for host in [host for host in new if lives > HOUR and not host.needs]:
                    new.remove(host)
                    self.leave(host)
            for host in new:
                self.leave(host)

    def _renew(self, host: Host) -> None:
        if not self.api.is_silent:
            self.api.machines[host.name] = Machine(host.name, host.machine, self.time)

    # Time

    def step(self, *, is_cut: bool = False) -> None:
        """Let some minutes pass, with what happens in them.

        With ``is_cut``, the backend answers none of the first tenth of the nodes.
        """
        self.time += STEP
        self.api.clock = self.time
        is_silent = self.store.is_silent
        self.served += 0 if is_silent else STEP
        self.node_seconds += 0 if is_silent else STEP * len(self.hosts)
        for place, host in enumerate(list(self.hosts)):
            self._renew(host)
            self.store.is_silent = is_silent or (is_cut and place <= len(self.hosts) / 10)
            self.enter(host)
            host.run()
            self._delete_lost(host)
            # A runtime repeats a refused ADD all the time; for the spot machines, every third step suffices.
            is_turn = (self.time // STEP + int(host.machine.removeprefix("uid-"))) % 3 == 0
            if not host.is_broken and (host.quiet <= self.time or (host.needs and is_turn)):
                self._pods(host)
        self.store.is_silent = is_silent
        self._entered = None
        if self._gc is not None and not is_silent:
            release.collect(self.api, dry_run=False)
        self._check()

    def _delete_lost(self, host: Host) -> None:
        """Delete the pods with addresses of lost blocks, as an operator does after a restore.

        Without a restore, no living node may lose a block.
        """
        directory = host.node.state / "ipam" / host.network
        for folder in (directory, Path(directory_in(directory))):
            file = folder / node_blocks.FILE
            if not file.exists() or LOST.encode() not in file.read_bytes() or not (mine := node_blocks.read(folder)):
                continue
            lost = {block.index for block in mine.blocks if block.state == LOST}
            if not self.counted["restores"]:
                self.wrong += [f"{self.at} {host.name} has lost block {index} of {mine.network}" for index in lost]
            for pod in [pod for pod, ip in host.pods.items() if (int(ip_address(ip)) & 0xFFFF) // mine.size in lost]:
                self.counted["pods of lost blocks"] += 1
                self.end(host, pod)

    def _pods(self, host: Host) -> None:
        if host.quiet <= self.time and host.pods and self.draw.random() < 0.3:
            self.end(host, self.draw.choice(sorted(host.pods)))
        if host.needs or (len(host.pods) < 8 and self.draw.random() < 0.7):
            for again in [*host.needs] or [""]:
                self.start(host, again)

    def start(self, host: Host, pod: str = "") -> bool:
        """Start a pod; one with the name of a StatefulSet's has its number on all nodes."""
        self.numbers += 0 if pod else 1
        pod = pod or f"pod-{host.machine}-{self.draw.randrange(1 << 30)}x"
        before = self.store.requests
        answer = self._attach(host, pod, host.network)
        if "ips" not in answer:
            self.refused += self.store.requests - before
            self.counted[f"refused {answer['code']}"] += 1
            if answer["code"] not in (FULL, TRY_AGAIN, UNKNOWN):
                self.wrong.append(f"{self.at} {host.name} {pod}: {answer}")
            if answer["code"] == FULL or pod.startswith("web"):
                host.needs.setdefault(pod, self.served)
            return False
        host.needs.pop(pod, None)
        (ip,) = (one["address"].partition("/")[0] for one in answer["ips"])
        if (owner := self._used.setdefault((host.network, ip), (host.machine, pod))) != (host.machine, pod):
            self.wrong.append(f"{self.at} {ip} of {pod} on {host.name} is of {owner[1]} on {owner[0]} too")
        if self._is_edited and host.network == "net" and ip_address(ip) in EXCLUDED:
            self.wrong.append(f"{self.at} {pod} on {host.name} has {ip}, which is excluded")
        host.pods[pod] = ip
        self.counted["started"] += 1
        return True

    def _attach(self, host: Host, pod: str, network: str) -> dict[str, Any]:
        self.enter(host)
        cluster = {"backend": self.kind, "blockSize": SIZE, "sticky": "0-15"}
        host.node.ipam = {**self._ranges(network), "gateway": None, "sticky": 60, "cluster": cluster}
        return host.node.call("ADD", pod, *of(pod.partition(".")[0]), name=network)

    def _ranges(self, network: str) -> dict[str, Any]:
        if network != "net":
            return {"subnet": f"10.{100 + RAILS.index(network)}.0.0/16" if network in RAILS else "10.9.0.0/16"}
        edited = {"exclude": [f"{EXCLUDED}"]} if self._is_edited else {}
        return {"subnet": "10.0.0.0/16", "rangeEnd": f"{ip_address('10.0.0.0') + self._blocks * SIZE - 1}", **edited}

    def end(self, host: Host, pod: str) -> None:
        self.enter(host)
        if host.node.call("DEL", pod, *of(pod.partition(".")[0]), name=host.network) == {}:
            del self._used[host.network, host.pods.pop(pod)]

    # Faults

    def partition(self, seconds: float) -> None:
        """Cut nodes off from the backend: all of them, or those that ask it in a shorter time."""
        self.counted["partitions"] += 1
        if seconds < STEP:
            self.step(is_cut=True)
            return
        self.store.is_silent = True
        for _ in range(int(seconds / STEP)):
            self.step()
        self.store.is_silent = False

    def job(self) -> None:
        """Start a job's pods in one network of all nodes with GPUs.

        Count the requests about their other networks in the rounds that follow within seconds.
        """
        self.counted["jobs"] += 1
        able = [host for host in self.hosts if host.has_gpus and not host.is_broken]
        for host in able:
            host.run(MINUTE)
            before = host.datagrams
            for _ in range(3 * SIZE):
                if host.datagrams == before:
                    self.start(host)
        spent = list[int]()
        self.time = self.api.clock = self.time + 15
        # A node whose round of all networks is due then may ask for all of them.
        for host in [one for one in able if one.daemon and one.daemon._all_at > self.time]:
            before = self._about_rails()
            self.enter(host)
            host.run()
            spent.append(self._about_rails() - before)
        self.counted["rounds of jobs"] += len(spent)
        if sum(spent) > JOB * len(spent):
            self.wrong.append(f"{self.at} a job's start caused {spent} requests about each node's other networks")

    def _about_rails(self) -> int:
        return sum(self.store.by_network[rail] for rail in RAILS)

    def break_disk(self, host: Host) -> None:
        """Make every lock there fail, as a read-only file system does; no other pod starts there."""
        self.counted["disks broken"] += 1
        host.is_broken, host.needs = True, {}
        for file in host.node.state.rglob("*lock"):
            file.unlink()
            file.symlink_to(file)

    def restore(self, before: float) -> None:
        """Restore the backend to its state of so many seconds ago."""
        undo = self.store.backup()
        for _ in range(int(before / STEP)):
            self.step()
        undo()
        self.counted["restores"] += 1
        self.gone = dict.fromkeys(self.gone, self.served)

    def retire(self) -> None:
        """Retire the other network: its pods end, an operator removes its documents, and its nodes serve "net"."""
        self.counted["retired"] += 1
        for host in [host for host in self.hosts if host.network == self.other]:
            if host.is_broken:
                self.replace(host)
                continue
            for pod in [*host.pods]:
                self.end(host, pod)
            host.network, host.needs = "net", {}
        for host in [host for host in self.hosts if host.network == self.other]:
            self.leave(host)
        self.store.forget(self.other)
        self.retired.add(self.other)
        self.other = f"other{len(self.retired)}"

    def edit(self) -> None:
        """Enlarge the range of "net", and exclude a part of it."""
        self.counted["edited"] += 1
        self._blocks, self._is_edited = 2 * self._blocks, True

    def turn_gc(self, *, on: bool) -> None:
        """Switch the CronJob, which is for Kubernetes, on or off."""
        self._gc = self.served if on and self.kind == "kubernetes" else None

    # Checks

    @property
    def at(self) -> str:
        return f"after {(self.time - self.began) / HOUR:.2f} h:"

    @property
    def requests(self) -> float:
        """Requests per node and hour, besides those of refused ADDs."""
        return (self.store.requests - self.refused) / self.node_seconds * HOUR

    def _check(self) -> None:
        if self.store.is_silent:
            return
        # An etcd's lease ends an hour after the last report, and another machine of the name may report and end too.
        most = MOST + (2 * GRACE if self.kind == "etcd" else 0)
        documents = self.store.blocks()
        late = [
            one for one in documents
            if one.node and one.machine in self.gone and self.served - self.gone[one.machine] > most
        ]  # fmt: skip
        if self._gc is not None and self.served - self._gc > most:
            self.wrong += [f"{self.at} block {one.name} is held by {one.node}, which is gone" for one in late]
        self.wrong += [f"{self.at} {one.name} is there again" for one in documents if one.network in self.retired]
        self._check_reports()
        broken = {host.machine for host in self.hosts if host.is_broken}
        fresh = {machine for machine, since in self.gone.items() if self.served - since <= most}
        numbers, of_late = Counter(one.network for one in documents), {one.network for one in late}
        for network in {host.network for host in self.hosts}:
            if numbers[network] < self._most(network) or network in of_late:
                self._free.setdefault(network, self.served)
            else:
                self._free.pop(network, None)
        # A machine that lives and cannot write keeps the number of a pod that ended there.
        kept = {one.whose for one in documents if one.whose and (one.machine in broken or one.machine in fresh)}
        for host in [host for host in self.hosts if host.needs]:
            since = self._free.get(host.network, self.served)
            for pod, needy in host.needs.items():
                if any(pod in whose for whose in kept):
                    continue
                if self.served - needy > most and (self.served - since > 4 * STEP or pod in NAMES):
                    self.wrong.append(f"{self.at} {pod} on {host.name} waits for {(self.served - needy) / HOUR:.1f} h")

    def _check_reports(self) -> None:
        """An etcd must always have the report of a node with pods, whatever its disk does."""
        for host in self.hosts if self.kind == "etcd" else ():
            if not host.pods or f"/hpn/alive/{host.name}" in self.gateway.member.keys:
                self._unreported.pop(host.machine, None)
            elif self.served - self._unreported.setdefault(host.machine, self.served) > 4 * STEP:
                self.wrong.append(f"{self.at} {host.name} has pods, and its report has ended")

    def _most(self, network: str) -> int:
        """Return the number of blocks that surely can be claimed in the network's ranges."""
        if network != "net":
            return (1 << 16) // SIZE - 5
        return self._blocks - self._is_edited * EXCLUDED.num_addresses // SIZE - 5
