"""The program behind `make bench-traffic`: TCP between a pod and another host, by the pod's attachment.

The client is the host itself, a pod behind a bridge, or a pod with an interface of hpn's; the server is always the
same, on another host.  On this machine both are namespaces, with a veth as the wire between them.  In the lab's guest
the wire has a NIC at each end, and the pods also use ipvlans and VFs.

In a round every path is set up, used and removed, in a random order per round.  A ratio is the median of the rounds'
ratios to the host's own.  sockperf measures latency, because it keeps the time of every answer.  iperf3 measures
throughput: it counts the data that arrived, sockperf the data that was sent.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

import chart
from fabric import Node, end_by_unwinding, entered, namespace, netns_path, node, run
from in_guest import run_in_guest
from sides import Side

from bench import ROOT, write

PREFIX = "hpn-traffic"
POD = f"{PREFIX}-pod"
PAGE = ROOT / "docs" / "user" / "performance.md"
PICTURE = ROOT / "docs" / "user" / "traffic.svg"
SERVER, HOST, BRIDGED = "10.99.0.1", "10.99.0.2", "10.99.0.3"
SUBNET = {"subnet": "10.99.0.0/24", "rangeStart": "10.99.0.10"}
PORTS = ("11111", "5201")  # sockperf's and iperf3's
PATIENCE = 60.0
REPORT = "traffic.json"


@dataclass(frozen=True)
class Wire:
    """The host's interface at one end, and the one for a bridge; the server is in the namespace at the other end.  This
    process is on the host."""

    rail: str
    bridged: str
    far: str
    scratch: Path


@dataclass
class Measured:
    """The measurements of each round: an answer's time in µs, at the median and at the 99th percentile, and the arrived
    data in Gbit/s."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    gbit: list[float] = field(default_factory=list)


Lay = Callable[[Wire], AbstractContextManager[Sequence[str]]]


@contextmanager
def host(wire: Wire) -> Iterator[Sequence[str]]:
    """The words before a command of the client; none here, because it runs on the host."""
    run("ip", "address", "add", f"{HOST}/24", "dev", wire.rail)
    try:
        yield ()
    finally:
        run("ip", "address", "del", f"{HOST}/24", "dev", wire.rail)


@contextmanager
def bridge(wire: Wire) -> Iterator[Sequence[str]]:
    """As ``host``, in a pod with a veth in a bridge, which also has an interface of the host."""
    with namespace(POD) as pod, ExitStack() as undo:
        run("ip", "link", "add", "br0", "type", "bridge")
        undo.callback(run, "ip", "link", "del", "br0")
        run("ip", "link", "add", "veth0", "type", "veth", "peer", "name", "hpn0", "netns", pod)
        for port in (wire.bridged, "veth0"):
            run("ip", "link", "set", port, "master", "br0", "up")
        run("ip", "link", "set", "br0", "up")
        run("ip", "-netns", pod, "address", "add", f"{BRIDGED}/24", "dev", "hpn0")
        run("ip", "-netns", pod, "link", "set", "hpn0", "up")
        yield inside(pod)


def attached(**keys: str) -> Lay:
    """As ``bridge``, with the interface that hpn makes from these keys and the host's interface."""

    @contextmanager
    def path(wire: Wire) -> Iterator[Sequence[str]]:
        ipam = {"type": "hpn-ipam", "dataDir": str(wire.scratch / "leases"), "ranges": [[SUBNET]]}
        conf: dict[str, Any] = {"cniVersion": "1.1.0", "name": "traffic", "type": "hpn", "ipam": ipam}
        conf |= {key: word.format(wire) for key, word in keys.items()}
        variables = {"HPN_AGENT": "", "HPN_STATE_DIR": str(wire.scratch / "state")}
        side = Side("hpn", wire.scratch / "hpn", conf, variables)
        with namespace(POD) as pod:
            side.one_by_one("ADD", [pod])
            try:
                yield inside(pod)
            finally:
                side.one_by_one("DEL", [pod])

    return path


PATHS: dict[str, Lay] = {
    "host": host,
    "bridge + veth": bridge,
    "macvlan": attached(master="{0.rail}", mode="bridge"),
}
LAB_PATHS = PATHS | {"ipvlan": attached(kind="ipvlan", master="{0.rail}", mode="l2"), "VF": attached(pf="{0.rail}")}


