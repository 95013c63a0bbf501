"""The program behind `make bench-slices`: the ResourceSlices of a large node, on a real API server and etcd.

`hpn node` offers 8,192 VFs of 64 PFs by DRA.  The PFs are drawn in a tree in place of /sys; a stand-in answers as
kubelet.  Its first publication begins with its start; the next ones begin as after a start of kubelet.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "netns-fixtures"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))

from cluster import two_nodes
from rails import leave_the_hosts_mounts
from size import PFS, VFS, draw
from support.node_dra import dra_kubelet
from support.pod_resources import listing
from support.shared_stores import Api, api_server

from bench import write

NODE = "node1"
PATIENCE = 120.0
STEP = 0.05  # seconds between two looks
IDLE = 20.0
_RESOURCE = {"name": "example.com/vf", "kind": "vf", "by": "dra", "selectors": {"vendors": ["15b3"]}}
_TICK = os.sysconf("SC_CLK_TCK")
_COUNTED = re.compile(
    r'^apiserver_request_total\{.*resource="(?:resourceslices|nodes)".*verb="(\w+)".*\} (\d+)', re.MULTILINE
)
_BYTES = re.compile(
    r'^apiserver_(?:response_sizes|request_body_size_bytes)_sum\{.*resource="(?:resourceslices|nodes)".*\} (\S+)',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Spent:
    """Requests and bytes at the API server, and the seconds of processor time that it and `hpn node` have taken."""

    requests: int
    size: float
    server: float
    node: float

    def since(self, before: "Spent") -> "Spent":
        pairs = zip(vars(self).values(), vars(before).values(), strict=True)
        return Spent(*(now - then for now, then in pairs))


class Seen:
    """What the API server and the kernel report of `hpn node`, process ``pid``, and of the servers."""

    def __init__(self, api: Api, pid: int) -> None:
        self._api, self._pid = api, pid
        self.rest = self.largest = self.peak = 0.0

    def spent(self) -> Spent:
        page = self._api.run("get", "--raw=/metrics")
        requests = sum(int(count) for verb, count in _COUNTED.findall(page) if verb != "WATCH")
        assert self._api.server.process
        server = self._api.server.process.pid
        return Spent(requests, sum(map(float, _BYTES.findall(page))), processor(server), processor(self._pid))

    def look(self) -> bool:
        """Note the memory of `hpn node` and its child; return whether it has a child."""
        sizes = [pss(pid) for pid in (self._pid, *children(self._pid))]
        self.rest = sizes[0] if len(sizes) == 1 else self.rest
        self.largest, self.peak = max(self.largest, sizes[0]), max(self.peak, sum(sizes))
        return len(sizes) > 1

    def until(self, wanted: int) -> float:
        """Seconds until the API server has so many slices; the memory meanwhile."""
        began, looked = time.monotonic(), 0.0
        while time.monotonic() < began + PATIENCE:
            self.look()
            if time.monotonic() > looked + 10 * STEP:
                looked = time.monotonic()
                if stored(self._api) == wanted:
                    return time.monotonic() - began
            time.sleep(STEP)
        sys.exit(f"the API server has {stored(self._api)} slices after {PATIENCE:g} s")

    def until_quiet(self, seconds: float) -> None:
        """Wait until `hpn node` has had no child for so long."""
        quiet = time.monotonic()
        while time.monotonic() < quiet + seconds:
            if self.look():
                quiet = time.monotonic()
            time.sleep(STEP)


def processor(pid: int) -> float:
    """Seconds of processor time of a process and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICK


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pss(pid: int) -> float:
    """The process's share of memory in MB; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def wakeups(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def stored(api: Api) -> int:
    """The number of slices, by the server's count of the rest of a list."""
    listed = json.loads(api.run("get", "--raw=/apis/resource.k8s.io/v1/resourceslices?limit=1"))
    return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))


