"""The second program behind `make bench`: ADD and DEL of one address, ours against Go's host-local, by held addresses.

Cold is a new process per command, as a runtime starts it; warm is ours inside a process that has done it before, as in
an agent.  A round is one ADD and one DEL of each side, and the side that goes first alternates.  Both sides' stores are
on the disk with the temporary directory; ours syncs every change, host-local none.

After that, 64 workers run at once on one network: each ADDs an address and DELs its last one, with a process per
command.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import fills
from sides import spawned

from base.protocol.spec import Request
from bench import ROOT, agent, write
from ipam.main import run

PLOT = ROOT / "docs" / "user" / "ipam.svg"
FILLS = (0, 1_000, 10_000, 60_000)
SUBNETS = ("10.0.0.0/16", "fd00::/64")
VERBS = ("ADD", "DEL")
OURS, WARM, THEIRS = "hpn-ipam, cold", "hpn-ipam, warm", "host-local, cold"
COLOURS = {OURS: "#1f77b4", WARM: "#2ca02c", THEIRS: "#d62728"}
BY_AGENT = "hpn-ipam, with an agent"
WORKERS = 64
# For each worker.  Cold processes take so long that more turns would show nothing new.
TURNS, TURNS_COLD, CYCLES, CYCLES_COLD = 5, 1, 10, 2


@dataclass
class Times:
    """Milliseconds by verb, and the most memory of a process, in MiB."""

    of: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})
    memory: float = 0.0

    def median(self, verb: str) -> float:
        return statistics.median(self.of[verb])


def environ(verb: str, cid: str, socket: str = "") -> dict[str, str]:
    return {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": cid, "CNI_IFNAME": "hpn0", "CNI_NETNS": "/run/netns/pod",
        "CNI_PATH": "/opt/cni/bin", "PATH": os.environ["PATH"], "HPN_AGENT": socket,
        # The directory into which make unpacks; otherwise the launcher would leave files in an installed program's
        # place.
        **{name: value for name, value in os.environ.items() if name == "HPN_PROGRAM_DIR"},
    }  # fmt: skip


def conf(kind: str, subnet: str, directory: Path) -> bytes:
    ipam = {"type": kind, "ranges": [[{"subnet": subnet}]], "dataDir": str(directory)}
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "x", "ipam": ipam}).encode()


def process(program: Path, stdin: bytes) -> Callable[[str, str], None]:
    def call(verb: str, cid: str) -> None:
        env = environ(verb, cid)
        if subprocess.run([program], env=env, input=stdin, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"{program}: {verb} failed")

    return call


def peak(program: Path, stdin: bytes) -> float:
    """The most memory of an ADD, in MiB.  The forking process counts too, so a small one forks (9 MiB)."""
    script = (
        "import os, sys; pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, "
        "file_actions=[(os.POSIX_SPAWN_OPEN, 1, '/dev/null', os.O_WRONLY, 0)]); print(os.wait4(pid, 0)[2].ru_maxrss)"
    )
    words = [sys.executable, "-I", "-S", "-c", script, str(program)]
    done = subprocess.run(words, env=environ("ADD", "peak"), input=stdin, capture_output=True, check=True)
    process(program, stdin)("DEL", "peak")
    return int(done.stdout) / 1024


def in_process(stdin: bytes) -> Callable[[str, str], None]:
    def call(verb: str, cid: str) -> None:
        reply = run(Request(environ(verb, cid), stdin))
        if reply.exit_code:
            sys.exit(f"{verb}: {reply.stdout}")

    return call


def measure(programs: dict[str, Path], subnet: str, held: int, rounds: int, scratch: Path) -> dict[str, Times]:
    times = {name: Times() for name in COLOURS}
    directories = {"hpn-ipam": scratch / "ours", "host-local": scratch / "theirs"}
    for directory in directories.values():
        shutil.rmtree(directory, ignore_errors=True)
    fills.ours(directories["hpn-ipam"] / "net", subnet, held)
    fills.theirs(directories["host-local"] / "net", subnet, held)
    os.sync()
    stdin = {kind: conf(kind, subnet, directory) for kind, directory in directories.items()}
    calls = {
        OURS: process(programs["hpn-ipam"], stdin["hpn-ipam"]),
        WARM: in_process(stdin["hpn-ipam"]),
        THEIRS: process(programs["host-local"], stdin["host-local"]),
    }
    for i in range(-2, rounds):
        for verb in VERBS:
            for name in list(calls) if i % 2 else list(reversed(calls)):
                started = time.perf_counter()
                calls[name](verb, f"new-{name[:3]}-{name[-4:]}")
                if i >= 0:
                    times[name].of[verb].append((time.perf_counter() - started) * 1000)
    for name, kind in ((OURS, "hpn-ipam"), (THEIRS, "host-local")):
        times[name].memory = peak(programs[kind], stdin[kind])
    status = Path("/proc/self/status").read_text()
    times[WARM].memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return times


# For each process: the worker, the command, the container, and the file of its answer.
Working = dict[int, tuple[int, str, str, int]]


@dataclass
class Crowd:
    """One side's workers on one network; with ``socket`` they use the agent there."""

    program: Path
    stdin: bytes
    socket: str = ""
    turns: int = TURNS
    cycles: int = CYCLES
    commands: int = 0
    seconds: float = 0.0
    # For each worker the container that holds its address, and for each address its holder.
    containers: dict[int, str] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)

    def work(self, turn: int) -> None:
        """A cycle is an ADD and the DEL of the one before, so that every worker always holds an address.

        Raises SystemExit if a command fails, or if ADD returns an address that is already held.
        """
        todo = {worker: list(range(self.cycles)) for worker in range(WORKERS)}
        started, working = time.perf_counter(), Working()
        for worker, cycles in todo.items():
            self._next(worker, "ADD", f"w{worker}-{turn}-{cycles.pop()}", working)
        while working:
            pid, status = os.wait3(0)[:2]
            if pid not in working:  # the agent, should it end
                sys.exit("the agent ended")
            worker, verb, cid, stdout = working.pop(pid)
            answer = os.pread(stdout, 4096, 0)
            os.close(stdout)
            if status:
                sys.exit(f"{self.program}: {verb} {cid} failed: {answer.decode()}")
            self.commands += 1
            if verb == "ADD":
                before = self.containers.get(worker)
                self._given(worker, cid, json.loads(answer)["ips"][0]["address"])
                if before:
                    self._next(worker, "DEL", before, working)
                    continue
            if todo[worker]:
                self._next(worker, "ADD", f"w{worker}-{turn}-{todo[worker].pop()}", working)
        self.seconds += time.perf_counter() - started

    def _next(self, worker: int, verb: str, cid: str, working: Working) -> None:
        if verb == "DEL":
            self.holders = {address: holder for address, holder in self.holders.items() if holder != cid}
        pid, stdout = spawned([str(self.program)], environ(verb, cid, self.socket), self.stdin)
        working[pid] = worker, verb, cid, stdout

    def _given(self, worker: int, cid: str, address: str) -> None:
        if address in self.holders:
            sys.exit(f"{self.program}: {address} was given to {cid}, and {self.holders[address]} holds it")
        self.holders[address] = self.containers[worker] = cid


