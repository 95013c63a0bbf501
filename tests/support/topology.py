"""Hosts, pods and requests for the tests that have a kernel.  ``ip`` is the witness: it shares no code with us."""

import itertools
import json
import os
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
    """Run ``ip -j``; what it printed, decoded."""
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
        """One interface as ``ip -d link`` shows it, None if it is not there."""
        return next((i for i in self.ip("-d", "link") if i["ifname"] == name), None)

    def links(self) -> set[str]:
        return {i["ifname"] for i in self.ip("link")} - {"lo"}

    def addresses(self, name: str = "hpn0") -> set[str]:
        """Its addresses but for the kernel's link-local ones."""
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
        """A command inside; ``ip netns exec`` shows it the namespace's own sysctls too."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command], capture_output=True, text=True, check=False, timeout=60
        )

    def sysctl(self, key: str, value: str = "") -> str:
        """Read, or write, a file under /proc/sys/net."""
        path = f"/proc/sys/net/{key}"
        done = self.run("sh", "-c", f"echo {value} > {path}") if value else self.run("cat", path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def quick_dad(self) -> None:
        """Have IPv6 duplicate address detection begin at once, not after up to a second, on links to come."""
        self.sysctl("ipv6/conf/default/router_solicitation_delay", "0")

    def ping(self, address: str, *options: str) -> bool:
        return self.run("ping", "-n", "-c", "1", "-W", "2", *options, address).returncode == 0

    def inode(self) -> int:
        """The namespace's number, as ``lsns`` shows it."""
        return Path(self.path).stat().st_ino

    def stranger(self, name: str = "hpn0") -> dict[str, Any]:
        """An interface of that name which nobody attached; as ``ip -d link`` shows it."""
        self.ip("link", "add", name, "type", "bridge")
        link = self.link(name)
        assert link
        return link

    def gone(self) -> None:
        """Delete the namespace, as a runtime that crashed would without a DEL."""
        ip("netns", "delete", self.name)

    def remade(self) -> None:
        """Another namespace under the same path."""
        ip("netns", "delete", self.name)
        new_namespace(self.name)


