"""A cluster over days: nodes come and go, and pods with them, on a clock of its own.

Each node runs the real ADD, DEL, scheduling of rounds and rounds, with its own files.  All share a backend: one in
memory that behaves as an API server with kubelets, or the real client of an etcd with a member in this process.  The
link of all pods answers probes for the living ones.
"""

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.cluster_nodes import Node
from support.documents import Memory
from support.etcd_server import Member
from support.ipam_calls import of

from base.protocol import report
from base.protocol.errors import Unreachable
from base.protocol.result import Address, Ip
from base.protocol.spec import Json
from base.state import data_dirs, places
from base.state import node as policy
from ctl.cluster import release
from ipam import link
from ipam.allocation import Allocation
from ipam.cluster import BLOCK, Document, Documents, Machine, copies
from ipam.cluster.backends import backend
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.http import Answer
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.reconcile import reconcile
from ipam.cluster.rules.documents import Block
from ipam.stores import none_gone
from node import blocks

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
STEP = 5 * MINUTE
# The time in which the block of a machine that is gone must be free, or a needy node's.
MOST = GRACE + HOUR
SIZE = 4
# Requests per node in the rounds that follow a job's start.
JOB = 2.0
NAMES = [f"web-{number}" for number in range(4)]
FULL, TRY_AGAIN = 103, 11


class ApiServer(Memory):
    """An API server; kubelets renew their Leases, and garbage collection removes those of removed nodes."""

    is_silent = False
    requests = 0

    def _call(self, call: str, name: str, act: Callable[[], Any], conflict: Any) -> Any:
        if self.is_silent:
            raise Unreachable("the API server does not answer")
        self.calls.clear()
        answer = super()._call(call, name, act, conflict)
        # The real backend reads the Node object and the Lease; it reads again each block in a node's list.
        self.requests += 2 if call == "machine" else 1 + len(answer) if call == "listed" and len(answer) < 20 else 1
        return answer


class Gateway:
    """An etcd's gateway without HTTP; leases expire by the simulation's clock."""

    is_silent = False
    requests = 0

    def __init__(self, now: Callable[[], float]) -> None:
        self.member, self._now, self._until = Member(), now, dict[str, float]()

    @property
    def date(self) -> float:
        return float(int(self._now()))

    def call(self, path: str, body: Json, _what: str) -> Answer:
        if self.is_silent:
            raise Unreachable("the etcd does not answer")
        for lease in [lease for lease, until in self._until.items() if until < self._now()]:
            del self._until[lease]
            self.member.expire(lease)
        self.requests += 1
        status, answer = self.member.done(path, json.loads(json.dumps(body)))
        assert status == 200, answer
        lease = str(body.get("ID") or answer.get("ID") or "")
        if path.startswith("/v3/lease/") and lease in self.member.leases:
            self._until[lease] = self._now() + self.member.leases[lease]
        return Answer(200, json.dumps(answer).encode(), self.date)

    def strange(self, what: str, why: str) -> Exception:
        return AssertionError(f"{what}: {why}")


class Background:
    """node.background.Background on the simulation's clock: the work is done at once, in this process."""

    now: Callable[[], float] = staticmethod(float)
    is_at_work = False

    def __init__(self, _loop: object, begin: Callable[[], None]) -> None:
        self._begin, self.due = begin, 0.0

    def after(self, seconds: float) -> None:
        at = self.now() + seconds
        self.due = min(self.due, at) if self.due else at

    def start(self, work: Callable[[], object], end: Callable[[Any], None]) -> None:
        answer = work()
        end(type("Child", (), {"answer": lambda _: answer})())

    def run(self, seconds: float = 0) -> None:
        """Do the work that is due by now, or in so many seconds."""
        if self.due and self.due <= self.now() + seconds:
            self.due = 0.0
            self._begin()


@dataclass
class Host:
    """A machine, its pods with their addresses, and what it needs in vain, since when."""

    name: str
    machine: str
    node: Node
    network: str
    pods: dict[str, str] = field(default_factory=dict)
    daemon: blocks.Blocks | None = None
    needs: dict[str, float] = field(default_factory=dict)
    # Until then no pod starts or ends there.
    quiet: float = 0.0
    is_broken: bool = False


