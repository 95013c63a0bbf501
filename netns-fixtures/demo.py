"""The demo behind `make demo`: two pods on one node, attached by the real cnitool, pinged, shown and detached again."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fabric import RESULTS, Node, container_id, end_by_unwinding, ip, netns_path, node, results_kept, run

ROOT = Path(__file__).parent.parent
PREFIX = "hpn-demo"
NETWORK = "rail0"
IFNAME = "hpn0"
PODS = ("a", "b")

BOLD, DIM, GREEN, RED, PLAIN = (
    ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() else ("",) * 5
)


class Failed(Exception):
    """A step did not have its stated result."""


def title(number: int, text: str) -> None:
    print(f"\n{BOLD}{number}  {text}{PLAIN}")


def ok(text: str) -> None:
    print(f"   {GREEN}✓{PLAIN} {text}")


class Demo:
    """The steps, in order; each raises Failed if the kernel does not show the expected state."""

    def __init__(self, it: Node, scratch: Path, binary: Path, peers: Path) -> None:
        self.node = it
        self.state = scratch / "state"
        self.bin = scratch / "bin"
        self.conf = scratch / "net.d"
        self.cnitool = peers / "cnitool"
        self.binary = binary
        self.env = {"CNI_PATH": str(self.bin), "NETCONFPATH": str(self.conf), "CNI_IFNAME": IFNAME}
        # The demo must not use the leases of the machine's own node.
        self.env["HPN_STATE_DIR"] = str(self.state)

    def step(self, argv: Sequence[str], shown: str = "") -> str:
        """Show a command, run it, and return its output."""
        print(f"   {DIM}${PLAIN} {shown or shlex.join(argv)}")
        done = subprocess.run(argv, env={**os.environ, **self.env}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{shown or shlex.join(argv)}: exit {done.returncode}: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def cni(self, verb: str, pod: str) -> Any:
        netns = netns_path(self.node.pod(pod))
        out = self.step(
            self.node.command(str(self.cnitool), verb, NETWORK, netns),
            f"ip netns exec {self.node.netns} cnitool {verb} {NETWORK} {netns}",
        )
        return json.loads(out) if out.strip() else None

    def install(self) -> None:
        title(1, "Install: one file with two names, and one configuration")
        self.bin.mkdir()
        self.conf.mkdir()
        hpn, ipam, conf = self.bin / "hpn", self.bin / "hpn-ipam", self.conf / "rail0.conflist"
        self.step(["cp", str(self.binary), str(hpn)], "cp dist/hpn $CNI_PATH/hpn")
        self.step(["ln", str(hpn), str(ipam)], "ln $CNI_PATH/hpn $CNI_PATH/hpn-ipam")
        conflist = json.loads((ROOT / "conf" / "macvlan.conflist").read_text())
        conf.write_text(json.dumps(conflist))
        print(f"   {DIM}${PLAIN} cp conf/macvlan.conflist $NETCONFPATH/rail0.conflist")
        ok(f"{self.step([str(hpn), 'version'], 'hpn version').strip()}")

    def attach(self) -> None:
        title(2, f"ADD: attach {IFNAME} to each pod")
        for pod in PODS:
            result = self.cni("add", pod)
            addresses = [one["address"] for one in result["ips"]]
            if not addresses:
                raise Failed(f"ADD gave pod {pod} no address: {result}")
            ok(f"{self.node.pod(pod)}: {IFNAME} has {' and '.join(addresses)}")
        if not self.records():
            raise Failed(f"ADD left no record under {self.state}; the last step would prove nothing")

    def records(self) -> list[Path]:
        """Every attachment and every lease on disk."""
        records = list((self.state / "attachments").rglob("*.json"))
        return records + [path for path in (self.state / "ipam").glob("*/leases") if "containerID" in path.read_text()]

    def draw(self) -> None:
        title(3, "Who is connected to whom, read back from the kernel")
        for line in drawing(self.node):
            print(f" {line}")

    def reach(self) -> None:
        title(4, "Ping from one pod to the other")
        first, second = (self.node.pod(pod) for pod in PODS)
        for address in (str(a["local"]) for a in addresses_of(second)):
            # One packet is enough: ADD returns after the kernel has found the IPv6 addresses unique.
            out = self.step(["ip", "netns", "exec", first, "ping", "-c", "1", "-W", "60", address])
            ok(next(line for line in out.splitlines() if " bytes from " in line))

    def check(self) -> None:
        title(5, "CHECK: is everything as ADD left it?")
        for pod in PODS:
            self.cni("check", pod)
            ok(f"{self.node.pod(pod)}: nothing to complain about")

    def detach(self) -> None:
        title(6, "DEL: take it away, twice, as a runtime may")
        for pod in PODS:
            for outcome in ("detached", "nothing to do, and no error"):
                self.cni("del", pod)
                ok(f"{self.node.pod(pod)}: {outcome}")

    def nothing_left(self) -> None:
        title(7, "Nothing is left")
        for pod in PODS:
            name = self.node.pod(pod)
            out = self.step(["ip", "-netns", name, "-brief", "link"])
            links = [line.split()[0] for line in out.splitlines()]
            if links != ["lo"]:
                raise Failed(f"{name} still has {links}")
            ok(f"{name}: only lo")
        print(f"   {DIM}${PLAIN} cd $HPN_STATE_DIR; find attachments -name '*.json'; grep -l containerID ipam/*/leases")
        if held := self.records():
            raise Failed(f"still on disk: {', '.join(map(str, held))}")
        ok("no attachment record and no lease")
        cached = [path for pod in PODS for path in RESULTS.glob(f"*-{container_id(self.node.pod(pod))}-*")]
        print(f"   {DIM}${PLAIN} ls {RESULTS}/{NETWORK}-*-{IFNAME}")
        if cached:
            raise Failed(f"libcni still caches {', '.join(map(str, cached))}")
        ok("no cached result")

    def gone(self, links: set[str]) -> None:
        title(8, "Nor after the namespaces themselves are gone")
        self.step(["ip", "netns", "list"])
        if stale := self.node.stale():
            raise Failed(f"namespaces are left: {', '.join(stale)}")
        ok(f"no namespace {PREFIX}-*")
        self.step(["ip", "-brief", "link"])
        if root_links() != links:
            raise Failed(f"the machine's links changed: {sorted(links ^ root_links())}")
        ok("the machine's own links are what they were")


def addresses_of(netns: str) -> list[dict[str, Any]]:
    """The global addresses of the pod's interface."""
    [link] = ip("address", "show", "dev", IFNAME, netns=netns)
    return [a for a in link["addr_info"] if a["scope"] == "global"]


