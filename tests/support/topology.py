"""Hosts, pods and requests for the tests that need a kernel.  ``ip`` shares no code with us, so it verifies results."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.namespaces import new_namespace
from support.pictures import network

from base.protocol import spec
from base.protocol.errors import CniError
from base.protocol.spec import Reply, Request
from base.state import durable
from base.state.locks import Lock
from cni.main import run as hpn
from ipam.main import ask as hpn_ipam

PROGRAMS = {"hpn-ipam": hpn_ipam}
_numbers = itertools.count()


def ip(*words: str, netns: str = "") -> Any:
    """Run ``ip -j``; return its decoded output."""
    where = ["-n", netns] if netns else []
    done = subprocess.run(["ip", *where, "-j", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join((*where, *words))}: {done.stderr.strip()}"
    return json.loads(done.stdout) if done.stdout.strip() else []


@dataclass(frozen=True)
class Pod:
    """A named network namespace, with its loopback up as runtimes leave it."""

    name: str

    @property
    def path(self) -> str:
        return f"/run/netns/{self.name}"

    def ip(self, *words: str) -> Any:
        return ip(*words, netns=self.name)

    def link(self, name: str = "hpn0") -> dict[str, Any] | None:
        """Return one interface as ``ip -d link`` shows it, None if it is absent."""
        return next((i for i in self.ip("-d", "link") if i["ifname"] == name), None)

    def links(self) -> set[str]:
        return {i["ifname"] for i in self.ip("link")} - {"lo"}

    def addresses(self, name: str = "hpn0") -> set[str]:
        """Return its addresses without the kernel's link-local ones."""
        (link,) = self.ip("addr", "show", "dev", name)
        return {f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"}

    @classmethod
    @contextmanager
    def made(cls) -> Iterator["Pod"]:
        pod = cls(f"hpn-test-{os.getpid()}-{next(_numbers)}")
        new_namespace(pod.name)
        try:
            pod.ip("link", "set", "lo", "up")
            yield pod
        finally:
            if Path(pod.path).exists():
                ip("netns", "delete", pod.name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside; ``ip netns exec`` also mounts the namespace's own sysctls."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command], capture_output=True, text=True, check=False, timeout=300
        )

    def sysctl(self, key: str, value: str = "") -> str:
        """Read or write a file under /proc/sys/net."""
        path = f"/proc/sys/net/{key}"
        done = self.run("sh", "-c", f"echo {value} > {path}") if value else self.run("cat", path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def quick_dad(self) -> None:
        """Start IPv6 duplicate address detection of future links at once, not after up to 1 s."""
        self.sysctl("ipv6/conf/default/router_solicitation_delay", "0")

    def ping(self, address: str, *options: str) -> bool:
        return self.run("ping", "-n", "-c", "1", "-W", "60", *options, address).returncode == 0

    def inode(self) -> int:
        """Return the namespace's inode number, as ``lsns`` shows it."""
        return Path(self.path).stat().st_ino

    def stranger(self, name: str = "hpn0") -> dict[str, Any]:
        """Add an interface of that name that no ADD attached; return it as ``ip -d link`` shows it."""
        self.ip("link", "add", name, "type", "bridge")
        link = self.link(name)
        assert link
        return link

    def gone(self) -> None:
        """Delete the namespace, as a runtime that crashed before DEL."""
        ip("netns", "delete", self.name)

    def remade(self) -> None:
        """Replace the namespace by another one at the same path."""
        ip("netns", "delete", self.name)
        new_namespace(self.name)


# Files of leases that Host.state_files leaves out.
UNCOUNTED = ("lock", "leases", "index", "ranges")


@dataclass
class Host:
    """The tests' own namespace, and a state directory."""

    tmp_path: Path

    def __post_init__(self) -> None:
        self.state = self.tmp_path / "state"
        ip("link", "set", "lo", "up")
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "fabric")
        ip("link", "set", "rail0", "up")
        ip("link", "set", "fabric", "up")

    @property
    def state(self) -> Path:
        """The state directory, for this process and for those that it starts."""
        return Path(os.environ["HPN_STATE_DIR"])

    @state.setter
    def state(self, directory: Path) -> None:
        os.environ["HPN_STATE_DIR"] = f"{directory}"

    def conf(self, **keys: Any) -> dict[str, Any]:
        """Return a valid configuration with these keys changed; the value ... removes a key."""
        conf = {
            "cniVersion": "1.1.0",
            "name": "rail0",
            "type": "hpn",
            "master": "rail0",
            "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]},
        } | keys
        return {k: v for k, v in conf.items() if v is not ...}

    def request(self, command: str, pod: Pod | None, conf: Any, **environ: str) -> Request:
        """Return a runtime's request; the value ... removes a variable, and conf may be raw bytes."""
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": pod.name if pod else "",
            "CNI_NETNS": pod.path if pod else "",
            "CNI_IFNAME": "hpn0",
            "CNI_PATH": "/nonexistent",
            "PATH": os.environ["PATH"],
            "HPN_STATE_DIR": f"{self.state}",
        } | environ
        stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
        return Request({k: v for k, v in variables.items() if v is not ...}, stdin)

    def call(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> Reply:
        """Run the plugin, with hpn-ipam inside it."""
        conf = self.conf() if conf is None else conf
        request = self.request(command, pod, conf, **environ)
        before = None
        with suppress(CniError):
            before = json.dumps(spec.configuration(request))
        reply = self.run(request)
        with suppress(CniError):  # the next request may use the same objects (spec.cached)
            assert json.dumps(spec.configuration(request)) == before, "something changed the configuration"
        return reply

    def run(self, request: Request) -> Reply:
        return hpn(request, PROGRAMS)

    def ok(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> dict[str, Any]:
        """Run the plugin, which must succeed; return its result, empty if the command has none."""
        reply = self.call(command, pod, conf, **environ)
        assert reply.exit_code == 0, (reply.stdout, reply.log)
        return json.loads(reply.stdout) if reply.stdout else {}

    def refused(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> dict[str, Any]:
        """Run the plugin, which must fail; return its error document."""
        reply = self.call(command, pod, conf, **environ)
        assert reply.exit_code != 0, reply.stdout
        error = json.loads(reply.stdout)
        assert error.keys() <= {"cniVersion", "code", "msg", "details"}
        assert error["code"] != 999, (error, reply.log)
        return error

    def checked(self, pod: Pod, conf: dict[str, Any], result: dict[str, Any], **environ: str) -> Reply:
        """Run CHECK with ADD's result."""
        return self.call("CHECK", pod, conf | {"prevResult": result}, **environ)

    def ping(self, address: str, *options: str) -> bool:
        command = ["ping", "-n", "-c", "1", "-W", "60", *options, address]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def state_files(self) -> set[str]:
        """Return the files of the state directory without locks, indexes and notes of RDMA devices, and each lease as
        a file."""
        files = {
            str(p.relative_to(self.state))
            for p in self.state.rglob("*")
            if not p.is_dir() and not {"locks", "rdma"} & {*p.parts} and p.name not in UNCOUNTED
        }
        held = [lease for lease in leases(self.state / "ipam") if "containerID" in lease]  # no reserved ones
        return files | {f"{lease['containerID']}:{lease['ifname']} of leases" for lease in held}

    def record(self, pod: Pod, ifname: str = "hpn0") -> Path:
        """Return the journal's path for this attachment of the network rail0."""
        return self.state / "attachments" / "rail0" / f"{pod.name}:{ifname}.json"

    @contextmanager
    def meanwhile(self, pod: Pod, conf: dict[str, Any]) -> Iterator["Future[Reply]"]:
        """Start an ADD and block it after it wrote its record; it continues at the end."""
        store = self.state / "ipam" / conf["name"]
        durable.directory(store)
        with ThreadPoolExecutor() as threads, Lock(f"{store}/lock", 1):
            reply = threads.submit(self.call, "ADD", pod, conf)
            until(lambda: self.record(pod).exists())
            yield reply

    def rewrite(self, record: Path, **changes: Any) -> None:
        """Change members of a record."""
        body = durable.read(record)
        assert body is not None
        durable.write(record, body | changes)

    def identity(self, pod: Pod) -> dict[str, int]:
        """Return the identity of the pod's namespace in the journal's record."""
        body = durable.read(self.record(pod))
        assert body is not None
        return dict(body["identity"])

    def double(self, pod: Pod, link: dict[str, Any]) -> None:
        """Make a link that is not ours, with our link's kind, name, MAC, index and master."""
        like = ("index", str(link["ifindex"]), "address", link["address"])
        where = ("link", "rail0", "name", "hpn0", "netns", pod.name)
        ip("link", "add", *where, *like, "type", "macvlan", "mode", "bridge")

    def replace(self, pod: Pod) -> None:
        """Attach the pod, then put another namespace at its path, with a double of our link.

        The new namespace also gets the old inode number, because the kernel reuses numbers; only the cookie differs.
        """
        self.ok("ADD", pod)
        ours = pod.link()
        assert ours
        pod.remade()
        self.rewrite(self.record(pod), identity=self.identity(pod) | {"inode": pod.inode()})
        self.double(pod, ours)

    def leases(self) -> set[str]:
        """Return all addresses that hpn-ipam holds, of all networks."""
        return {a.partition("/")[0] for lease in leases(self.state / "ipam") for a in lease["addresses"]}

    def program(self, name: str, script: str) -> str:
        """Write a delegate plugin with this shell script; return its CNI_PATH."""
        folder = self.tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return str(folder)

    def giving(self, **result: Any) -> str:
        """Write a delegate "script" that prints this result on ADD and ignores other commands; return its CNI_PATH."""
        document = json.dumps({"cniVersion": "1.1.0"} | result)
        return self.program("script", f"cat >/dev/null\n[ $CNI_COMMAND != ADD ] || echo '{document}'")

    def picture(self, *pods: Pod) -> dict[str, Any]:
        """Return everything that a request could change: interfaces, addresses, routes, and state with its contents."""
        files = [self.state / name for name in self.state_files() if not name.endswith(" of leases")]
        picture: dict[str, Any] = {"state": [leases(self.state / "ipam"), *sorted((p, _content(p)) for p in files)]}
        for where in ("", *(pod.name for pod in pods if Path(pod.path).exists())):
            picture[where] = network(where)
        return picture


def _content(path: Path) -> str:
    return str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")


def leases(directory: Path, network: str = "*") -> list[dict[str, Any]]:
    """Return the leases in hpn-ipam's files, of all networks or one, as jq reads them."""
    lines = [line for file in sorted(directory.glob(f"{network}/leases")) for line in file.read_text().splitlines()]
    return [lease for line in lines if line.strip() and "schema" not in (lease := json.loads(line))]


def open_files(pid: int | str) -> set[str]:
    """Return the paths of a process's open files; none if it ended."""
    paths = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                paths.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return paths


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until the condition is true, and return its value; some of the kernel's work is asynchronous."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value
