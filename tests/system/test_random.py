"""Random attachments, with callers that are killed and pods that change them, keep the invariants."""

import json
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import drawn
from support.topology import leases, until
from system.agents import call, running
from system.machine import Machine, fabric, ours

NETWORKS = {"a": 56, "b": 57}
ROUNDS, STEPS, CALLERS = 50, 12, 4
# Another attachment has the name, address, table or sysctl; ADD is refused for no other reason.
REFUSED = {7, 100, 102}
INSIDE = (
    "link delete {ifname}",
    "address flush dev {ifname} scope global",
    "link set {ifname} down",
    "-{family} rule delete from {address}",  # if such a rule exists
)


@dataclass
class Attachment:
    """An attachment that one caller at a time uses, requested with ``wanted``.

    ``result`` is the answer of ADD; it is None if the attachment is detached, or if the caller was killed and so the
    state is unknown (not ``known``).  If its pod was ``changed``, CHECK may report it, and ADD may find the interface
    gone.
    """

    pod: str
    ifname: str
    network: str
    wanted: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    known: bool = True
    changed: bool = False

    @property
    def container(self) -> str:
        return fabric.container_id(self.pod)

    def became(self, result: dict[str, Any] | None, *, known: bool = True) -> None:
        self.result, self.known, self.changed = result, known, False


def wishes(chance: random.Random, network: str) -> dict[str, Any]:
    """A random choice of keys; the network's ranges change from call to call."""

    def some(**keys: Any) -> dict[str, Any]:
        return {key: value for key, value in keys.items() if chance.random() < 0.2}

    third = NETWORKS[network]
    v4, v6 = {"subnet": f"10.{third}.0.0/26"} | some(gateway=None), {"subnet": f"fd00:{third}::/64"}
    ranges = chance.choice([[[v4]], [[v6]], [[v4], [v6]]])
    ipam = {"type": "hpn-ipam", "ranges": ranges} | some(sticky=5, releaseCooldown=1, probe=0.03)
    sysctl = {"net.core.somaxconn": chance.choice(["1024", "2048"]), "net.ipv4.conf.IFNAME.rp_filter": "2"}
    return ours(ipam=ipam) | some(
        mtu=1400, mode="private", dad="off", policyRouting=True, multiRail=True, sysctl=sysctl
    )


