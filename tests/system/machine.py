"""A node of network namespaces in which the frozen binary, cnitool and the Go peers run as on a real node."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

import fabric
from support.topology import leases

ROOT = Path(__file__).parents[2]
RANGES = [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]


@dataclass(frozen=True)
class Tools:
    """The results of `make test`'s build; ``plugins`` holds hpn and its hard link hpn-ipam."""

    binary: Path
    peers: Path
    plugins: Path

    @property
    def hpn(self) -> Path:
        return self.plugins / "hpn"


@dataclass
class Machine:
    """A node with its networks, its state and its pods, served by real programs."""

    tools: Tools
    node: fabric.Node
    scratch: Path
    stack: ExitStack
    pods: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.scratch / "state"

    @property
    def env(self) -> dict[str, str]:
        return {
            "CNI_PATH": f"{self.scratch / 'bin'}:{self.tools.plugins}:{self.tools.peers}",
            "NETCONFPATH": str(self.scratch / "net.d"),
            "CNI_IFNAME": "hpn0",
            "TMPDIR": str(self.scratch / "tmp"),
        }

    def pod(self) -> str:
        name = self.node.pod(f"pod{len(self.pods)}")
        self.stack.enter_context(fabric.namespace(name))
        self.pods.append(name)
        return name

    def network(self, *plugins: dict[str, Any], version: str = "1.1.0", name: str = "rail0", **more: Any) -> None:
        """Configure a network; hpn-ipam gets this machine's directory of leases."""
        plugins = tuple(self.local(plugin) for plugin in plugins)
        conflist = {"cniVersion": version, "name": name, "plugins": plugins, **more}
        (self.scratch / "net.d" / f"{name}.conflist").write_text(json.dumps(conflist))

    def local(self, plugin: dict[str, Any]) -> dict[str, Any]:
        """The plugin's configuration with its leases in our directory, whichever IPAM allocates."""
        ipam = dict(plugin.get("ipam", {}))
        if ipam.get("type") == "hpn-ipam":
            ipam["dataDir"] = str(self.state / "ipam")
        if ipam.get("type") == "host-local":
            ipam["dataDir"] = str(self.scratch / "host-local")
        return {**plugin, "ipam": ipam} if ipam else plugin

    def cnitool(self, verb: str, pod: str, network: str = "rail0", **env: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.tools.peers / "cnitool"), verb, network, fabric.netns_path(pod)]
        return self.node.run(argv, {**self.env, **env})

    def ok(self, verb: str, pod: str, network: str = "rail0", **env: str) -> dict[str, Any]:
        """Run cnitool, which must succeed; return the result, empty for a verb without one."""
        done = self.cnitool(verb, pod, network, **env)
        assert done.returncode == 0, f"{verb}: {done.stderr}{done.stdout}"
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def command(self, verb: str, pod: str) -> dict[str, str]:
        """The environment of a runtime's call of a plugin."""
        return {
            **self.env,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": fabric.container_id(pod),
            "CNI_NETNS": fabric.netns_path(pod),
        }

    def links(self, netns: str) -> set[str]:
        return {link["ifname"] for link in fabric.ip("link", netns=netns)} - {"lo"}

    def addresses(self, pod: str, ifname: str = "hpn0") -> set[str]:
        """The interface's addresses, except the kernel's own link-local ones."""
        [link] = fabric.ip("address", "show", "dev", ifname, netns=pod)
        return {f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"}

    def records(self) -> list[object]:
        """Every attachment and lease on disk, ours and host-local's."""
        held = [lease for lease in leases(self.state / "ipam") if "containerID" in lease]  # not one in cooldown
        ours = [*(self.state / "attachments").rglob("*.json"), *held]
        theirs = list((self.scratch / "host-local").rglob("*.*.*.*"))
        return [*ours, *theirs]

    def nothing_held(self) -> None:
        """Assert that no attachment is left: on disk, in a pod, in the node or in TMPDIR."""
        assert self.records() == []
        for pod in self.pods:
            assert self.links(pod) == set(), pod
            assert list(fabric.RESULTS.glob(f"*-{fabric.container_id(pod)}-*")) == []
        assert self.links(self.node.netns) == {"rail0"}
        assert list((self.scratch / "tmp").iterdir()) == []


def running() -> list[int]:
    """The processes of the binary's unpacked program, by their loader's path."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # gone, or a kernel thread
            if Path(f"/proc/{pid}/exe").readlink().is_relative_to(os.environ["HPN_PROGRAM_DIR"]):
                found.append(int(pid))
    return found


def ours(**keys: Any) -> dict[str, Any]:
    """Our plugin over rail0 with our IPAM, with these keys changed."""
    return {"type": "hpn", "master": "rail0", "ipam": {"type": "hpn-ipam", "ranges": RANGES}} | keys
