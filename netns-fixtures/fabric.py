"""A node with one rail, wired to a fabric, and pods: real network namespaces, made and removed by `ip`.

    PREFIX-fabric          PREFIX-node             PREFIX-POD, ...
    +-----------+          +-----------+           +-----------+
    |     port0 +-- veth --+ rail0     |           | only lo   |
    +-----------+          +-----------+           +-----------+

A program in the node sees it as the host.  The machine's own namespace gets no link and no address.
"""

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path("/var/lib/cni/results")  # libcni's directory for results, fixed in cnitool
NAMESPACES = Path("/var/run/netns")


def run(*argv: str) -> str:
    """The command's standard output.  Raises CalledProcessError, with its stderr as a note."""
    try:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as e:
        e.add_note(e.stderr.strip())
        raise


def ip(*args: str, netns: str = "") -> Any:
    """The decoded output of `ip -json ...`; an empty list if there is none."""
    where = ("-netns", netns) if netns else ()
    return json.loads(run("ip", "-json", *where, *args) or "[]")


def netns_path(name: str) -> str:
    return str(NAMESPACES / name)


@dataclass(frozen=True)
class Node:
    """The namespace that stands for a host, and the common prefix of all names."""

    prefix: str

    @property
    def netns(self) -> str:
        return f"{self.prefix}-node"

    @property
    def fabric(self) -> str:
        return f"{self.prefix}-fabric"

    def pod(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def stale(self) -> list[str]:
        """The existing namespaces of this prefix."""
        return sorted(path.name for path in NAMESPACES.glob(f"{self.prefix}-*"))

    def command(self, *argv: str) -> list[str]:
        """The command that runs argv in the node: in its network, and as on a real node with one mount namespace for
        all.  `ip netns exec` would make a new one for each (/sys is the machine's)."""
        return ["nsenter", f"--net={netns_path(self.netns)}", "--", *argv]

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in the node with these variables added, with any exit status."""
        return subprocess.run(
            self.command(*argv), env={**os.environ, **env}, input=stdin, capture_output=True, text=True, check=False
        )


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A named network namespace with lo up; its processes are killed before it goes."""
    run("ip", "netns", "add", name)
    try:
        run("ip", "-netns", name, "link", "set", "lo", "up")
        yield name
    finally:
        for pid in run("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        run("ip", "netns", "delete", name)


@contextmanager
def node(prefix: str, pods: Iterable[str] = (), rails: Iterable[str] = ("rail0",), mtu: int = 1500) -> Iterator[Node]:
    """A node, its fabric and its pods, for the time of the block."""
    it = Node(prefix)
    with ExitStack() as undo:
        for name in (it.fabric, it.netns, *map(it.pod, pods)):
            undo.enter_context(namespace(name))
        for i, rail in enumerate(rails):
            port = f"port{i}"
            run("ip", "-netns", it.netns, "link", "add", rail, "mtu", str(mtu), "type", "veth",
                "peer", "name", port, "mtu", str(mtu), "netns", it.fabric)  # fmt: skip
            run("ip", "-netns", it.netns, "link", "set", rail, "up")
            run("ip", "-netns", it.fabric, "link", "set", port, "up")
        yield it


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Keep this thread and its children in the namespace for the time of the block (/sys stays)."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(netns_path(name), os.O_RDONLY)
    try:
        _setns(libc, there)
        yield
    finally:
        _setns(libc, own)
        os.close(there)
        os.close(own)


def _setns(libc: ctypes.CDLL, fd: int) -> None:
    if libc.setns(fd, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def end_by_unwinding() -> None:
    """Let signals end the program through every ``finally``, which removes its namespaces."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))


def container_id(netns: str) -> str:
    """The container id that cnitool generates for a namespace."""
    return "cnitool-" + hashlib.sha512(netns_path(netns).encode()).digest()[:10].hex()


@contextmanager
def results_kept(netns: Iterable[str]) -> Iterator[None]:
    """Restore libcni's result cache afterwards, for these namespaces."""
    made = [path for path in (RESULTS, *RESULTS.parents) if not path.exists()]
    try:
        yield
    finally:
        for name in netns:
            for path in RESULTS.glob(f"*-{container_id(name)}-*"):
                path.unlink()
        for path in made:
            with suppress(OSError):  # not made after all, or another runtime has filled it
                path.rmdir()
