"""The demo behind `make lab`, in the guest: two pods on two NICs, attached by cnitool, with an RDMA device each.

lab_demo.py vf BINARY PEERS      a VF each, and the VF's own RDMA device, which moves with it (exclusive mode)
lab_demo.py roce BINARY PEERS    a macvlan each, and a soft-RoCE device on it (shared mode): RDMA traffic, and a job
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jobs
import nics
import verbs
from demo import DIM, IFNAME, PLAIN, RED, Failed, box, ok, title
from fabric import ip

PODS = ("pod-a", "pod-b")
WIDTH = 44
PAYLOAD = 2 * 10 * 262144  # of collectives.py, in octets: ten times the largest message, of each of two kinds


class Lab:
    """Two pods, each with its own network on its own NIC; every step raises Failed if the kernel shows another
    state."""

    def __init__(self, scratch: Path, binary: Path, peers: Path, plugin: Callable[[str], dict[str, Any]]) -> None:
        self.scratch = scratch
        self.state = scratch / "state"
        self.env = {"CNI_PATH": str(scratch / "bin"), "NETCONFPATH": str(scratch / "net.d"), "CNI_IFNAME": IFNAME}
        self.env["HPN_STATE_DIR"] = str(self.state)
        self.cnitool = str(peers / "cnitool")
        (scratch / "bin").mkdir()
        (scratch / "net.d").mkdir()
        for name in ("hpn", "hpn-ipam"):
            (scratch / "bin" / name).symlink_to(binary)
        for rail, pod in enumerate(PODS):
            # Both rails are one wire here: a network each, and one subnet.
            part = {"subnet": "10.56.0.0/24", "rangeStart": f"10.56.0.{rail + 1}0"}
            ours = {"type": "hpn", "ipam": {"type": "hpn-ipam", "ranges": [[part]]}}
            network = {"cniVersion": "1.1.0", "name": pod, "plugins": [ours | plugin(f"rail{rail}")]}
            (scratch / "net.d" / f"{pod}.conflist").write_text(json.dumps(network))

    def cni(self, verb: str, pod: str) -> Any:
        out = self.step(self.cnitool, verb, pod, f"/run/netns/{pod}", shown=f"cnitool {verb} {pod} /run/netns/{pod}")
        return json.loads(out) if out.strip() else None

    def step(self, *command: str, shown: str = "") -> str:
        """Show a command, run it, and return its output."""
        print(f"   {DIM}${PLAIN} {shown or shlex.join(command)}")
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{shown or shlex.join(command)}: exit {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def hints(self, pod: str) -> str:
        words = ("hints", f"/run/netns/{pod}", "--for", "mpi")
        shown = shlex.join(("hpn", *words))
        return self.step(str(self.scratch / "bin" / "hpn"), *words, "--state-dir", str(self.state), shown=shown)

    def attach(self) -> None:
        for pod in PODS:
            [address] = [one["address"] for one in self.cni("add", pod)["ips"]]
            ok(f"{pod}: {IFNAME} has {address} and RDMA device {rdma_device(pod)}")

    def detach(self) -> None:
        for pod in PODS:
            self.cni("del", pod)
            if [link["ifname"] for link in ip("link", netns=pod)] != ["lo"]:
                raise Failed(f"{pod} still has an interface")
            ok(f"{pod}: only lo")
        leases = [path for path in self.state.rglob("leases") if "containerID" in path.read_text()]
        if held := [*self.state.rglob("*.json"), *leases]:
            raise Failed(f"still on disk: {', '.join(map(str, held))}")
        ok("no record in the journal")


def vf(binary: Path, peers: Path) -> None:
    """VFs with RDMA devices of their own, in exclusive mode."""
    title(1, f"The NICs: Linux {os.uname().release}, two PFs on one wire, an RDMA device per VF")
    before = nics.table()
    show(before)
    with two_pods(binary, peers, lambda pf: {"pf": pf}) as lab:
        title(2, "ADD: any free VF of rail0 for one pod, of rail1 for the other")
        lab.attach()
        title(3, "Who has what, read back from the kernel in each pod")
        draw(lambda link: f"VF {link['parentdev']} of {parent(link['parentdev'])}", "is in this pod only")
        for pod in PODS:
            if len(rdma_links(pod)) != 1 or any(f" {rdma_device(pod)}/" in line for line in rdma_links()):
                raise Failed(f"{pod} does not have its RDMA device alone: {rdma_links(pod)}")
        title(4, "Ping, over the wire")
        out = lab.step("ip", "netns", "exec", PODS[0], "ping", "-c", "1", "-w", "60", address(PODS[1]))
        ok(next(line for line in out.splitlines() if " bytes from " in line))
        title(5, "DEL: VFs and RDMA devices are home, and as they were")
        lab.detach()
    if nics.table() != before:
        show(nics.table())
        raise Failed("the NICs are not as they were")
    ok("the table of 1, line for line")


def roce(binary: Path, peers: Path) -> None:
    """Soft-RoCE on macvlans, in shared mode."""
    title(6, f"Soft-RoCE: Linux {os.uname().release}, a macvlan per pod, rdma.mode rxe")
    before = rdma_links()
    with two_pods(binary, peers, lambda pf: {"master": pf, "rdma": {"mode": "rxe"}}) as lab:
        lab.attach()
        title(7, "Who has what, read back from the kernel in each pod")
        draw(lambda link: f"{link['linkinfo']['info_kind']} over {master(link)}", f"is on {IFNAME}")
        title(8, "RDMA between the pods")
        server, client = (verbs.End(pod, rdma_device(pod), address(pod)) for pod in PODS)
        report = verbs.ib_write_bw(server, client)
        print(f"   {DIM}${PLAIN} ib_write_bw -d {client.device} {server.address}")
        ok(f"100 RDMA writes of 64 KiB: {verbs.bandwidth(report):.1f} MB/s, in an emulated machine")
        print(f"   {DIM}${PLAIN} rping -c -a {server.address} -C 3 -v")
        for line in (answers := [line for line in verbs.rping(server, client).splitlines() if "ping data" in line]):
            ok(line)
        if len(answers) != 3:
            raise Failed(f"{len(answers)} of 3 pings came back")
        title(9, "A job: Open MPI's ranks all-reduce and all-to-all by RDMA, told by hpn hints what to use")
        job(lab)
        title(10, "DEL: the devices are gone with their interfaces")
        lab.detach()
    if rdma_links() != before:
        raise Failed(f"an RDMA device is left: {rdma_links()}")
    ok("the host's RDMA devices are what they were")


def job(lab: Lab) -> None:
    """Run a rank in each pod, and check by the kernel's counters that the RDMA devices carried its correct results."""
    told = {pod: lab.hints(pod) for pod in reversed(PODS)}
    print("".join(f"   {line}\n" for line in told[PODS[0]].splitlines()), end="")
    print(f"   {jobs.OF_SOFT_ROCE.strip()}   {DIM}# soft-RoCE only{PLAIN}")
    environments = {pod: lines + jobs.OF_SOFT_ROCE for pod, lines in told.items()}
    jobs.describe(lab.scratch, environments, {pod: address(pod) for pod in PODS})
    before = {pod: counted(pod) for pod in PODS}
    print(f"   {DIM}${PLAIN} mpirun --host {','.join(PODS)} -np 2 python3 collectives.py")
    said = jobs.mpirun(lab.scratch, PODS, "collectives.py")
    # UCX also lists the transports that soft-RoCE lacks.
    results = [line for line in said.splitlines() if " octets " in line]
    for line in results:
        ok(line)
    if [line.endswith(" right") for line in results] != 8 * [True]:
        raise Failed(f"that is not what arithmetic says: {said}")
    carried = {pod: {what: now - before[pod][what] for what, now in counted(pod).items()} for pod in PODS}
    beside(
        [
            f"{pod}   rank {rank}",
            f"RDMA   {rdma_device(pod)}",
            f"       {carried[pod]['sent']:>6,} packets sent",
            f"       {carried[pod]['received']:>6,} received",
            f"TCP    {carried[pod]['segments']:>6,} segments sent",
        ]
        for rank, pod in enumerate(PODS)
    )
    for pod, by in carried.items():
        if min(by["sent"], by["received"]) < PAYLOAD // 1024 or by["segments"] > by["sent"] // 2:
            raise Failed(f"{pod}: it was not carried by RDMA: {by}")
    ok("the kernel's counters of the RDMA devices, and of TCP in the pods: RDMA carried it")