def drawing(it: Node) -> list[str]:
    """The node's rail, the port at its other end, and the pods' interfaces over it."""
    [rail] = ip("link", "show", "dev", "rail0", netns=it.netns)
    [port] = ip("link", "show", "dev", "port0", netns=it.fabric)
    pods = []
    kinds = set()
    for pod in map(it.pod, PODS):
        [link] = ip("-details", "link", "show", "dev", IFNAME, netns=pod)
        if link["link_index"] != rail["ifindex"]:
            raise Failed(f"{pod}: {IFNAME} hangs on link {link['link_index']}, not on rail0 ({rail['ifindex']})")
        kinds.add(f"{link['linkinfo']['info_kind']}, mode {link['linkinfo']['info_data']['mode']}")
        interface = f"{IFNAME}   {link['address']}  mtu {link['mtu']}"
        pods.append(
            [f"{pod}   (a pod)", interface, *(f"       {a['local']}/{a['prefixlen']}" for a in addresses_of(pod))]
        )
    left, right = (box(lines, 38, head=True) for lines in pods)
    return [
        *box([f"{it.fabric}   (the switch)", f"port0  {port['address']}  mtu {port['mtu']}"], 44, at=17, tail=True),
        " " * 39 + "│ veth",
        *box(
            [f"{it.netns}   (the host)", f"rail0  {rail['address']}  mtu {rail['mtu']}"],
            44,
            at=17,
            head=True,
            tail=True,
        ),
        " " * 39 + f"│ {' and '.join(sorted(kinds))}",
        " " * 19 + "┌" + "─" * 19 + "┴" + "─" * 19 + "┐",
        *(f"{a}  {b}" for a, b in zip_longest(left, right, fillvalue="")),
    ]


def box(lines: Sequence[str], width: int, *, at: int = 0, head: bool = False, tail: bool = False) -> list[str]:
    """The lines framed, with a wire that leaves the middle of the top (head) or of the bottom (tail)."""

    def edge(left: str, wire: str, right: str) -> str:
        half = "─" * (width // 2 - 2)
        return left + half + "─" + wire + half + right

    framed = [
        edge("┌", "┴" if head else "─", "┐"),
        *(f"│ {line:{width - 4}} │" for line in lines),
        edge("└", "┬" if tail else "─", "┘"),
    ]
    return [" " * at + line for line in framed]


def root_links() -> set[str]:
    return {link["ifname"] for link in ip("link")}


def play(binary: Path, peers: Path) -> None:
    """The whole demo.  Raises Failed."""
    links = root_links()
    for name in Node(PREFIX).stale():
        run("ip", "netns", "delete", name)  # a killed demo left it
    with tempfile.TemporaryDirectory(prefix="hpn-demo-") as scratch, results_kept(map(Node(PREFIX).pod, PODS)):
        with node(PREFIX, PODS) as it:
            demo = Demo(it, Path(scratch), binary, peers)
            demo.install()
            demo.attach()
            demo.draw()
            demo.reach()
            demo.check()
            demo.detach()
            demo.nothing_left()
        demo.gone(links)


def main() -> int:
    # Errors go to stderr; a log must show them at their place.
    sys.stdout.reconfigure(line_buffering=True)
    if os.geteuid() != 0:
        print("the demo needs root, to make network namespaces: sudo make demo", file=sys.stderr)
        return 1
    binary = Path(os.environ.get("HPN_BINARY", ROOT / "dist" / "hpn"))
    peers = Path(os.environ.get("HPN_PEERS", ""))
    for path in (binary, peers / "cnitool"):
        if not path.is_file():
            print(f"the demo needs {path}: run it as `make demo`, or set HPN_BINARY and HPN_PEERS", file=sys.stderr)
            return 1
    end_by_unwinding()
    try:
        play(binary, peers)
    except (Failed, subprocess.CalledProcessError) as e:
        notes = "; ".join(getattr(e, "__notes__", ()))
        print(f"\n{RED}✗ {e}{PLAIN} {notes}", file=sys.stderr)
        return 1
    print(f"\n{GREEN}The demo did all it says, and left nothing behind.{PLAIN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
