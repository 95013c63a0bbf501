"""The program behind `make bench-rails`: a pod with eight rails, attached one by one as runtimes do, and all at once.

Each rail is its own network, of ours or of the Go peers, and each command a process, as in bench.py.  The time is the
whole pod's: from the first command's exec to the last one's exit.  The processor time is that of the commands, and of
the agent meanwhile.
"""

import argparse
import ctypes
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

from fabric import Node, end_by_unwinding, entered, node, run
from sides import Side, spent, workers

from base.state import claims
from base.state.claims import Claim, ClaimedDevice
from bench import PAGE, ROOT, Bench, agent, table, write

PREFIX = "hpn-rails"
CLONE_NEWNS = 0x20000
RAILS = tuple(f"rail{n}" for n in range(8))


@dataclass
class Rails(Side):
    """A pod's rails: this one, and the others."""

    others: tuple[Side, ...] = ()

    def one_by_one(self, verb: str, pods: Sequence[str]) -> float:
        """Side's for all rails one by one; DEL begins with the last attached, as with Multus."""
        rails: tuple[Side, ...] = (replace(self, others=()), *self.others)
        started = time.perf_counter()
        for pod in pods:
            for rail in rails if verb == "ADD" else reversed(rails):
                Side.one_by_one(rail, verb, [pod])
        return (time.perf_counter() - started) * 1000 / len(pods)

    def together(self, verb: str, pods: Sequence[str], at_once: int = len(RAILS)) -> float:
        """Side's for all rails of a pod at once, and one pod after the other."""
        assert at_once == 1 + len(self.others)
        started = time.perf_counter()
        for pod in pods:
            running = [(rail, *Side.start(rail, verb, pod)) for rail in (self, *self.others)]
            for rail, pid, stdout in running:
                rail.end(verb, os.waitpid(pid, 0)[1], stdout)
        return (time.perf_counter() - started) * 1000 / len(pods)


class AtOnce(Side):
    """All rails by one command: of a network that lists them, or of the cluster's in chain mode, for a claim."""

    def together(self, verb: str, pods: Sequence[str], _at_once: int = 1) -> float:
        """Side's: there is only one command."""
        return self.one_by_one(verb, pods)


def listed(rails: Rails) -> AtOnce:
    """The same rails as ``rails`` has, by one network."""
    all_rails = zip(RAILS, (rails, *rails.others), strict=True)
    ranges = [{"master": name, "ranges": rail.conf["ipam"]["ranges"]} for name, rail in all_rails]
    ipam = {**{key: value for key, value in rails.conf["ipam"].items() if key != "ranges"}, "rails": ranges}
    conf = {key: value for key, value in rails.conf.items() if key != "master"}
    conf |= {"name": f"{rails.conf['name']}-listed", "rails": [*RAILS], "ipam": ipam}
    return AtOnce(f"{rails.name}, all by one network", rails.binary, conf, rails.variables)


@contextmanager
def claimed(rails: Rails) -> Iterator[AtOnce]:
    """The same rails as ``rails`` has, attached as one claim, which is on the node meanwhile."""
    alike = {"pool": "bench", "share": "", "kind": "master", "resource": "example.com/rail", "attach": "chain"}
    devices = tuple(
        ClaimedDevice(
            **alike, request=name, device=name, id=name, interface=f"hpn{n}",
            config={k: v for k, v in rail.conf.items() if k not in ("master", "type")},
        )
        for n, (name, rail) in enumerate(zip(RAILS, (rails, *rails.others), strict=True))
    )  # fmt: skip
    pod, claim = f"{uuid.uuid4()}", f"{uuid.uuid4()}"
    chain = {
        "cniVersion": "1.1.0", "name": "bench", "type": "hpn", "claims": True,
        "prevResult": {"ips": [{"address": "10.244.0.2/24"}]},
    }  # fmt: skip
    variables = {**rails.variables, "CNI_IFNAME": "eth0", "CNI_ARGS": f"K8S_POD_UID={pod}"}
    claims.save(Claim(claim, "default", "bench", (pod,), devices))
    try:
        yield AtOnce(f"{rails.name}, all by one claim", rails.binary, chain, variables)
    finally:
        claims.forget(claim)


def on_rails(side: Side, *, dual: bool) -> Rails:
    """A side that attaches a pod to all rails, made from one that attaches it to the first."""
    first, *others = [replace(side, **_of_rail(side, n, dual=dual)) for n in range(len(RAILS))]
    members = {name: getattr(first, name) for name in ("name", "binary", "conf", "variables")}
    return Rails(**members, others=tuple(others))


def _of_rail(side: Side, n: int, *, dual: bool) -> dict[str, Any]:
    number = side.conf["name"].removeprefix("bench")
    ranges = [[{"subnet": f"10.{number}.{n}.0/24"}], *([[{"subnet": f"fd00:{number}:{n}::/64"}]] if dual else [])]
    conf = {**side.conf, "name": f"{side.conf['name']}-{n}{'d' * dual}", "master": RAILS[n]}
    conf["ipam"] = {**side.conf["ipam"], "ranges": ranges}
    return {"conf": conf, "variables": {**side.variables, "CNI_IFNAME": f"hpn{n}"}}


