"""A host of the cluster: boot, power cut, and wires to the switch; and its services."""

import json
import os
import shutil
import signal
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
# As under systemd: a process in its own session, in the host's cgroups, with its output in a file.  All daemons
# together have the weight of one cgroup against pods.
START = r"""
name=$1 log=$2
shift 2
(for own in /sys/fs/cgroup/*/; do
    [ -d "$own/system.slice" ] && own=$own/system.slice
    echo 0 >"$own/cgroup.procs"
done; exec setsid "$@") </dev/null >>"$log" 2>&1 &
echo $! >"/run/services/$name"
"""


@dataclass(frozen=True)
class Wire:
    """A link of the host, and the bridge of the switch with its other end."""

    name: str
    bridge: str
    address: str = ""


@dataclass
class Service:
    """A daemon of a host, identified by its PID there.  It is the child of the host's first process.

    If it ``notifies``, its start ends with its notification, as with systemd's Type=notify.
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
        """The daemon's process number on the host; 0 if it does not run."""
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
        """Send SIGTERM, and wait until the daemon has ended."""
        self._end("TERM")

    def kill(self) -> None:
        """Send SIGKILL, and wait until the daemon has ended."""
        self._end("KILL")

    def _start(self, words: Sequence[str]) -> None:
        self.host.run("sh", "-ec", START, "sh", self.name, f"/var/log/{self.name}.log", "env", *words)

    def _end(self, signal: str) -> None:
        if pid := self.pid:
            self.host.run("kill", f"-{signal}", str(pid))
            until(lambda: not self.pid, f"{self.host.name}'s {self.name} to end after SIG{signal}", 60)


@dataclass
class Host:
    """A machine of the cluster, with its own disk.  ``space`` is set while it has power.

    With ``systemd`` it boots that, with the units on its disk.
    """

    name: str
    address: str
    switch: Space
    folder: Path
    wires: Sequence[Wire]
    routes: Mapping[str, str] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    at_boot: list[str] = field(default_factory=list)
    space: Space | None = None
    systemd: bool = False

    @property
    def disk(self) -> Path:
        return self.folder / self.name

    @property
    def cgroup(self) -> str:
        """The host's cgroup in every hierarchy."""
        return f"{self.folder.name}/{self.name}"

    def path(self, inside: str) -> Path:
        """The machine's path of a file or socket on the host's disk, such as /var/log/kubelet.log."""
        return self.disk / inside.lstrip("/")

    def run(
        self, *argv: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Run argv on the host; return its CompletedProcess.  Raises Failed if it fails and ``check`` is true."""
        if self.space is None:
            raise Failed(f"{self.name} has no power")
        return self.space.run(*argv, stdin=stdin, check=check, timeout=timeout)

    def service(self, name: str) -> Service:
        return self.services[name]

    def add_service(self, name: str, command: Iterable[str], **environment: str) -> Service:
        """Register a daemon without starting it."""
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
        # Enter the cgroups before the cgroup namespace is made, because its root is the process's cgroup at that time.
        own = " ".join(f"{hierarchy}/{self.cgroup}/cgroup.procs" for hierarchy in hierarchies())
        script = (
            f'for own in {own}; do echo 0 >"$own"; done\n'
            'exec unshare --mount --net --pid --uts --ipc --cgroup --fork -- "$@"'
        )
        words = [sys.executable, str(INIT), str(doorbell), self.name, str(self.disk)]
        words += ["systemd"] if self.systemd else []
        self.switch.spawn(f'(\n{script}\n) </dev/null >"{log}" 2>&1 &', *words)
        self.space = bell.wait(self.name, log)
        self._wire()
        if self.systemd:
            os.kill(self.space.pid, signal.SIGUSR1)

    def power_cut(self) -> None:
        """End all processes at once; the disk stays unchanged."""
        if self.space is None:
            raise Failed(f"{self.name} has no power")
        # Units with PrivateTmp have theirs in the machine's own /tmp.
        made = f"systemd-private-{self.boot_id().replace('-', '')}-*" if self.systemd else ""
        space, self.space = self.space, None
        space.kill()
        for path in Path("/tmp").glob(made) if made else ():
            shutil.rmtree(path)
        self._forget()

    def boot_id(self) -> str:
        return self.run("cat", "/proc/sys/kernel/random/boot_id").stdout.strip()

    def attachments(self) -> list[dict[str, Any]]:
        """The attachments of `hpn inspect` on this host."""
        found: list[dict[str, Any]] = json.loads(self.run("hpn", "inspect", "--json").stdout)["attachments"]
        return found

    def leases(self) -> list[dict[str, Any]]:
        """The pods' addresses from `hpn ipam show`, of all networks, including dead pods'."""
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
        # Enter their network only: the switch's PID is a number in the machine's PID namespace.
        batch(self.space, inside)
        batch(self.switch, outside)
        self.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def _mac(self, wire: Wire) -> str:
        """The same MAC at every boot, like a NIC's: other hosts cache it."""
        return f"02:{zlib.crc32(self._port(wire).encode()).to_bytes(4).hex(':')}:00"

    def _port(self, wire: Wire) -> str:
        return f"{self.name}-{wire.name}"

    def _forget(self) -> None:
        """Wait for the links of an earlier boot to disappear, which takes a moment, and remove its cgroups, which would
        stay."""
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
