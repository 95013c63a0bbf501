"""The program behind `make bench-size`: the same commands on an empty node and on a large one.

The large node has 1,000 attachments, of 125 pods with eight rails each, and 5,000 interfaces (veths) beside the rails.
Later it has 64 PFs with 128 VFs each, simulated by a tree of names in place of /sys, and records of 1,000 VFs.
Requests for names and for the journal cost there as much as on such a node, but nothing can be attached.  At the end
all pods are dead.  Each command is a process.  Its processor time includes the agent's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from fabric import namespace, run
from rails import RAILS, on_a_node, on_rails, said
from sides import Side, spawned, spent, workers
from support.sysfs_tree import Tree

from base.kernel import sysfs
from base.protocol.spec import Key
from base.state import journal
from base.state.pod import Identity
from base.state.record import Record
from bench import PAGE, ROOT, WARM_UP, Bench, agent, write

PREFIX = "hpn-size"
PODS = 125
LINKS = 5000
PFS, VFS, ATTACHED = 64, 128, 1000
ROUNDS = 20


@dataclass(frozen=True)
class Command:
    """A command of the table, and its request.  ``status`` is its exit status."""

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str]
    given: bytes = b""
    status: int = 0

    def measure(self, workers: Sequence[int]) -> tuple[float, float]:
        """Milliseconds: wall, and processor, with the agent's workers."""
        before, started = spent(workers), time.perf_counter()
        pid, stdout = spawned(list(self.argv), dict(self.environ), self.given, quiet=True)
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - started
        if os.waitstatus_to_exitcode(status) != self.status:
            sys.exit(f"{self.name} exited with {status}: {os.pread(stdout, 4096, 0).decode()}")
        os.close(stdout)
        return wall * 1000, (usage.ru_utime + usage.ru_stime + spent(workers) - before) * 1000


def row(name: str, node: str, took: Sequence[tuple[float, float]]) -> str:
    wall, processor = zip(*took, strict=True)
    return f"| {name} | {node} | {statistics.median(processor):.1f} | {min(processor):.1f} | {min(wall):.1f} |"


def of_side(name: str, side: Side, verb: str, pod: str, *, status: int = 0) -> Command:
    """A verb of the plugin."""
    return Command(name, side.argv(verb, pod), side.environment(verb, pod), json.dumps(side.conf).encode(), status)


def measured(commands: Sequence[Command], node: str, rounds: int, agent_pid: int = 0) -> Iterator[str]:
    """Their rows; each round runs every command in order."""
    of_agent = workers(agent_pid) if agent_pid else []
    found: list[list[tuple[float, float]]] = [[] for _ in commands]
    for _ in range(rounds):
        for command, took in zip(commands, found, strict=True):
            took.append(command.measure(of_agent))
    for command, took in zip(commands, found, strict=True):
        yield row(command.name, node, took)


def asked(bench: Bench) -> list[Command]:
    """A runtime's requests and a person's commands, with and without the agent."""
    [pod], (_, *ours) = bench.pods, bench.sides(direct=True)
    found = list[Command]()
    for side in ours:
        words = side.name.removeprefix("hpn, ")
        found += [of_side(f"{verb}, {words}", side, verb, pod) for verb in ("ADD", "DEL", "STATUS")]
    return [*found, by_hand(bench, "list")]


def of_vfs(bench: Bench, state: Path) -> list[Command]:
    """STATUS of a configuration that takes any free VF of a PF, and an ADD of a VF."""
    [pod], (_, *ours) = bench.pods, bench.sides(direct=True)
    found, last = list[Command](), divmod(ATTACHED - 1, VFS)
    for side in ours:
        words = side.name.removeprefix("hpn, ")
        conf = {key: value for key, value in side.conf.items() if key not in ("master", "mode")}
        conf |= {"kind": "sriov", "rdma": {"mode": "off"}}
        there = replace(side, variables=side.variables | {"HPN_STATE_DIR": str(state)})
        of_any, of_one = {**conf, "pf": f"pf{last[0]}"}, {**conf, "deviceID": address(*last)}
        found.append(of_side(f"STATUS, any free VF, {words}", replace(there, conf=of_any), "STATUS", pod))
        found.append(of_side(f"ADD of a VF, refused, {words}", replace(there, conf=of_one), "ADD", pod, status=1))
    return found


def by_hand(bench: Bench, *words: str) -> Command:
    environ = {name: os.environ[name] for name in ("PATH", "HPN_PROGRAM_DIR") if name in os.environ}
    places = ["--state-dir", str(bench.scratch / "state")]
    return Command(" ".join(["hpn", *words[:1]]), [str(bench.plugins / "hpn"), *words, *places], environ)