def inside(namespace: str) -> tuple[str, ...]:
    """The words that run a command there."""
    return "nsenter", f"--net={netns_path(namespace)}", "--"


@contextmanager
def servers(far: str) -> Iterator[None]:
    """Run both servers at the other end, for the time of the block."""
    run("ip", "-netns", far, "link", "set", "lo", "up")
    commands = (("sockperf", "server", "--tcp", "-i", SERVER), ("iperf3", "--server", "--bind", SERVER))
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen([*inside(far), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.enter_context(process)
            stack.callback(process.terminate)
        await_that(
            lambda: all(f":{port} " in run(*inside(far), "ss", "-Hltn") for port in PORTS),
            "sockperf and iperf3 do not listen",
        )
        yield


def await_that(condition: Callable[[], bool], otherwise: str) -> None:
    """Raises SystemExit with that sentence if the condition does not come true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{otherwise}, after {PATIENCE:.0f} s")
        time.sleep(0.05)


def once(before: Sequence[str], far: str, seconds: int) -> tuple[float, float, float]:
    """An answer's time in µs, at the median and at the 99th percentile, and Gbit/s."""
    # Otherwise packets would go to the previous path's MAC, and a VF's link takes a moment to come up.
    run("ip", "-netns", far, "neighbour", "flush", "all")
    ping = [*before, "ping", "-q", "-c", "1", SERVER]
    await_that(lambda: not subprocess.run(ping, stdout=subprocess.DEVNULL, check=False).returncode, "no echo")
    found = answers(before, seconds)
    sent = json.loads(run(*before, "iperf3", "--json", "--client", SERVER, "--time", f"{seconds}"))
    return found["50.000"], found["99.000"], sent["end"]["sum_received"]["bits_per_second"] / 1e9


def answers(before: Sequence[str], seconds: int) -> dict[str, float]:
    """By percentile, µs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        # With --no-rdtsc, sockperf 3.7 finds no valid observation.
        said = run(*before, "sockperf", "ping-pong", "--tcp", "-i", SERVER, "-t", f"{seconds}", "--full-rtt")
        if found := dict(re.findall(r"percentile (\S+) =\s*(\S+)", said)):
            return {percentile: float(usec) for percentile, usec in found.items()}
    sys.exit("sockperf got no answers")


def measure(paths: Mapping[str, Lay], wire: Wire, rounds: int, seconds: int) -> dict[str, Measured]:
    """That many rounds of all paths."""
    measured = {name: Measured() for name in paths}
    with servers(wire.far):
        for number in range(rounds):
            for name in random.Random(number).sample(list(paths), len(paths)):  # the same in every run
                with paths[name](wire) as before:
                    p50, p99, gbit = once(before, wire.far, seconds)
                of = measured[name]
                of.p50.append(p50)
                of.p99.append(p99)
                of.gbit.append(gbit)
    return measured


def ratios(of: Measured, to: Measured) -> tuple[float, float, float]:
    """The medians of the rounds' ratios."""
    pairs = ((of.p50, to.p50), (of.p99, to.p99), (of.gbit, to.gbit))
    p50, p99, gbit = (statistics.median(x / y for x, y in zip(*pair, strict=True)) for pair in pairs)
    return p50, p99, gbit


def table(measured: Mapping[str, Measured]) -> list[str]:
    """A row for each path; the first is the host's, the base of comparison."""
    rows = ["| path | answer, p50 µs | p99 µs | sent, Gbit/s | p50 to host's | p99 to host's | sent to host's |"]
    rows.append("|---|--:|--:|--:|--:|--:|--:|")
    for name, of in measured.items():
        p50, p99, gbit = map(statistics.median, (of.p50, of.p99, of.gbit))
        compared = " | ".join(f"{ratio:.2f}" for ratio in ratios(of, measured["host"]))
        rows.append(f"| {name} | {p50:.1f} | {p99:.1f} | {gbit:.3f} | {compared} |")
    return rows


def picture(measured: Mapping[str, Mapping[str, Measured]]) -> str:
    """A row of panels for each place, and a panel for each figure."""
    titles = ("time of an answer, p50", "time of an answer, p99", "sent")
    panels = []
    for where, of in measured.items():
        rows = {name: ratios(one, of["host"]) for name, one in of.items()}
        panels.append(
            [
                chart.Panel(f"{title}, {where}", {name: ratio[n] for name, ratio in rows.items()})
                for n, title in enumerate(titles)
            ]
        )
    return chart.panels(panels, "1.0 is the host's own, in the same rounds")


def here(binary: Path, rounds: int, seconds: int) -> dict[str, Measured]:
    """The measurements on this machine."""
    for name in Node(PREFIX).stale():
        run("ip", "netns", "delete", name)  # a killed run left it
    with tempfile.TemporaryDirectory(prefix="hpn-traffic-") as temporary, node(PREFIX) as it, entered(it.netns):
        shutil.copy(binary, Path(temporary, "hpn"))
        run("ip", "-netns", it.fabric, "address", "add", f"{SERVER}/24", "dev", "port0")
        return measure(PATHS, Wire("rail0", "rail0", it.fabric, Path(temporary)), rounds, seconds)


def in_lab(binary: Path, rounds: int, seconds: int) -> dict[str, Measured]:
    """The measurements in a guest, which leaves them in a file."""
    with tempfile.TemporaryDirectory() as out:
        words = ["--inside", str(binary), "--rounds", str(rounds), "--seconds", str(seconds)]
        run_in_guest(["--pfs", "3", "--out", out, sys.executable, __file__, *words], 900 + 300 * rounds)
        return {name: Measured(**one) for name, one in json.loads(Path(out, REPORT).read_text()).items()}


def guest(binary: Path, rounds: int, seconds: int) -> None:
    """In the guest: the other host is a namespace with rail1.  The bridge has rail2, without VFs: with VFs on QEMU's
    igb, no answer reaches a bridge's pod."""
    Path("/sys/class/net/rail2/device/sriov_numvfs").write_text("0")
    with tempfile.TemporaryDirectory() as temporary, namespace(f"{PREFIX}-far") as far:
        shutil.copy(binary, Path(temporary, "hpn"))
        run("ip", "link", "set", "rail1", "netns", far)
        run("ip", "-netns", far, "address", "add", f"{SERVER}/24", "dev", "rail1")
        run("ip", "-netns", far, "link", "set", "rail1", "up")
        measured = measure(LAB_PATHS, Wire("rail0", "rail2", far, Path(temporary)), rounds, seconds)
    Path(os.environ["HPN_LAB"], REPORT).write_text(json.dumps({name: vars(one) for name, one in measured.items()}))


PLACES = {"this machine": here, "the lab": in_lab}
BUSY = " Other programs ran beside: these figures only show that the measurement works; do not quote them."


def main() -> None:
    options = argparse.ArgumentParser(description="TCP between a pod and another host, by how the pod is attached.")
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--seconds", type=int, default=1, help="that each question and each sending takes")
    options.add_argument("--only", choices=PLACES, help="nowhere else")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md and its picture")
    options.add_argument("--inside", type=Path, metavar="BINARY", help="in the guest")
    chosen = options.parse_args()
    end_by_unwinding()
    if chosen.inside:
        guest(chosen.inside, chosen.rounds, chosen.seconds)
        return
    binary = Path(os.environ["HPN_BINARY"])
    if chosen.write and chosen.only:
        options.error("--write is for the whole table: leave out --only")
    places = [chosen.only] if chosen.only else list(PLACES)
    load = os.getloadavg()[0]
    measured = {place: PLACES[place](binary, chosen.rounds, chosen.seconds) for place in places}
    tools = [re.search(r"[0-9][0-9.]+", run(tool, "--version"))[0] for tool in ("sockperf", "iperf3")]
    cpus = f"{os.cpu_count()} CPUs on each, {run(str(binary), 'version').strip()}"
    lines = [f"sockperf {tools[0]}, iperf3 {tools[1]}; {cpus}; rounds: {chosen.rounds}."]
    lines += [f"This machine's load average before: {load:.1f}.{BUSY if load > 0.5 else ''}", ""]
    for place, of in measured.items():
        lines += [f"### TCP, {place}", "", *table(of), ""]
    print("\n".join(lines))
    if chosen.write:
        write([*lines, "![Answers and sending, by path](traffic.svg)"], "traffic", PAGE)
        PICTURE.write_text(picture(measured))


if __name__ == "__main__":
    main()