@contextmanager
def hpn_node(folder: Path, api: Api) -> Iterator[int]:
    """Run `hpn node` with the drawn devices; the number of its process."""
    (folder / "node.json").write_text(json.dumps({"resources": [_RESOURCE]}))
    (folder / "kubeconfig").write_text(json.dumps(api.kubeconfig(f"system:node:{NODE}")))
    (folder / "kubeconfig").chmod(0o600)
    words = [os.environ["HPN_BINARY"], "node", "--config", folder / "node.json", "--kubelet-dir", folder / "kubelet",
             "--kubeconfig", folder / "kubeconfig"]  # fmt: skip
    mounts = f"mount -t tmpfs tmpfs /run && mount --bind {folder}/sys /sys && exec {shlex.join(map(str, words))}"
    with (folder / "node.log").open("w") as log:
        process = subprocess.Popen(["unshare", "--mount", "sh", "-c", mounts], stderr=log)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def large(folder: Path, api: Api) -> Iterator[str]:
    """The table of a node with 8,192 VFs."""
    slices = PFS * VFS // 64
    draw(folder / "sys")
    (folder / "kubelet/plugins_registry").mkdir(parents=True)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    api.run("create", "--filename=-", stdin=json.dumps(node))
    yield "| publication | s until all are there | processor s | of the API server | requests | MB |"
    yield "|---|--:|--:|--:|--:|--:|"
    with listing(folder / "kubelet"), hpn_node(folder, api) as pid:
        seen = Seen(api, pid)
        # Its child processes count when they have ended.
        before, began = replace(seen.spent(), node=0.0), time.monotonic()
        seen.until(slices)
        seconds = time.monotonic() - began
        seen.until_quiet(1)
        yield row(f"the first, of {slices} slices, from the start of `hpn node`", seconds, seen.spent().since(before))
        woken = wakeups(pid)
        time.sleep(IDLE)
        woken = wakeups(pid) - woken
        with dra_kubelet(folder / "kubelet/plugins_registry/hpn-hpn-cni.io.sock") as kubelet:
            health = kubelet.health()
            assert len(next(health).devices) == PFS * VFS
            for name in ("again, without a change", "again, after kubelet has removed all"):
                if "removed" in name:
                    api.run("delete", "--raw=/apis/resource.k8s.io/v1/resourceslices")
                before, began = seen.spent(), time.monotonic()
                kubelet.notify()
                while not seen.look():
                    time.sleep(STEP / 10)
                while seen.look():
                    time.sleep(STEP / 10)
                yield row(name, time.monotonic() - began, seen.spent().since(before))
            health.cancel()
    yield ""
    yield f"`hpn node` has {seen.rest:.0f} MB (PSS) after these, at most {seen.largest:.0f} MB, and with its child"
    yield f"{seen.peak:.0f} MB. In {IDLE:.0f} s without an event it wakes {woken} times."


def row(name: str, seconds: float, spent: Spent) -> str:
    figures = f"{seconds:.1f} | {spent.node:.2f} | {spent.server:.2f} | {spent.requests} | {spent.size / 1e6:.2f}"
    return f"| {name} | {figures} |"


@contextmanager
def said(users: Mapping[str, str]) -> Iterator[tuple[str, Api, Path]]:
    """An API server for these users, a directory, and the place of the measurement."""
    linux = ".".join(platform.release().split(".")[:2])
    with tempfile.TemporaryDirectory(prefix="hpn-bench-", dir="/dev/shm") as temporary:
        (Path(temporary) / "api").mkdir()
        with api_server(Path(temporary) / "api", two_nodes.built(), users) as api:
            place = f"{time.strftime('%F')}, after a load of {os.getloadavg()[0]:.0f}; {os.cpu_count()} CPUs"
            yield f"{place}, Kubernetes 1.36, Linux {linux}.", api, Path(temporary)


def measured() -> Iterator[str]:
    with said({f"system:node:{NODE}": "system:nodes"}) as (line, api, folder):
        yield from (line, "")
        yield from large(folder, api)


def main() -> None:
    options = argparse.ArgumentParser(description="ResourceSlices of a large node.")
    options.add_argument("--write", action="store_true", help="update docs/user/performance.md")
    chosen = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("the benchmark needs root, to mount a tree in place of /sys: sudo make bench-slices")
    leave_the_hosts_mounts()
    lines = list[str]()
    for line in measured():
        print(line, flush=True)
        lines.append(line)
    if chosen.write:
        write(lines, "slices")


if __name__ == "__main__":
    main()
