"""What `make bench` runs: ADD and DEL of one pod interface, ours against the Go peers, in one interleaved run.

Each side is executed as a runtime does it: the plugin itself, a new process per command, environment and
configuration given, the answer read.  A round is one ADD and one DEL of each side, and the side that goes first
alternates, so that what the machine does meanwhile strikes both.  The ratio is the median of the rounds' ratios.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

from fabric import Node, container_id, end_by_unwinding, entered, netns_path, node, run

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PREFIX = "hpn-bench"
VERBS = ("ADD", "DEL")
WARM_UP = 2

_NETLINK_CALL = re.compile(r"\b(?:sendto|sendmsg|sendmmsg|write)\(\d+<NETLINK:")


@dataclass
class Side:
    """One of the two programs, and what it took, in milliseconds per verb."""

    name: str
    binary: Path
    conf: dict[str, Any]
    path: str
    times: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})

    def environment(self, verb: str, pod: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container_id(pod),
            "CNI_NETNS": netns_path(pod),
            "CNI_IFNAME": "hpn0",
            "CNI_PATH": self.path,
        }

    def call(self, verb: str, pod: str, before: Sequence[str] = ()) -> float:
        """The milliseconds from exec to exit.  Raises SystemExit where the command fails."""
        stdin = json.dumps(self.conf).encode()
        env = self.environment(verb, pod)
        started = time.perf_counter()
        done = subprocess.run([*before, str(self.binary)], env=env, input=stdin, capture_output=True, check=False)
        took = (time.perf_counter() - started) * 1000
        if done.returncode:
            sys.exit(f"{self.name}: {verb} failed: {done.stdout.decode()}{done.stderr.decode()}")
        return took


def sides(binary: Path, peers: Path, scratch: Path) -> tuple[Side, Side]:
    plugins = scratch / "bin"
    plugins.mkdir()
    shutil.copy(binary, plugins / "hpn")
    (plugins / "hpn-ipam").hardlink_to(plugins / "hpn")
    # IPv4 only: with IPv6 the Go plugin waits seconds for duplicate address detection and ours does not, which would
    # be all there is to see.  Two subnets, because both sides' pods are on one rail.
    common = {"cniVersion": "1.1.0", "name": "bench", "master": "rail0", "mode": "bridge"}
    ours = common | {
        "type": "hpn",
        "stateDir": str(scratch / "state"),
        "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"},
    }
    theirs = common | {
        "type": "macvlan",
        "ipam": {"type": "host-local", "subnet": "10.57.0.0/24", "dataDir": str(scratch / "host-local")},
    }
    return (
        Side("hpn (IPAM inside)", plugins / "hpn", ours, str(plugins)),
        Side("Go macvlan + host-local", peers / "macvlan", theirs, str(peers)),
    )


def measure(a: Side, b: Side, pods: tuple[str, str], rounds: int, seconds: float) -> int:
    """Fill in both sides' times; the rounds done, fewer than asked for where time ran out."""
    deadline = time.monotonic() + seconds
    for i in range(-WARM_UP, rounds):
        if time.monotonic() > deadline:
            return i
        order = ((a, pods[0]), (b, pods[1]))
        for verb in VERBS:
            for side, pod in order if i % 2 == 0 else reversed(order):
                took = side.call(verb, pod)
                if i >= 0:
                    side.times[verb].append(took)
    return rounds


def netlink_requests(side: Side, pod: str, scratch: Path) -> dict[str, int]:
    """How often each verb sends to the kernel over netlink, children included."""
    counts = {}
    for verb in VERBS:
        log = scratch / "strace"
        strace = ["strace", "-f", "-qq", "-yy", "-e", "trace=sendto,sendmsg,sendmmsg,write", "-o", str(log)]
        side.call(verb, pod, strace)
        counts[verb] = sum(bool(_NETLINK_CALL.search(line)) for line in log.read_text(errors="replace").splitlines())
    return counts


def p99(times: Sequence[float]) -> float:
    """The nearest rank: with fewer than a hundred rounds, the slowest."""
    return sorted(times)[max(0, -(-len(times) * 99 // 100) - 1)]


def table(a: Side, b: Side, requests: dict[str, dict[str, int]] | None) -> list[str]:
    rows = ["| command | program | median ms | min | max | p99 | netlink requests |", "|---|---|--:|--:|--:|--:|--:|"]
    for verb in VERBS:
        for side in (a, b):
            times = side.times[verb]
            numbers = (statistics.median(times), min(times), max(times), p99(times))
            count = requests[side.name][verb] if requests else ""
            rows.append(f"| {verb} | {side.name} | {' | '.join(f'{n:.1f}' for n in numbers)} | {count} |")
    rows.append("")
    for verb in VERBS:
        ratio = statistics.median(x / y for x, y in zip(a.times[verb], b.times[verb], strict=True))
        rows.append(f"{verb}: {a.name} takes **{ratio:.2f}** times what {b.name} takes (median of the rounds' ratios).")
    return rows


def write(lines: Sequence[str]) -> None:
    """Put the lines between the page's markers."""
    page = PAGE.read_text() if PAGE.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE}: no {BEGIN} ... {END} to write between")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"]))


def main() -> None:
    options = argparse.ArgumentParser(description="ADD and DEL, ours against the Go peers.")
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument(
        "--seconds", type=float, default=180, help="stop after this long, however many rounds are done"
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
        run("ip", "netns", "delete", name)  # a run that was killed left it
    # The measuring process itself enters the node, so that nothing but the plugin lies between exec and exit.
    with tempfile.TemporaryDirectory(prefix="hpn-bench-") as temporary, node(PREFIX, ("a", "b")) as it:
        scratch = Path(temporary)
        a, b = sides(binary, peers, scratch)
        pods = (it.pod("a"), it.pod("b"))
        with entered(it.netns):
            rounds = measure(a, b, pods, chosen.rounds, chosen.seconds)
            requests = None
            if shutil.which("strace"):
                requests = {
                    side.name: netlink_requests(side, pod, scratch) for side, pod in zip((a, b), pods, strict=True)
                }
            else:
                print("strace is not installed: netlink requests are not counted")
    if rounds < 1:
        sys.exit(f"no round was done in {chosen.seconds} s; give it more --seconds")
    linux = ".".join(platform.release().split(".")[:2])
    where = f"{os.cpu_count()} CPUs, Linux {linux}, {run(str(binary), 'version').strip()}"
    lines = [
        f"{rounds} rounds, whole processes, cold, wall time; {where}.",
        "",
        *table(a, b, requests),
    ]
    print("\n".join(lines))
    if chosen.write:
        write(lines)


if __name__ == "__main__":
    main()