@dataclass
class Host:
    """The namespace we are in, and a state directory."""

    tmp_path: Path
    state: Path = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.tmp_path / "state"
        ip("link", "set", "lo", "up")
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "fabric")
        ip("link", "set", "rail0", "up")
        ip("link", "set", "fabric", "up")

    def conf(self, **keys: Any) -> dict[str, Any]:
        """A configuration that works, with these keys changed; a key of value ... is left out."""
        conf = {
            "cniVersion": "1.1.0",
            "name": "rail0",
            "type": "hpn",
            "master": "rail0",
            "stateDir": str(self.state),
            "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}], [{"subnet": "fd00:56::/64"}]]},
        } | keys
        return {k: v for k, v in conf.items() if v is not ...}

    def request(self, command: str, pod: Pod | None, conf: Any, **environ: str) -> Request:
        """What a runtime would send; a variable of value ... is left out, conf may be raw bytes."""
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": pod.name if pod else "",
            "CNI_NETNS": pod.path if pod else "",
            "CNI_IFNAME": "hpn0",
            "CNI_PATH": "/nonexistent",
            "PATH": os.environ["PATH"],
        } | environ
        stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
        return Request({k: v for k, v in variables.items() if v is not ...}, stdin)

    def call(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> Reply:
        """Run the plugin, with our IPAM inside it."""
        conf = self.conf() if conf is None else conf
        request = self.request(command, pod, conf, **environ)
        before = None
        with suppress(CniError):
            before = json.dumps(spec.configuration(request))
        reply = hpn(request, PROGRAMS)
        with suppress(CniError):  # the next request may be answered with the same objects (spec.cached)
            assert json.dumps(spec.configuration(request)) == before, "something changed the configuration"
        return reply

    def ok(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> dict[str, Any]:
        """Run the plugin, which must succeed; its result, empty if the command has none."""
        reply = self.call(command, pod, conf, **environ)
        assert reply.exit_code == 0, (reply.stdout, reply.log)
        return json.loads(reply.stdout) if reply.stdout else {}

    def refused(self, command: str, pod: Pod | None, conf: Any = None, **environ: str) -> dict[str, Any]:
        """Run the plugin, which must fail; its error document."""
        reply = self.call(command, pod, conf, **environ)
        assert reply.exit_code != 0, reply.stdout
        error = json.loads(reply.stdout)
        assert error.keys() <= {"cniVersion", "code", "msg", "details"}
        assert error["code"] != 999, (error, reply.log)
        return error

    def checked(self, pod: Pod, conf: dict[str, Any], result: dict[str, Any], **environ: str) -> Reply:
        """CHECK with ADD's result."""
        return self.call("CHECK", pod, conf | {"prevResult": result}, **environ)

    def ping(self, address: str, *options: str) -> bool:
        command = ["ping", "-n", "-c", "1", "-W", "2", *options, address]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def state_files(self) -> set[str]:
        """What is in the state directory, each lease as a file of its own; locks and indexes are none."""
        files = {
            str(p.relative_to(self.state))
            for p in self.state.rglob("*")
            if not p.is_dir() and "locks" not in p.parts and p.name not in ("lock", "leases", "index", "ranges")
        }
        held = [lease for lease in leases(self.state / "ipam") if "containerID" in lease]  # not what is kept back
        return files | {f"{lease['containerID']}:{lease['ifname']} of leases" for lease in held}

    def record(self, pod: Pod, ifname: str = "hpn0") -> Path:
        """Where the journal has this attachment of the network rail0."""
        return self.state / "attachments" / "rail0" / f"{pod.name}:{ifname}.json"

    @contextmanager
    def meanwhile(self, pod: Pod, conf: dict[str, Any]) -> Iterator["Future[Reply]"]:
        """Start an ADD and hold it once it has written its record; it goes on when this ends."""
        store = self.state / "ipam" / conf["name"]
        durable.directory(store)
        with ThreadPoolExecutor() as threads, Lock(f"{store}/lock", 1):
            reply = threads.submit(self.call, "ADD", pod, conf)
            until(lambda: self.record(pod).exists())
            yield reply

    def rewrite(self, record: Path, **changes: Any) -> None:
        """Change what a record says."""
        body = durable.read(record)
        assert body is not None
        durable.write(record, body | changes)

    def identity(self, pod: Pod) -> dict[str, int]:
        """How the journal's record identifies the pod's namespace."""
        body = durable.read(self.record(pod))
        assert body is not None
        return dict(body["identity"])

    def double(self, pod: Pod, link: dict[str, Any]) -> None:
        """Make a link that is not ours, with the kind, name, MAC, index and master of ours."""
        like = ("index", str(link["ifindex"]), "address", link["address"])
        where = ("link", "rail0", "name", "hpn0", "netns", pod.name)
        ip("link", "add", *where, *like, "type", "macvlan", "mode", "bridge")

    def replace(self, pod: Pod) -> None:
        """Attach the pod, then put another namespace under its path, with a double of our link.

        It also has the first one's inode number, which the kernel does give again: only the cookie tells them apart.
        """
        self.ok("ADD", pod)
        ours = pod.link()
        assert ours
        pod.remade()
        self.rewrite(self.record(pod), identity=self.identity(pod) | {"inode": pod.inode()})
        self.double(pod, ours)

    def leases(self) -> set[str]:
        """The addresses that our IPAM has given, of all networks."""
        return {a.partition("/")[0] for lease in leases(self.state / "ipam") for a in lease["addresses"]}

    def program(self, name: str, script: str) -> str:
        """A delegate made of this shell script; the CNI_PATH it is found with."""
        folder = self.tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return str(folder)

    def giving(self, **result: Any) -> str:
        """A delegate "script" whose ADD answers this result and whose other commands do nothing; its CNI_PATH."""
        document = json.dumps({"cniVersion": "1.1.0"} | result)
        return self.program("script", f"cat >/dev/null\n[ $CNI_COMMAND != ADD ] || echo '{document}'")

    def picture(self, *pods: Pod) -> dict[str, Any]:
        """All that a request could change: interfaces, addresses, routes, and state with its contents."""
        files = [self.state / name for name in self.state_files() if not name.endswith(" of leases")]
        picture: dict[str, Any] = {"state": [leases(self.state / "ipam"), *sorted((p, _content(p)) for p in files)]}
        for where in ("", *(pod.name for pod in pods if Path(pod.path).exists())):
            picture[where] = network(where)
        return picture


def _content(path: Path) -> str:
    return str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")


def leases(directory: Path, network: str = "*") -> list[dict[str, Any]]:
    """What our IPAM's files say, of all networks or one, as jq reads them."""
    lines = [line for file in sorted(directory.glob(f"{network}/leases")) for line in file.read_text().splitlines()]
    return [lease for line in lines if line.strip() and "schema" not in (lease := json.loads(line))]


def open_files(pid: int | str) -> set[str]:
    """The paths of the files that a process has open now; a process that has ended has none."""
    paths = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError, ProcessLookupError):
                paths.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return paths


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until the condition is true, and return its value: the kernel does some things in its own time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def with_another_lock(pod: Pod, key: spec.Key) -> str:
    """The name of an interface whose attachment has another lock file than the key's: there are 64 of them."""

    def file(one: spec.Key) -> int:
        return zlib.crc32(f"rail0/{one}".encode()) % 64

    return next(name for name in (f"hpn{n}" for n in range(9)) if file(spec.Key(pod.name, name)) != file(key))
