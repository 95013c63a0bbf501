"""A host of the cluster: booted, cut from its power, wired to the switch; and the services that run on it."""

import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.space import Doorbell, Failed, Space, hierarchies, make_cgroup, remove_cgroup, until

INIT = Path(__file__).parent / "init.py"
# As systemd has it: a process of its own session, in the host's cgroups, with its output in a file.
START = r"""
name=$1 log=$2
shift 2
(for own in /sys/fs/cgroup/*/cgroup.procs; do echo 0 >"$own"; done; exec setsid "$@") </dev/null >>"$log" 2>&1 &
echo $! >"/run/services/$name"
"""


@dataclass(frozen=True)
class Wire:
    """A link of the host's, and the bridge of the switch that its other end is in."""

    name: str
    bridge: str
    address: str = ""


@dataclass
class Service:
    """A daemon of a host, by the number it has there.  It is the child of the host's first process.

    One that ``notifies`` has started when it says so, as with systemd's Type=notify.
    """

    host: "Host"
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    notifies: bool = False

    @property
    def log(self) -> Path:
        return self.host.path(f"/var/log/{self.name}.log")

    @property
    def pid(self) -> int:
        """As the host counts; 0 if it does not run."""
        found = self.host.run(
            "sh", "-c", f"pid=$(cat /run/services/{self.name}) && kill -0 $pid && echo $pid", check=False
        )
        return int(found.stdout or 0)

    def start(self) -> None:
        if self.pid:
            raise Failed(f"{self.host.name}: {self.name} runs already")
        words = [*(f"{key}={value}" for key, value in self.environment.items()), *self.command]
        if not self.notifies:
            self._start(words)
            return
        inside = f"/var/log/{self.name}.notify"
        path = self.host.path(inside)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(path))
            ready.settimeout(60)
            self._start([f"NOTIFY_SOCKET={inside}", *words])
            while ready.recv(1 << 12) != b"READY=1":
                pass
        path.unlink()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end("TERM")

    def kill(self) -> None:
        """kill -9."""
        self._end("KILL")

    def _start(self, words: Sequence[str]) -> None:
        self.host.run("sh", "-ec", START, "sh", self.name, f"/var/log/{self.name}.log", "env", *words)

    def _end(self, signal: str) -> None:
        if pid := self.pid:
            self.host.run("kill", f"-{signal}", str(pid))
            until(lambda: not self.pid, f"{self.host.name}'s {self.name} to end after SIG{signal}", 60)


