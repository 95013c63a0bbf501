"""The demo behind `make cluster`: a pod on each of two nodes, reached over hpn0, and a node that loses its power."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import manifests
from cluster.keeper import PREFIX
from cluster.space import CGROUPS, Failed
from cluster.two_nodes import Cluster, missing
from demo import BOLD, DIM, GREEN, IFNAME, PLAIN, RED, box, ok, root_links
from fabric import end_by_unwinding

PODS = {"a": "node1", "b": "node2"}
RAIL = "rail0"
WIDTH = 44
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
BEGAN = time.monotonic()


def title(number: int, text: str) -> None:
    print(f"\n{BOLD}{number}  {text}{PLAIN}   {DIM}{time.monotonic() - BEGAN:.0f} s{PLAIN}")


class Demo:
    """The steps; each raises Failed if the cluster does not show the expected state."""

    def __init__(self, it: Cluster) -> None:
        self.it = it

    def kubectl(self, *words: str) -> str:
        print(f"   {DIM}${PLAIN} kubectl {' '.join(words)}")
        return self.it.kubectl(*words)

    def nodes(self) -> None:
        for line in self.kubectl("get", "nodes").splitlines():
            print(f"     {line}")
        ok("both are Ready; etcd, API server, controller manager and scheduler are on a third host")

    def attach(self) -> None:
        title(2, f"A network over {RAIL}, and a pod on each node that asks for {IFNAME} in it")
        self.it.apply(manifests.network(RAIL, {"type": "hpn", "master": RAIL, "ipam": ranges()}))
        self.it.apply(*(manifests.pod(pod, node=node, networks=f"{RAIL}@{IFNAME}") for pod, node in PODS.items()))
        self.ready()

    def ready(self) -> None:
        self.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *(f"pod/{pod}" for pod in PODS))
        for pod, node in PODS.items():
            ok(f"{pod} on {node}: {IFNAME} has {self.address(pod)}")

    def link(self, pod: str) -> dict[str, Any]:
        """The pod's interface, as ip shows it in the pod's namespace on its node."""
        [attachment] = [a for a in self.node(pod).attachments() if a["pod"] == f"default/{pod}"]
        netns = Path(attachment["netns"]).name
        [link] = json.loads(self.node(pod).run("ip", "-json", "-netns", netns, "address", "show", "dev", IFNAME).stdout)
        return dict(link)

    def node(self, pod: str) -> Any:
        return self.it.nodes[PODS[pod]]

    def address(self, pod: str) -> str:
        return addresses(self.link(pod))[0].partition("/")[0]

    def draw(self) -> None:
        title(3, "Who has what, read back from the kernel on each node")
        columns = []
        for pod, node in PODS.items():
            link = self.link(pod)
            [rail] = json.loads(self.it.nodes[node].run("ip", "-json", "link", "show", "dev", RAIL).stdout)
            if link["link_index"] != rail["ifindex"]:
                raise Failed(f"{pod}: {IFNAME} is over link {link['link_index']}, not over {RAIL}")
            lines = [f"pod {pod}", f"{IFNAME}   {link['address']}", *(f"       {a}" for a in addresses(link))]
            columns.append([*box(lines, WIDTH, tail=True), *below(f"macvlan over {RAIL}"),
                            *box([f"{node}   kubelet, containerd, hpn agent", f"{RAIL}  {rail['address']}"], WIDTH,
                                 head=True, tail=True)])  # fmt: skip
        for left, right in zip(*columns, strict=True):
            print(f" {left}  {right}")
        half = WIDTH // 2
        print(" " * (half + 1) + "└" + " the switch ".center(WIDTH + 1, "─") + "┘")

    def reach(self, number: int, text: str) -> None:
        title(number, text)
        for here, there in (("a", "b"), ("b", "a")):
            out = self.kubectl("exec", here, "--", "ping", "-c", "1", "-w", "60", self.address(there))
            ok(next(line for line in out.splitlines() if " bytes from " in line))

    def cut(self) -> None:
        title(5, "node1 loses its power")
        node, before = self.it.nodes["node1"], self.it.nodes["node1"].boot_id()
        containers = self.it.containers("a")
        node.power_cut()
        ok("kill -9 of its first process: nothing of it runs, /run is gone, its disk is as it was")
        self.it.boot(node)
        self.it.wait_ready()
        if node.boot_id() == before:
            raise Failed("node1 has the boot_id of before")
        ok(f"booted and Ready, boot_id {before[:8]}… became {node.boot_id()[:8]}…")
        self.it.wait_restarted(containers)
        self.ready()

    def detach(self) -> None:
        title(7, "The pods go")
        self.kubectl("delete", *(f"pod/{pod}" for pod in PODS))
        for name, node in self.it.nodes.items():
            print(f"   {DIM}${PLAIN} hpn inspect; hpn ipam show   {DIM}# on {name}{PLAIN}")
            if left := [*node.attachments(), *node.leases()]:
                raise Failed(f"{name} still has {left}")
            ok(f"{name}: no attachment and no lease")


def addresses(link: dict[str, Any]) -> list[str]:
    return [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"]


def ranges() -> dict[str, Any]:
    """One range for both nodes: ADD probes the rail for an address in use."""
    return {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "probe": True}


def below(text: str) -> list[str]:
    half = WIDTH // 2
    return [f"{' ' * half}│ {text}".ljust(WIDTH)]


def machine() -> dict[str, Any]:
    """The state that the cluster could leave on the machine."""
    return {
        "links": root_links(),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "cgroups": set(CGROUPS.glob(f"*/{PREFIX}*")),
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if PREFIX in line],
        "folders": set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")),
    }


def play(programs: Path, binary: Path) -> None:
    before = machine()
    title(1, "Boot: a control plane and two nodes, in namespaces of their own")
    with Cluster(programs, binary) as it:
        demo = Demo(it)
        demo.nodes()
        demo.attach()
        demo.draw()
        demo.reach(4, "Ping, from node to node")
        demo.cut()
        demo.reach(6, "Ping again")
        demo.detach()
    title(8, "And the cluster goes")
    for what, now in machine().items():
        if now != before[what]:
            raise Failed(f"the machine's {what} changed: {before[what]} became {now}")
        ok(f"{what}: as before")


def main(programs: str, binary: str) -> int:
    sys.stdout.reconfigure(line_buffering=True)
    if lacking := missing():
        print(f"the cluster needs {lacking}", file=sys.stderr)
        return 1
    end_by_unwinding()
    try:
        play(Path(programs), Path(binary))
    except (Failed, subprocess.TimeoutExpired, StopIteration) as e:
        print(*getattr(e, "__notes__", ()), f"{RED}✗ {e}{PLAIN}", sep="\n", file=sys.stderr)
        return 1
    print(f"\n{GREEN}The cluster did all it says, and left nothing behind{PLAIN}: {time.monotonic() - BEGAN:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