class Life:
    """The cluster.  ``wrong`` collects violations, ``counted`` the events."""

    def __init__(self, root: Path, kind: str, seed: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.kind, self.draw, self.has_gc = root, kind, random.Random(seed), True
        self.time = self.began = 1_800_000_000.0
        self.wrong, self.counted = list[str](), Counter[str]()
        self.hosts, self.numbers = list[Host](), 0
        self.subnet = "10.0.0.0/22"
        # When each machine was gone, without the time in which the backend was silent.
        self.gone = dict[str, float]()
        self.served, self.node_seconds = 0.0, 0.0
        # Since when each network has blocks that are free, or of a machine that is gone for long enough.
        self._free = dict[str, float]()
        # Since when a machine with pods has no report in the etcd.
        self._unreported = dict[str, float]()
        self.api, self.gateway = ApiServer(clock=self.time), Gateway(lambda: self.time)
        self._clients, self._backup = dict[str, Documents](), list[Callable[[], None]]()
        self._entered: Host | None = None
        self._patch(monkeypatch)
        for place in range(number):
            self.arrive(f"node{place}", "net")

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("store_of_life")
        module.opened = self._opened  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "store_of_life", module)
        monkeypatch.setattr(backend, "KINDS", dict.fromkeys(backend.KINDS, "store_of_life"))
        monkeypatch.setattr(backend, "_host", lambda: self._here.machine)
        monkeypatch.setattr("time.time", lambda: self.time)
        for module_name, name in ((policy, "FILE"), (copies, "FOLDER"), (data_dirs, "DEFAULT"), (places, "COMMON")):
            monkeypatch.setattr(module_name, name, getattr(module_name, name))
        monkeypatch.setattr(places, "ELSEWHERE", f"{self.root}/none")
        monkeypatch.setattr(link, "hold", self._probed)
        monkeypatch.setattr(report, "_send_if", self._notified)
        monkeypatch.setattr(Background, "now", staticmethod(lambda: self.time))
        monkeypatch.setattr(blocks, "Background", Background)
        monkeypatch.setattr(blocks.sockets, "Datagrams", lambda *_: None)
        monkeypatch.setattr(blocks.time, "monotonic", lambda: self.time)

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

        def ask(addresses: Collection[Address]) -> Mapping[Address, str]:
            used = {ip: name for host in self.hosts for name, ip in host.pods.items()}
            return {one: f"02:{hash(used[f'{one}']) & 0xFF:02x}" for one in addresses if f"{one}" in used}

        asked = link.Prober(ask, "the link", [s.all_spans for s in allocation.pool.sets])
        requested = allocation.pool.requested
        hold = partial(allocation.hold, requested)
        ips = link.resolve(allocation.store, allocation.request.key, requested, hold, asked, allocation.log)
        allocation.note_probed(ips)
        return ips

    def _notified(self, is_so: Callable[[], bool], line: bytes) -> None:
        if is_so() and self._here.daemon:
            self._here.daemon._receive([line])

    def enter(self, host: Host) -> None:
        self._entered = host
        host.node.enter()
        data_dirs.DEFAULT, places.COMMON = f"{host.node.state}/ipam", f"{host.node.state}/run"

    # Nodes

    def arrive(self, name: str, network: str) -> None:
        """Start a new machine of that name, with an empty disk."""
        self.numbers += 1
        machine, state = f"uid-{self.numbers}", self.root / f"{self.numbers}"
        state.mkdir()
        file = self.root / f"{self.numbers}.json"
        file.write_text(json.dumps({"stores": {"nodeName": name}}))
        file.chmod(0o600)
        host = Host(name, machine, Node(state, {}, {"name": network}, name=name, node_file=file), network)
        self.hosts.append(host)
        self.enter(host)
        self._renew(host)
        self.restart(host)

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
        if host.daemon:
            host.daemon._background.run(MINUTE)  # type: ignore[attr-defined]
        self.hosts.remove(host)
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
        self.arrive(name, "other" if self.draw.random() < 0.3 else "net")

    def _renew(self, host: Host) -> None:
        if not self.api.is_silent:
            self.api.machines[host.name] = Machine(host.name, host.machine, self.time)

    # Time

    def step(self) -> None:
        """Let some minutes pass, with what happens in them."""
        self.time += STEP
        self.api.clock = self.time
        is_silent = self.store.is_silent
        self.served += 0 if is_silent else STEP
        self.node_seconds += 0 if is_silent else STEP * len(self.hosts)
        for host in list(self.hosts):
            self._renew(host)
            self.enter(host)
            if host.daemon:
                host.daemon._background.run()  # type: ignore[attr-defined]
            if not host.is_broken and (host.quiet <= self.time or host.needs):
                self._pods(host)
        if self.has_gc and not is_silent and self.kind == "kubernetes":
            release.collect(self.api, dry_run=False)
        self._check()

    def _pods(self, host: Host) -> None:
        if host.pods and self.draw.random() < 0.3:
            self.end(host, self.draw.choice(sorted(host.pods)))
        if len(host.pods) < 8:
            for again in [*host.needs][:1] or [""]:
                self.start(host, again)

    def start(self, host: Host, pod: str = "") -> bool:
        """Start a pod; one with the name of a StatefulSet's has its number on all nodes."""
        self.numbers += 0 if pod else 1
        pod = pod or f"pod-{host.machine}-{self.draw.randrange(1 << 30)}x"
        self.enter(host)
        cluster = {"store": self.kind, "blockSize": SIZE, "sticky": "0-15"}
        host.node.ipam = {"subnet": self.subnet, "gateway": None, "sticky": 60, "cluster": cluster}
        if host.network == "other":
            host.node.ipam["subnet"] = "10.9.0.0/20"
        answer = host.node.call("ADD", pod, *of(pod.partition(".")[0]))
        if "ips" not in answer:
            self.counted[f"refused {answer['code']}"] += 1
            if answer["code"] not in (FULL, TRY_AGAIN, 5):
                self.wrong.append(f"{self.at} {host.name} {pod}: {answer}")
            if answer["code"] == FULL or pod.startswith("web"):
                host.needs.setdefault(pod, self.served)
            return False
        host.needs.pop(pod, None)
        (ip,) = (one["address"].partition("/")[0] for one in answer["ips"])
        for other in self.hosts:
            if other.network == host.network and ip in other.pods.values() and other.pods.get(pod) != ip:
                self.wrong.append(f"{self.at} {ip} of {pod} on {host.name} is of a pod on {other.name} too")
        host.pods[pod] = ip
        self.counted["started"] += 1
        return True

    def end(self, host: Host, pod: str) -> None:
        self.enter(host)
        if host.node.call("DEL", pod, *of(pod.partition(".")[0])) == {}:
            del host.pods[pod]

    # Faults

    def partition(self, seconds: float) -> None:
        """Cut all nodes off from the backend."""
        self.counted["partitions"] += 1
        self.store.is_silent = True
        for _ in range(max(1, int(seconds / STEP))):
            self.step()
        self.store.is_silent = False

    def job(self) -> None:
        """Start a job's pods on all nodes at once; count the requests of the rounds that follow within seconds."""
        self.counted["jobs"] += 1
        able = [host for host in self.hosts if not host.is_broken]
        for host in able:
            for _ in range(SIZE):
                self.start(host)
        before = self.store.requests
        self.time = self.api.clock = self.time + 15
        for host in able:
            self.enter(host)
            if host.daemon:
                host.daemon._background.run()  # type: ignore[attr-defined]
        if (spent := (self.store.requests - before) / len(able)) > JOB:
            self.wrong.append(f"{self.at} a job's start caused {spent:.1f} requests per node besides its ADDs")

    def break_disk(self, host: Host) -> None:
        """Make every lock there fail, as a read-only file system does."""
        self.counted["disks broken"] += 1
        host.is_broken = True
        for file in host.node.state.rglob("*lock"):
            file.unlink()
            file.symlink_to(file)

    def restore(self, before: float) -> None:
        """Restore the API server to its state of so many seconds ago."""
        self.counted["restores"] += 1
        undo = self.api.backup()
        for _ in range(int(before / STEP)):
            self.step()
        undo()
        self.gone = dict.fromkeys(self.gone, self.served)

    # Checks

    @property
    def at(self) -> str:
        return f"after {(self.time - self.began) / HOUR:.2f} h:"

    @property
    def requests(self) -> float:
        """Requests per node and hour."""
        return self.store.requests / self.node_seconds * HOUR

    def documents(self) -> list[Block]:
        if self.kind == "kubernetes":
            bodies = self.api.bodies(BLOCK)
        else:
            keys = [key for key in self.gateway.member.keys if key.startswith(f"/hpn/{BLOCK}/")]
            bodies = {key.rpartition("/")[2]: json.loads(self.gateway.member.value(key)) for key in keys}
        return [Block.of(Document(BLOCK, name, body, "u", "1")) for name, body in bodies.items()]

    def _check(self) -> None:
        if self.store.is_silent:
            return
        # An etcd's lease ends an hour after the last report, and another machine of the name may report and end too.
        most = MOST + (2 * GRACE if self.kind == "etcd" else 0)
        documents = self.documents()
        late = [
            one for one in documents
            if one.node and one.machine in self.gone and self.served - self.gone[one.machine] > most
        ]  # fmt: skip
        if self.has_gc and self.kind == "kubernetes":
            self.wrong += [f"{self.at} block {one.name} is held by {one.node}, which is gone" for one in late]
        self._check_reports()
        broken = {host.machine for host in self.hosts if host.is_broken}
        for host in self.hosts:
            number = sum(one.network == host.network for one in documents)
            has_free = number < self._most(host) or any(one.network == host.network for one in late)
            since = self._free.setdefault(host.network, self.served) if has_free else self.served
            if not has_free:
                self._free.pop(host.network, None)
            for pod, needy in host.needs.items():
                # A machine that lives and cannot write keeps the number of a pod that ended there.
                if any(pod in one.whose and one.machine in broken for one in documents):
                    continue
                if self.served - needy > most and (self.served - since > 2 * STEP or pod in NAMES):
                    self.wrong.append(f"{self.at} {pod} on {host.name} waits for {(self.served - needy) / HOUR:.1f} h")

    def _check_reports(self) -> None:
        """An etcd must always have the report of a node with pods, whatever its disk does."""
        for host in self.hosts if self.kind == "etcd" else ():
            if not host.pods or f"/hpn/alive/{host.name}" in self.gateway.member.keys:
                self._unreported.pop(host.machine, None)
            elif self.served - self._unreported.setdefault(host.machine, self.served) > 4 * STEP:
                self.wrong.append(f"{self.at} {host.name} has pods, and its report has ended")

    def _most(self, host: Host) -> int:
        """Return the number of blocks that surely are in the network's ranges."""
        bits = 12 if host.network == "other" else 32 - int(self.subnet.partition("/")[2])
        return (1 << bits) // SIZE - 5