@dataclass
class Host:
    """A machine of the cluster's, with a disk of its own.  ``space`` is there while it has power."""

    name: str
    address: str
    switch: Space
    folder: Path
    wires: Sequence[Wire]
    routes: Mapping[str, str] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    at_boot: list[str] = field(default_factory=list)
    space: Space | None = None

    @property
    def disk(self) -> Path:
        return self.folder / self.name

    @property
    def cgroup(self) -> str:
        """Its name in every hierarchy."""
        return f"{self.folder.name}/{self.name}"

    def path(self, inside: str) -> Path:
        """Where the machine has a file or socket that the host has on its disk, such as /var/log/kubelet.log."""
        return self.disk / inside.lstrip("/")

    def run(
        self, *argv: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Run argv on the host: its CompletedProcess.  Raises Failed where it fails and ``check`` is true."""
        if self.space is None:
            raise Failed(f"{self.name} has no power")
        return self.space.run(*argv, stdin=stdin, check=check, timeout=timeout)

    def service(self, name: str) -> Service:
        return self.services[name]

    def add_service(self, name: str, command: Iterable[str], **environment: str) -> Service:
        """Make a daemon known, without a start."""
        self.services[name] = Service(self, name, list(command), environment)
        return self.services[name]

    def boot(self) -> None:
        """Power on: up, wired, and no service started."""
        if self.space:
            raise Failed(f"{self.name} is up already")
        for directory in (self.disk, *(self.path(d) for d in ("/var/log", "/etc/cni/net.d", "/opt/cni/bin"))):
            directory.mkdir(parents=True, exist_ok=True)
        self._forget()
        make_cgroup(self.cgroup)
        log = self.path("/var/log/init.log")
        log.touch()
        doorbell = self.folder / f"{self.name}.bell"
        bell = Doorbell(doorbell)
        # Cgroups are entered before there is a cgroup namespace, which has its root where the process is then.
        own = " ".join(f"{hierarchy}/{self.cgroup}/cgroup.procs" for hierarchy in hierarchies())
        script = (
            f'for own in {own}; do echo 0 >"$own"; done\n'
            'exec unshare --mount --net --pid --uts --ipc --cgroup --fork -- "$@"'
        )
        words = [sys.executable, str(INIT), str(doorbell), self.name, str(self.disk)]
        self.switch.spawn(f'(\n{script}\n) </dev/null >"{log}" 2>&1 &', *words)
        self.space = bell.wait(self.name, log)
        self._wire()

    def power_cut(self) -> None:
        """End all that runs at once; the disk stays as it is."""
        if self.space is None:
            raise Failed(f"{self.name} has no power")
        space, self.space = self.space, None
        space.kill()
        self._forget()

    def boot_id(self) -> str:
        return self.run("cat", "/proc/sys/kernel/random/boot_id").stdout.strip()

    def attachments(self) -> list[dict[str, Any]]:
        """What `hpn inspect` shows of this host."""
        found: list[dict[str, Any]] = json.loads(self.run("hpn", "inspect", "--json").stdout)["attachments"]
        return found

    def leases(self) -> list[dict[str, Any]]:
        """The pods' addresses of which `hpn ipam show` knows, all networks together, dead pods' included."""
        networks = json.loads(self.run("hpn", "ipam", "show", "--json").stdout)["networks"]
        return [one for network in networks for one in network["leases"] if one["state"] in {"held", "dead"}]

    def namespaces(self) -> list[str]:
        """The names of its pods' network namespaces."""
        return list(self.run("ls", "/run/netns").stdout.split())

    def _wire(self) -> None:
        assert self.space
        inside, outside = ["link set lo up"], list[str]()
        for wire in self.wires:
            port = self._port(wire)
            inside += [
                f"link add {wire.name} address {self._mac(wire)} type veth peer name {port} netns {self.switch.pid}",
                f"link set {wire.name} up",
            ]
            inside += [f"address add {wire.address} dev {wire.name}"] if wire.address else []
            outside.append(f"link set {port} master {wire.bridge} up")
        inside += [f"route add {network} via {via}" for network, via in self.routes.items()]
        # By their network alone: the switch's PID is one that the machine counts.
        batch(self.space, inside)
        batch(self.switch, outside)
        self.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def _mac(self, wire: Wire) -> str:
        """The same at every boot, as a NIC's is: other hosts remember it."""
        return f"02:{zlib.crc32(self._port(wire).encode()).to_bytes(4).hex(':')}:00"

    def _port(self, wire: Wire) -> str:
        return f"{self.name}-{wire.name}"

    def _forget(self) -> None:
        """Wait until nothing of an earlier boot is left: links go a moment after their namespace, cgroups never."""
        ports = {self._port(wire) for wire in self.wires}

        def stale() -> set[str]:
            return ports & {link["ifname"] for link in json.loads(self.switch.run("ip", "-json", "link").stdout)}

        until(lambda: not stale(), f"the links of {self.name} to go", 30)
        remove_cgroup(self.cgroup)


def batch(space: Space, lines: Sequence[str]) -> None:
    """Run these commands of ip in the space's network.  Raises Failed."""
    words = ["nsenter", f"--target={space.pid}", "--net", "ip", "-batch", "-"]
    done = subprocess.run(words, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{space.name}: {done.stderr.strip()}")