def make_links() -> None:
    """Make 5,000 links; two have the names of free VFs: the first of the last PF in use, and the next one that no pod
    has."""
    pf, free = divmod(ATTACHED, VFS)
    pairs = [(netdev(pf, 0), netdev(pf, free)), *((f"v{n}", f"w{n}") for n in range(1, LINKS // 2))]
    batch = "".join(f"link add {name} type veth peer name {peer}\n" for name, peer in pairs)
    subprocess.run(["ip", "-batch", "-"], input=batch, text=True, check=True)


def address(pf: int, vf: int = -1) -> str:
    """The bus address of a PF, or of one of its VFs."""
    return f"0000:{pf:02x}:{1 + vf // 8:02x}.{vf % 8}" if vf >= 0 else f"0000:{pf:02x}:00.0"


def netdev(pf: int, vf: int) -> str:
    return f"pf{pf}v{vf}"


def draw(root: Path) -> None:
    """Write the tree of names."""
    tree = Tree(root)
    for pf in range(PFS):
        tree.netdev(f"pf{pf}", tree.pci(address(pf)))
        for vf in range(VFS):
            tree.netdev(netdev(pf, vf), tree.pci(address(pf, vf), pf=address(pf)))


@contextmanager
def in_place_of_sys(root: Path) -> Iterator[None]:
    """Mount the tree over /sys, in this mount namespace."""
    run("mount", "--bind", str(root), "/sys")
    try:
        yield
    finally:
        run("umount", "/sys")


def record_vfs(state: Path, conf: Mapping[str, Any]) -> None:
    """Write records as ADDs do, of the first VFs, in networks of their rails.  Their identities name no observer's
    namespaces, so no command treats the pods as dead."""
    for n in range(ATTACHED):
        pf, vf = divmod(n, VFS)
        at, name = address(pf, vf), RAILS[n % len(RAILS)]
        link = {"device": at, "incarnation": sysfs.incarnation(at), "netdev": netdev(pf, vf), "pf": address(pf)}
        link |= {"number": vf, "rdma": [], "rdma_devs": [], "before": {}, "wanted": {}, "mac": "", "mtu": 0}
        key = Key(f"{n // len(RAILS):064x}", f"hpn{n % len(RAILS)}")
        seen = Identity(inode=n + 1, cookie=n + 1)
        record = Record(name, key, f"/run/netns/p{n}", seen, "sriov", link, dict(conf), complete=True)
        with journal.lock(state, name, key) as entry:
            entry.save(record)


def with_vfs(bench: Bench, rounds: int, agent_pid: int) -> Iterator[str]:
    """The rows of a node with all those VFs, with no VF in a pod, or 1,000."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-", dir="/dev/shm") as temporary:
        root = Path(temporary)
        draw(root / "sys")
        with in_place_of_sys(root / "sys"):
            record_vfs(root / "full", bench.sides()[1].conf)
            total = f"{PFS * VFS:,} VFs"
            yield from measured(of_vfs(bench, root / "empty"), f"{total}, all free", rounds, agent_pid)
            yield from measured(of_vfs(bench, root / "full"), f"{total}, pods have {ATTACHED:,}", rounds, agent_pid)


def run_all(bench: Bench, rounds: int) -> Iterator[str]:
    """The rows: an empty node, a large one, one with many VFs, one with dead pods."""
    yield from ("| command | node | processor ms | min | wall ms, min |", "|---|---|--:|--:|--:|")
    with ExitStack() as alive, agent(bench.plugins / "hpn", bench.scratch / "agent.sock") as pid:
        list(measured(asked(bench), "empty", WARM_UP))
        yield from measured(asked(bench), "empty", rounds, pid)
        make_links()
        rails = on_rails(bench.sides()[1], dual=False)
        for n in range(PODS):
            rails.together("ADD", [alive.enter_context(namespace(f"{PREFIX}-large{n}"))])
        yield from measured(asked(bench), "large", rounds, pid)
        yield from with_vfs(bench, rounds, pid)
    yield from measured([by_hand(bench, "list")], "large, all pods dead", min(rounds, 5))
    leases = ("--data-dir", str(bench.scratch / "leases"))
    yield from measured([by_hand(bench, "gc", *leases)], "large, all pods dead", 1)


def main() -> None:
    options = argparse.ArgumentParser(description="The same commands on an empty node and on a large one.")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    chosen = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("the benchmark needs root, to make network namespaces: sudo make bench-size")
    with on_a_node(PREFIX, ["p0"], 0, Path()) as bench:
        lines = [said(), "", *run_all(bench, chosen.rounds)]
    print("\n".join(lines))
    if chosen.write:
        write(lines, "size")


if __name__ == "__main__":
    main()