def run_all(bench: Bench, rounds: int, agent_pid: int) -> Iterator[str]:
    """All tables."""
    one = bench.pods[:1]

    def spending(way: Callable[[Side, str], float]) -> Callable[[Side, str], float]:
        def work(side: Side, verb: str) -> float:
            before, took = processor(agent_pid), way(side, verb)
            side.spent[verb].append((processor(agent_pid) - before) * 1000)
            return took

        return work

    ways = (("in a row", spending(lambda side, verb: side.one_by_one(verb, one))),
            ("at once", spending(lambda side, verb: side.together(verb, one, len(RAILS)))))  # fmt: skip
    for dual, words, most in ((False, "IPv4", rounds), (True, "IPv4 and IPv6", min(rounds, 5))):
        for way, work in ways:
            sides = [on_rails(side, dual=dual) for side in bench.sides(direct=True)]
            with claimed(on_rails(bench.sides()[1], dual=dual)) as by_claim:
                all_sides = [*sides, listed(on_rails(bench.sides()[1], dual=dual)), by_claim]
                done = bench.measure(all_sides, most, work)
            for side in all_sides:
                side.spent = {verb: found[-done:] for verb, found in side.spent.items()}  # without the warm-up
            yield from table(f"Eight rails {way}, {words} ({done} rounds)", all_sides)


def processor(agent_pid: int) -> float:
    """Seconds of processor time of all commands that have ended, and of the agent."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + spent(workers(agent_pid))


def leave_the_hosts_mounts() -> None:
    """Later mounts here are visible to this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):  # os.unshare is Python 3.12's
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    run("mount", "--make-rprivate", "/")


@contextmanager
def on_a_node(prefix: str, pods: Sequence[str], seconds: float, peers: Path) -> Iterator[Bench]:
    """Benches on a node with eight rails, which this process enters."""
    binary = Path(os.environ.get("HPN_BINARY", ROOT / "dist" / "hpn"))
    if not binary.is_file():
        sys.exit(f"{binary} is not there; run this by make, which builds it, or set HPN_BINARY")
    end_by_unwinding()
    leave_the_hosts_mounts()
    for name in Node(prefix).stale():
        run("ip", "netns", "delete", name)  # a killed run left it
    with tempfile.TemporaryDirectory(prefix=f"{prefix}-") as temporary, node(prefix, pods, ()) as it:
        for rail in RAILS:  # as NICs, they have no end in another namespace
            run("ip", "-netns", it.netns, "link", "add", rail, "type", "veth", "peer", "name", f"far-{rail}")
            for end in (rail, f"far-{rail}"):
                run("ip", "-netns", it.netns, "link", "set", end, "up")
        scratch = Path(temporary)
        (scratch / "bin").mkdir()
        shutil.copy(binary, scratch / "bin" / "hpn")
        # As by default: the journal in memory, the leases on a disk.
        with tempfile.TemporaryDirectory(prefix=f"{prefix}-", dir="/dev/shm") as state, entered(it.netns):
            (scratch / "state").symlink_to(state)
            run("mount", "-t", "sysfs", "none", "/sys")  # which lists the node's interfaces, as on a real one
            yield Bench(scratch / "bin", peers, scratch, [it.pod(name) for name in pods], seconds)


def said() -> str:
    """The first sentence of a section: the place of the measurement."""
    linux = ".".join(platform.release().split(".")[:2])
    binary = os.environ.get("HPN_BINARY", f"{ROOT / 'dist' / 'hpn'}")
    return f"Whole processes; {os.cpu_count()} CPUs, Linux {linux}, {run(binary, 'version').strip()}."


def main() -> None:
    options = argparse.ArgumentParser(description="A pod with eight rails, ours against the Go peers.")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--seconds", type=float, default=120, help="stop each measurement after this long")
    options.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    chosen = options.parse_args()
    peers = Path(os.environ.get("HPN_PEERS", ""))
    if os.geteuid() != 0 or not (peers / "macvlan").is_file():
        sys.exit("run it as root and as `make bench-rails`, which builds both sides, or set HPN_BINARY and HPN_PEERS")
    node_of_its_own = on_a_node(PREFIX, ["p0"], chosen.seconds, peers)
    with node_of_its_own as bench, agent(bench.plugins / "hpn", bench.scratch / "agent.sock") as pid:
        lines = list(run_all(bench, chosen.rounds, pid))
    load = f"The machine's load was {os.getloadavg()[1]:.0f}."
    lines = [f"{said()} {load} A ratio is to the first row of its command.", "", *lines]
    print("\n".join(lines))
    if chosen.write:
        write(lines, "rails")


if __name__ == "__main__":
    main()