@contextmanager
def two_pods(binary: Path, peers: Path, plugin: Callable[[str], dict[str, Any]]) -> Iterator[Lab]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpn-lab-")))
        for pod in PODS:
            ip("netns", "add", pod)
            stack.callback(ip, "netns", "delete", pod)
            ip("link", "set", "lo", "up", netns=pod)
        yield Lab(scratch, binary, peers, plugin)


def draw(what: Callable[[dict[str, Any]], str], where: str) -> None:
    pods = []
    for pod in PODS:
        [link] = ip("-details", "addr", "show", "dev", IFNAME, netns=pod)
        device = rdma_device(pod)
        lines = [f"{pod}   (a pod)", f"{IFNAME}   {link['address']}  mtu {link['mtu']}", f"       {what(link)}"]
        pods.append([*lines, f"       {address(pod)}", f"RDMA   {device}", f"       {where}"])
    beside(pods)


def beside(pods: Iterable[list[str]]) -> None:
    """Draw both pods' lines in boxes on one wire."""
    for left, right in zip(*(box(lines, WIDTH, tail=True) for lines in pods), strict=True):
        print(f" {left}  {right}")
    half = WIDTH // 2
    print(" " * (half + 1) + "│" + " " * (WIDTH + 1) + "│")
    print(" " * (half + 1) + "└─ rail0 " + " one wire ".center(WIDTH - 15, "─") + " rail1 ─┘")