def contend(ours: Path, theirs: Path, scratch: Path) -> list[str]:
    """The page's section on many at once."""
    socket, subnet = scratch / "agent.sock", "10.0.0.0/24"
    ours_conf = {name: conf("hpn-ipam", subnet, scratch / name) for name in ("warm", "cold")}
    crowds = {
        "host-local": Crowd(theirs, conf("host-local", subnet, scratch / "crowd")),
        BY_AGENT: Crowd(ours, ours_conf["warm"], socket=str(socket)),
        OURS: Crowd(ours, ours_conf["cold"], turns=TURNS_COLD, cycles=CYCLES_COLD),
    }
    with agent(ours.with_name("hpn"), socket):
        for turn in range(TURNS):
            for name in list(crowds) if turn % 2 else list(reversed(crowds)):
                if turn < crowds[name].turns:
                    crowds[name].work(turn)
    base = crowds["host-local"].commands / crowds["host-local"].seconds
    rows = [f"{WORKERS} at once on {subnet}. Every ADD gave a free address.", ""]
    rows += ["| program | ADDs and DELs | per second | against host-local |", "|---|--:|--:|--:|"]
    for name, crowd in crowds.items():
        rate = crowd.commands / crowd.seconds
        rows.append(f"| {name} | {crowd.commands:,} | {rate:.0f} | {rate / base:.3f} |")
    return rows


