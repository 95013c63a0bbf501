"""The program behind `make bench`: ADD and DEL of pod interfaces, ours against the Go peers, in one interleaved run.

Each side runs as a runtime runs it: the plugin itself, a new process per command, with environment and configuration,
and its answer is read.  In a round every side does its ADDs and then its DELs, in a random order per round.  So
disturbances by the machine affect all sides, and so do the caches that the previous side left, which are a twentieth of
an ADD.  A ratio is the median of the rounds' ratios.
"""

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

import chart
import fills
from fabric import Node, end_by_unwinding, entered, node, run
from sides import VERBS, Asking, Chain, Floor, Reaching, Side

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "user" / "performance.md"
FIGURE = ROOT / "docs" / "user" / "performance.svg"
PREFIX = "hpn-bench"
PODS = 50
HELD = 60_000
WARM_UP = 2
MEMORY_CYCLES = 1000

_NETLINK_CALL = re.compile(r"\b(?:sendto|sendmsg|sendmmsg|write)\(\d+<NETLINK:")


@dataclass(frozen=True)
class Bench:
    """The place and the programs of the measurement."""

    plugins: Path
    peers: Path
    scratch: Path
    pods: list[str]
    seconds: float

    def sides(self, *, dual: bool = False, direct: bool = False, floors: bool = False) -> list[Side]:
        """Go first, the base of comparison.  Each side has its own addresses, because the sides share a rail."""

        def ranges(n: int) -> list[list[dict[str, str]]]:
            v6 = [[{"subnet": f"fd00:{n}::/64"}]] if dual else []
            return [[{"subnet": f"10.{n}.0.0/16"}], *v6]

        def conf(n: int, **keys: Any) -> dict[str, Any]:
            ipam = {"ranges": ranges(n), **keys.pop("ipam")}
            return {
                "cniVersion": "1.1.0",
                "name": f"bench{n}",
                "master": "rail0",
                "mode": "bridge",
                "ipam": ipam,
                **keys,
            }

        def ours(n: int) -> dict[str, Any]:
            return conf(
                n,
                type="hpn",
                ipam={"type": "hpn-ipam", "dataDir": str(self.scratch / "leases")},
            )

        theirs = conf(57, type="macvlan", ipam={"type": "host-local", "dataDir": str(self.scratch / "host-local")})
        hpn, state = self.plugins / "hpn", {"HPN_STATE_DIR": str(self.scratch / "state")}
        found = [
            Side("Go macvlan + host-local", self.peers / "macvlan", theirs, {}),
            Side("hpn, with its agent", hpn, ours(56), state | {"HPN_AGENT": str(self.scratch / "agent.sock")}),
        ]
        if direct:
            found.append(Side("hpn, without", hpn, ours(55), state | {"HPN_AGENT": ""}))
        if floors:
            found.append(Asking("hpn, asked for its version", hpn, ours(56), found[1].variables))
            found.append(Floor("the kernel and the disk alone", self.scratch / "floor", theirs, {}))
        return found

    def chains(self) -> list[Side]:
        """Go's with two chained plugins for the work of our one call.  The MTU is macvlan's own key in both."""
        go, *ours = self.sides(direct=True)
        sysctls = {"net.ipv4.conf.IFNAME.rp_filter": "2", "net.core.somaxconn": "1024"}
        mtu, common = {"mtu": 1400}, {key: go.conf[key] for key in ("cniVersion", "name")}
        tuning = Side("tuning", self.peers / "tuning", {**common, "type": "tuning", "sysctl": sysctls}, {})
        sbr = Side("sbr", self.peers / "sbr", {**common, "type": "sbr"}, {}, quiet=True)
        one = {**mtu, "sysctl": sysctls, "policyRouting": True}
        return [
            Chain(f"{go.name} + tuning + sbr", go.binary, go.conf | mtu, {}, others=(tuning, sbr)),
            *(replace(side, conf=side.conf | one) for side in ours),
        ]

    def reaching(self) -> list[Side]:
        """With IPv6 addresses, until an unknown neighbour has answered."""
        go, hpn = self.sides(dual=True)
        optimistic = replace(hpn, name=f"{hpn.name}, dad: optimistic", conf=hpn.conf | {"dad": "optimistic"})
        return [
            Reaching(side.name, side.binary, side.conf, side.variables, neighbour=neighbour(side.conf["name"]))
            for side in (go, hpn, optimistic)
        ]

    def measure(self, sides: Sequence[Side], rounds: int, work: Any) -> int:
        """Fill in the sides' times; return the number of rounds, which is smaller than requested if time ran out."""
        deadline = time.monotonic() + self.seconds
        for i in range(-WARM_UP, rounds):
            if time.monotonic() > deadline:
                return max(i, 0)
            for side in random.Random(i).sample(sides, len(sides)):  # the same in every run
                for verb in VERBS:
                    took = work(side, verb)
                    if i >= 0:
                        side.times[verb].append(took)
        return rounds