def rdma_links(netns: str = "") -> list[str]:
    where = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*where, "rdma", "link"], capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


def rdma_device(pod: str) -> str:
    """The RDMA device on the pod's interface, as the kernel reports it."""
    for line in rdma_links(pod):
        if line.endswith(f" netdev {IFNAME}"):
            return line.split()[1].partition("/")[0]
    raise Failed(f"{pod}: no RDMA device on {IFNAME}: {rdma_links(pod)}")


def address(pod: str) -> str:
    [link] = ip("addr", "show", "dev", IFNAME, netns=pod)
    return str(next(a["local"] for a in link["addr_info"] if a["family"] == "inet"))


def counted(pod: str) -> dict[str, int]:
    """RDMA packets that the pod's device has sent and received, and TCP segments sent in the pod."""
    counters = Path(f"/sys/class/infiniband/{rdma_device(pod)}/ports/1/hw_counters")
    sent, received = (int((counters / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))
    return {"sent": sent, "received": received, "segments": jobs.tcp_segments(pod)}


def parent(device: str) -> str:
    return next(pf.netdev for pf in nics.pfs() if device in {vf.address for vf in pf.vfs})


def master(link: dict[str, Any]) -> str:
    return next(one["ifname"] for one in ip("link") if one["ifindex"] == link["link_index"])


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("   " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main(part: str, binary: str, peers: str) -> int:
    sys.stdout.reconfigure(line_buffering=True)
    try:
        {"vf": vf, "roce": roce}[part](Path(binary).resolve(), Path(peers))
    except (Failed, subprocess.CalledProcessError) as e:
        print(f"\n{RED}✗ {e}{PLAIN} {getattr(e, 'output', None) or ''}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
