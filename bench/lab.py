"""The program behind `make bench-lab`: attach and detach a VF with its RDMA device and an address, in the lab's guest.

cnitool runs all sides, as a runtime would: ours is one program, theirs the chain of sriov-cni (which calls host-local)
and rdma-cni.  They use the same VF in turns.  The guest is emulated, so only the ratios and counts are meaningful
elsewhere.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))

from fabric import namespace, run
from in_guest import run_in_guest
from sides import Side

from bench import PREFIX, Bench, agent, netlink_requests, table, write

VF = "rail0v0"
ROUNDS, SECONDS = 20, 300.0
REPORT = "report.md"


@dataclass
class Chain(Side):
    """A network that ``binary``, which is cnitool, attaches; ``conf`` is its list of plugins."""

    def argv(self, verb: str, pod: str) -> list[str]:
        return [str(self.binary), verb.lower(), self.conf["name"], self.environment(verb, pod)["CNI_NETNS"]]


def chains(scratch: Path, peers: Sequence[str]) -> list[Chain]:
    """Go first, the base of comparison."""
    device = Path(f"/sys/class/net/{VF}/device").resolve().name
    networks = scratch / "net.d"
    networks.mkdir()

    def chain(says: str, name: str, *plugins: dict[str, Any], **variables: str) -> Chain:
        conf = {"cniVersion": "1.0.0", "name": name, "plugins": [{**plugin, "deviceID": device} for plugin in plugins]}
        (networks / f"{name}.conflist").write_text(json.dumps(conf))
        cnitool = next(Path(peer, "cnitool") for peer in peers if Path(peer, "cnitool").exists())
        return Chain(says, cnitool, conf, {"NETCONFPATH": str(networks), **variables})

    def ipam(kind: str, n: int) -> dict[str, str]:
        return {"type": kind, "subnet": f"10.{n}.0.0/24", "dataDir": str(scratch / kind)}

    def ours(n: int) -> dict[str, Any]:
        rdma = {"mode": "exclusive", "required": True}
        return {"type": "hpn", "rdma": rdma, "ipam": ipam("hpn-ipam", n)}

    socket = str(scratch / "agent.sock")
    of_ours = {"CNI_PATH": str(scratch / "bin"), "HPN_STATE_DIR": str(scratch / "state")}
    theirs = {"type": "sriov", "ipam": ipam("host-local", 57)}
    return [
        chain("sriov-cni + host-local + rdma-cni", "theirs", theirs, {"type": "rdma"}, CNI_PATH=":".join(peers)),
        chain("hpn, with its agent", "agent", ours(56), **of_ours, HPN_AGENT=socket),
        chain("hpn, without", "alone", ours(55), **of_ours, HPN_AGENT=""),
    ]


def inside(binary: Path, peers: Sequence[str]) -> None:
    """In the guest: measure, and leave the page's lines for ``main``."""
    with tempfile.TemporaryDirectory() as temporary, namespace(f"{PREFIX}-pod") as pod:
        scratch = Path(temporary)
        plugins = scratch / "bin"
        plugins.mkdir()
        shutil.copy(binary, plugins / "hpn")
        with agent(plugins / "hpn", scratch / "agent.sock"):
            sides = chains(scratch, peers)
            bench = Bench(plugins, scratch, scratch, [pod], SECONDS)
            done = bench.measure(sides, ROUNDS, lambda side, verb: side.one_by_one(verb, [pod]))
            lines = table(f"A VF, its RDMA device, an IPv4 address ({done} rounds)", sides)
            if shutil.which("strace"):
                counts = [(side.name, netlink_requests(side, pod, scratch)) for side in (sides[0], sides[-1])]
                said = "; ".join(f"{name} {count['ADD']} and {count['DEL']}" for name, count in counts)
                lines += [f"Netlink requests of an ADD and a DEL: {said}."]
    linux = ".".join(platform.release().split(".")[:2])
    where = f"{os.cpu_count()} CPUs, Linux {linux}, {run(str(binary), 'version').strip()}"
    said = f"Wall time of cnitool's processes. The lab's guest, emulated, {where}."
    page = [f"{said} A ratio is to the first row of its command.", "", *lines]
    Path(os.environ["HPN_LAB"], REPORT).write_text("\n".join(page))


def main() -> None:
    options = argparse.ArgumentParser(description="A VF, its RDMA device and an address, ours against the Go chain.")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    options.add_argument("--inside", nargs="+", metavar="FILE", help="in the guest: our binary, the peers' directories")
    chosen = options.parse_args()
    if chosen.inside:
        binary, *peers = chosen.inside
        inside(Path(binary), peers)
        return
    arguments = [os.environ["HPN_BINARY"], *os.environ["HPN_PEERS"].split(":")]
    with tempfile.TemporaryDirectory() as out:
        run_in_guest(["--out", out, sys.executable, __file__, "--inside", *arguments])
        page = Path(out, REPORT).read_text()
    print(page)
    if chosen.write:
        write(page.splitlines(), "lab")


if __name__ == "__main__":
    main()