def neighbour(network: str) -> str:
    """The fabric's address in the network's subnet, which no pod gets."""
    return f"fd00:{network.removeprefix('bench')}::ffff:0:0:1"


def _together(side: Side, verb: str, pods: Sequence[str], at_once: int) -> float:
    return side.together(verb, pods, at_once)


@contextmanager
def agent(binary: Path, socket: Path) -> Iterator[int]:
    """The agent's process, once it listens."""
    with subprocess.Popen([binary, "agent", "--socket", socket]) as process:
        try:
            while not socket.exists():
                if process.poll() is not None:
                    sys.exit("the agent ended at once")
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()


def netlink_requests(side: Side, pod: str, scratch: Path) -> dict[str, int]:
    """The number of netlink messages that each verb sends to the kernel, children included."""
    counts = {}
    for verb in VERBS:
        log = scratch / "strace"
        strace = ["strace", "-f", "-qq", "-yy", "-e", "trace=sendto,sendmsg,sendmmsg,write", "-o", str(log)]
        env, conf = side.environment(verb, pod), json.dumps(side.conf)
        subprocess.run(
            [*strace, *side.argv(verb, pod)], env=env, input=conf, text=True, capture_output=True, check=True
        )
        counts[verb] = sum(bool(_NETLINK_CALL.search(line)) for line in log.read_text(errors="replace").splitlines())
    return counts


def memory(pid: int) -> float:
    """MB of the process and its children, with shared pages counted once (man 5 proc_pid_smaps, Pss)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in (pid, *children)]
    return sum(int(text.partition("\nPss:")[2].split()[0]) for text in pages) / 1024


def p99(times: Sequence[float]) -> float:
    """The nearest rank: with fewer than a hundred rounds, the slowest."""
    return sorted(times)[max(0, -(-len(times) * 99 // 100) - 1)]


def of_pairs(times: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(x / y for x, y in zip(times, others, strict=True))


def table(title: str, sides: Sequence[Side], *, pods: int = 0) -> list[str]:
    """A row per verb and side; ``pods`` is the number of pods attached together."""
    rate = " pods/s |" if pods else " processor ms | ratio |" if sides[0].spent[VERBS[0]] else ""
    rows = [f"### {title}", "", f"| command | program | median ms | min | p99 | ratio |{rate}",
            "|---|---|--:|--:|--:|--:|" + "--:|" * (rate.count("|"))]  # fmt: skip
    for verb in VERBS:
        for side in sides:
            times, spent, first = side.times[verb], side.spent[verb], sides[0]
            ratio = of_pairs(times, first.times[verb])
            median = statistics.median(times)
            row = f"| {verb} | {side.name} | {median:.2f} | {min(times):.2f} | {p99(times):.2f} | {ratio:.3f} |"
            if spent:
                row += f" {statistics.median(spent):.2f} | {of_pairs(spent, first.spent[verb]):.3f} |"
            rows.append(row + (f" {pods / median * 1000:.0f} |" if pods else ""))
    return [*rows, ""]


def write(lines: Sequence[str], section: str = "bench", page: Path = PAGE) -> None:
    """Put the lines between the page's markers of that section."""
    first, last = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        sys.exit(f"{page}: no {first} ... {last} to write between")
    page.write_text("\n".join([f"{before}{first}", *lines, f"{last}{after}"]))