class Node:
    """The node that callers use, with the checks of its state."""

    def __init__(self, machine: Machine, agent: Path) -> None:
        self.machine, self.agent = machine, agent
        pods = [machine.pod() for _ in range(3)]
        self.all = [Attachment(p, i, n) for p in pods for n in NETWORKS for i in ("hpn0", f"{n}0", f"{n}1")]

    def body(self, one: Attachment, conf: dict[str, Any]) -> str:
        return json.dumps({"cniVersion": "1.1.0", "name": one.network, **self.machine.local(conf)})

    def ask(self, chance: random.Random, verb: str, one: Attachment, conf: dict[str, Any]) -> dict[str, Any]:
        """The decoded answer, empty if there is none; mostly from the agent."""
        agent = self.agent if chance.random() < 0.85 else ""
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={one.pod}"
        body = self.body(one, conf)
        done = call(self.machine, agent, verb, one.pod, body, CNI_IFNAME=one.ifname, CNI_ARGS=args)
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        assert (done.returncode != 0) == ("code" in answer), (verb, one, done)
        assert "Traceback" not in done.stderr
        return answer

    def killed(self, chance: random.Random, verb: str, one: Attachment) -> None:
        """Kill the caller; without an agent that kills the plugin."""
        agent = str(self.agent) if chance.random() < 0.5 else ""
        environ = self.machine.command(verb, one.pod) | {"CNI_IFNAME": one.ifname, "HPN_AGENT": agent}
        argv = ["timeout", "--signal=KILL", f"{chance.random() * 0.1:.3f}", str(self.machine.tools.hpn)]
        self.machine.node.run(argv, environ, self.body(one, wishes(chance, one.network)))
        one.became(None, known=False)

    def add(self, chance: random.Random, one: Attachment) -> None:
        wanted = wishes(chance, one.network)
        answer = self.ask(chance, "ADD", one, wanted)
        if "code" in answer:
            assert answer["code"] in REFUSED, (one, wanted, answer)
            # The ADD first undid the attachment that its pod had changed.
            if one.changed and not self.record(one).exists():
                one.became(None)
            return
        assert one.result is None or one.changed, (one, answer)
        one.became(answer)
        one.wanted = wanted
        (link,) = fabric.ip("address", "show", "dev", one.ifname, netns=one.pod)
        assert link["address"] == answer["interfaces"][0]["mac"]
        there = {f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"}
        assert there == {ip["address"] for ip in answer["ips"]}

    def check(self, chance: random.Random, one: Attachment) -> None:
        if one.result:
            answer = self.ask(chance, "CHECK", one, one.wanted | {"prevResult": one.result})
            assert answer == {} or (one.changed and answer["code"] == 107), (one, answer)

    def delete(self, chance: random.Random, one: Attachment) -> None:
        """DEL with a configuration that may have changed since ADD."""
        had = {ip["address"].partition("/")[0] for ip in (one.result or {"ips": []})["ips"]}
        assert self.ask(chance, "DEL", one, wishes(chance, one.network)) == {}
        one.became(None)
        until(lambda: not (had & {rule["src"] for rule in rules_of(one.pod)}) - self.beside(one))
        assert not self.record(one).exists()
        assert (one.container, one.ifname) not in self.held(one.network)

    def record(self, one: Attachment) -> Path:
        return self.machine.state / "attachments" / one.network / f"{one.container}:{one.ifname}.json"

    def held(self, network: str) -> set[tuple[str, str]]:
        found = leases(self.machine.state / "ipam", network)
        return {(lease["containerID"], lease["ifname"]) for lease in found if "containerID" in lease}

    def beside(self, one: Attachment) -> set[str]:
        """The addresses of the pod's other attachments to the network.  Another caller may attach one at any time and
        get an address that was free a moment before."""
        found = leases(self.machine.state / "ipam", one.network)
        theirs = [lease for lease in found if lease.get("containerID") == one.container]
        return {a.partition("/")[0] for lease in theirs if lease["ifname"] != one.ifname for a in lease["addresses"]}

    def change(self, chance: random.Random, one: Attachment) -> None:
        """Change the attachment as a process in the pod may."""
        if one.result and self.record(one).exists():
            address = chance.choice(one.result["ips"])["address"].partition("/")[0]
            family = 6 if ":" in address else 4
            words = chance.choice(INSIDE).format(ifname=one.ifname, address=address, family=family).split()
            subprocess.run(["ip", "-netns", one.pod, *words], check=False, capture_output=True)
            one.changed = True

    def caller(self, mine: list[Attachment], seed: float) -> None:
        chance = random.Random(seed)
        for _ in range(STEPS):
            one, what = chance.choice(mine), chance.random()
            if what < 0.5:
                self.add(chance, one)
            elif what < 0.8:
                self.delete(chance, one)
            elif what < 0.9:
                self.check(chance, one)
            elif what < 0.95:
                self.killed(chance, chance.choice(["ADD", "DEL"]), one)
            else:
                self.change(chance, one)

    def collect(self, chance: random.Random, network: str) -> None:
        """GC by a runtime that has forgotten some attachments."""
        all_of_it = [one for one in self.all if one.network == network]
        kept = [one for one in all_of_it if one.result and chance.random() < 0.5]
        valid = [{"containerID": one.container, "ifname": one.ifname} for one in kept]
        conf = wishes(chance, network) | {"cni.dev/valid-attachments": valid}
        # time: longer than what GC leaves alone
        time.sleep(0.1)
        assert self.ask(chance, "GC", all_of_it[0], conf) == {}
        for one in all_of_it:
            if one not in kept:
                one.became(None)

    def holds(self, chance: random.Random) -> None:
        """Assert the invariants while no request runs."""
        given = [(one.network, ip["address"]) for one in self.all if one.result for ip in one.result["ips"]]
        assert len(set(given)) == len(given)
        for one in self.all:
            self.check(chance, one)
            assert not one.known or bool(one.result) == self.record(one).exists(), one
        for network in NETWORKS:
            attached = {(one.container, one.ifname) for one in self.all if one.network == network and one.result}
            unknown = {(one.container, one.ifname) for one in self.all if not one.known}
            assert attached <= self.held(network) <= attached | unknown


def rules_of(pod: str) -> list[dict[str, Any]]:
    return [rule for family in ("-4", "-6") for rule in fabric.ip(family, "rule", netns=pod)]


def shared(pods: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The state that attachments of a pod share."""
    for pod in pods:
        argv = ["ip", "netns", "exec", pod, "sysctl", "-n", "net.core.somaxconn"]
        yield subprocess.check_output(argv, text=True), rules_of(pod)


def test_attachments_come_and_go(machine: Machine, tmp_path: Path) -> None:
    """The seed determines each caller's requests, but not their interleaving."""
    chance, node = random.Random(drawn.seed()), Node(machine, tmp_path / "agent.sock")
    before = list(shared(machine.pods))
    with running(machine, node.agent), ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(drawn.count(ROUNDS, "rounds of requests")):
            seeds = [chance.random() for _ in range(CALLERS)]
            for done in [pool.submit(node.caller, node.all[n::CALLERS], seed) for n, seed in enumerate(seeds)]:
                done.result()
            node.holds(chance)
            if chance.random() < 0.3:
                node.collect(chance, chance.choice(list(NETWORKS)))
        for one in node.all:
            node.delete(chance, one)
    assert list(shared(machine.pods)) == before
    machine.nothing_held()