Results = dict[tuple[str, int], dict[str, Times]]


def table(results: Results) -> list[str]:
    rows = ["| pool | held | program | ADD ms | DEL ms | ADD against host-local | memory MiB |"]
    rows.append("|---|--:|---|--:|--:|--:|--:|")
    for (subnet, held), times in results.items():
        for name, own in times.items():
            ratio = own.median("ADD") / times[THEIRS].median("ADD")
            numbers = f"{own.median('ADD'):.2f} | {own.median('DEL'):.2f} | {ratio:.3f} | {own.memory:.0f}"
            rows.append(f"| {subnet} | {held:,} | {name} | {numbers} |")
    return rows


def plot(results: Results) -> str:
    """A plot of ADD against the number of held addresses, in powers of ten, with a panel for each pool."""
    width, height, left, top = 380, 260, 60, 40

    def x(held: int) -> float:
        return left + 300 * FILLS.index(held) / (len(FILLS) - 1)

    def y(ms: float) -> float:
        return top + height * (1 - (math.log10(ms) + 1) / 5)  # 0.1 to 10,000

    size = f'width="{2 * width + 60}" height="{height + 110}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, subnet in enumerate(SUBNETS):
        parts.append(f'<g transform="translate({panel * (width + 20)} 0)">')
        parts.append(f'<text x="{left}" y="20" font-size="14">ADD in {subnet}, ms by addresses held</text>')
        for decade in (0.1, 1, 10, 100, 1000, 10000):
            parts.append(f'<path d="M{left} {y(decade):.1f}h300" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y(decade) + 4:.1f}" text-anchor="end">{decade:g}</text>')
        parts.extend(
            f'<text x="{x(held)}" y="{top + height + 18}" text-anchor="middle">{held:,}</text>' for held in FILLS
        )
        for name, colour in COLOURS.items():
            medians = [(x(held), y(results[subnet, held][name].median("ADD"))) for held in FILLS]
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in medians)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts.extend(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in medians)
        parts.append("</g>")
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{left + 160 * i}" y="{top + height + 50}" fill="{colour}">● {name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    options = argparse.ArgumentParser(description="ADD and DEL of an address by how many are held.")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md and docs/user/ipam.svg")
    chosen = options.parse_args()
    binary, peers = Path(os.environ.get("HPN_BINARY", "")), Path(os.environ.get("HPN_PEERS", ""))
    if not binary.is_file() or not (peers / "host-local").is_file():
        sys.exit("run it as `make bench`, which builds both sides, or set HPN_BINARY and HPN_PEERS")
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="hpn-bench-") as temporary:
        scratch = Path(temporary)
        ours = scratch / "bin" / "hpn-ipam"
        ours.parent.mkdir()
        shutil.copy(binary, ours)
        ours.with_name("hpn").hardlink_to(ours)
        crowd = contend(ours, peers / "host-local", scratch)
        print(f"{WORKERS} at once: done", file=sys.stderr)
        for subnet in SUBNETS:
            for held in FILLS:
                results[subnet, held] = measure(
                    {"hpn-ipam": ours, "host-local": peers / "host-local"}, subnet, held, chosen.rounds, scratch
                )
                print(f"{subnet}, {held:,} held: done", file=sys.stderr)
    measured = [f"{chosen.rounds} rounds, medians.", "", *table(results), "", "![ADD by fill](ipam.svg)"]
    lines: Sequence[str] = [*measured, "", *crowd]
    print("\n".join(lines))
    if chosen.write:
        write(lines, "ipam")
        PLOT.write_text(plot(results))


if __name__ == "__main__":
    main()