def run_all(bench: Bench, agent_pid: int, rounds: int) -> tuple[list[str], str]:
    """All tables, and the figure."""
    one = bench.pods[:1]
    lines, bars, idle = list[str](), list[chart.Bar](), memory(agent_pid)

    def compare(title: str, sides: Sequence[Side], rounds: int, work: Any, *, pods: int = 0) -> None:
        done = bench.measure(sides, rounds, work)
        lines.extend(table(f"{title} ({done} rounds)", sides, pods=pods))
        for verb in VERBS:
            times = [statistics.median(side.times[verb]) / (pods or 1) for side in sides[:2]]
            bars.append(chart.Bar(f"{verb}, {title[0].lower()}{title[1:]}", times[0], times[1]))

    def single(side: Side, verb: str) -> float:
        return side.one_by_one(verb, one)

    sides = bench.sides(direct=True, floors=True)
    compare("One at a time, IPv4", sides, rounds, single)
    compare("One at a time, IPv4 and IPv6", bench.sides(dual=True), min(rounds, 20), single)
    reaching = bench.reaching()
    done = bench.measure(reaching, min(rounds, 20), single)
    lines += table(f"One at a time, ADD until an unknown neighbour has answered over IPv6 ({done} rounds)", reaching)
    chains = bench.chains()
    done = bench.measure(chains, min(rounds, 20), single)
    lines += table(f"One at a time, IPv4, with MTU, two sysctls and routing by source address ({done} rounds)", chains)
    for at_once in (8, PODS):
        together = partial(_together, pods=bench.pods, at_once=at_once)
        many = bench.sides(floors=True)
        compare(f"{PODS} pods, {at_once} at a time", many, min(rounds, 10), together, pods=PODS)
    for _ in range(MEMORY_CYCLES // len(bench.pods)):
        for verb in VERBS:
            sides[1].together(verb, bench.pods, 8)
    after = memory(agent_pid)
    # Last, because it stays.
    full = bench.sides()
    fills.ours(bench.scratch / "leases" / full[1].conf["name"], "10.56.0.0/16", HELD)
    fills.theirs(bench.scratch / "host-local" / full[0].conf["name"], "10.57.0.0/16", HELD)
    os.sync()
    compare(f"One at a time, IPv4, {HELD:,} addresses held", full, min(rounds, 5), single)
    if shutil.which("strace"):
        counts = [(side.name, netlink_requests(side, one[0], bench.scratch)) for side in (sides[0], sides[2])]
        said = "; ".join(f"{name} {count['ADD']} and {count['DEL']}" for name, count in counts)
        lines += [f"Netlink requests of an ADD and a DEL: {said}.", ""]
    lines.append(
        f"The agent's memory (PSS): {idle:.0f} MB at its start, {after:.0f} MB after another {MEMORY_CYCLES:,} "
        f"attachments. It is {memory(agent_pid):.0f} MB with the index of {HELD:,} addresses made anew."
    )
    return lines, chart.bars(bars, "the Go plugins", "hpn, with its agent")


def main() -> None:
    options = argparse.ArgumentParser(description="ADD and DEL, ours against the Go peers.")
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument(
        "--seconds", type=float, default=120, help="stop each measurement after this long, however many rounds are done"
    )
    options.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    chosen = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("the benchmark needs root, to make network namespaces: sudo make bench")
    binary = Path(os.environ.get("HPN_BINARY", ROOT / "dist" / "hpn"))
    peers = Path(os.environ.get("HPN_PEERS", ""))
    if not binary.is_file() or not (peers / "macvlan").is_file():
        sys.exit("run it as `make bench`, which builds both sides, or set HPN_BINARY and HPN_PEERS")
    end_by_unwinding()
    for name in Node(PREFIX).stale():
        run("ip", "netns", "delete", name)  # a killed run left it
    # The measuring process itself enters the node, so that only the plugin lies between exec and exit.
    names = [f"p{n}" for n in range(PODS)]
    with tempfile.TemporaryDirectory(prefix="hpn-bench-") as temporary, node(PREFIX, names) as it, entered(it.netns):
        for network in ("bench56", "bench57"):
            run("ip", "-netns", it.fabric, "address", "add", f"{neighbour(network)}/64", "dev", "port0", "nodad")
        scratch = Path(temporary)
        plugins = scratch / "bin"
        plugins.mkdir()
        shutil.copy(binary, plugins / "hpn")
        # As by default: the journal is in memory, which /run is on most nodes, and the leases are on a disk.
        with tempfile.TemporaryDirectory(prefix="hpn-bench-", dir="/dev/shm") as state:
            (scratch / "state").symlink_to(state)
            with agent(plugins / "hpn", scratch / "agent.sock") as pid:
                bench = Bench(plugins, peers, scratch, [it.pod(name) for name in names], chosen.seconds)
                lines, figure = run_all(bench, pid, chosen.rounds)
    linux = ".".join(platform.release().split(".")[:2])
    said = f"Whole processes, wall time; {os.cpu_count()} CPUs, Linux {linux}, {run(str(binary), 'version').strip()}."
    lines = [f"{said} A ratio is to the first row of its command.", "", *lines]
    print("\n".join(lines))
    if chosen.write:
        write([*lines, "", "![ADD and DEL](performance.svg)"])
        FIGURE.write_text(figure)


if __name__ == "__main__":
    main()
