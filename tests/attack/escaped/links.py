"""Namespaces that a pod creates to hide its links, and the required state after its DEL."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes import await_inside
from support.topology import Host, Pod, ip, leases

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)

OLD = "10.56.0.2"
LONGEST = 10.0  # seconds for a DEL, from docs/user/security.md


@contextmanager
def entered(path: str) -> Iterator[None]:
    """Run this thread in that namespace for the duration of the context."""
    with open("/proc/thread-self/ns/net") as own, open(path) as there:
        assert _libc.setns(there.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert _libc.setns(own.fileno(), CLONE_NEWNET) == 0


def fresh() -> int:
    """Create a namespace that only a descriptor holds."""
    with open("/proc/thread-self/ns/net") as own:
        assert _libc.unshare(CLONE_NEWNET) == 0
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            assert _libc.setns(own.fileno(), CLONE_NEWNET) == 0


class Child:
    """A namespace that the pod created, held by a process, a mount or only a descriptor."""

    def __init__(self, how: str, stack: ExitStack, pod: Pod) -> None:
        fd = fresh()
        stack.callback(os.close, fd)
        self.path = f"/proc/self/fd/{fd}"
        if how == "process":
            holder = subprocess.Popen(["nsenter", f"--net=/proc/{os.getpid()}/fd/{fd}", "sleep", "1000"])
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            await_inside(holder, os.stat(fd).st_ino)
        if how == "mount":
            mount = Path(f"{pod.path}-child-{fd}")
            mount.touch()
            stack.callback(mount.unlink)
            subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/fd/{fd}", str(mount)], check=True)
            stack.callback(subprocess.run, ["umount", str(mount)], check=True)

    def ip(self, *words: str) -> Any:
        with entered(self.path):
            return ip(*words)

    def links(self) -> set[str]:
        return {i["ifname"] for i in self.ip("link")} - {"lo"}

    def take(self, where: str, name: str, new: str = "", index: int = 0) -> None:
        """Move a link into this namespace from the one at that path."""
        words = ["name", new] if new else []
        with open(self.path) as there, entered(where):
            path = f"/proc/{os.getpid()}/fd/{there.fileno()}"
            command = ["ip", "link", "set", name, "netns", path, *words, *(["index", str(index)] if index else [])]
            subprocess.run(command, check=True, capture_output=True)

    def use(self, name: str) -> None:
        """Put the old address on the wire again, as the pod would."""
        self.ip("addr", "add", f"{OLD}/24", "dev", name)
        self.ip("link", "set", name, "up")


def over_the_master(*others: "Child | Pod") -> list[str]:
    """All links over rail0 in these namespaces."""
    return [
        i["ifname"]
        for one in others
        for i in one.ip("-d", "link")
        if i.get("linkinfo", {}).get("info_kind") in ("macvlan", "macvtap")
    ]


HOLDERS = pytest.mark.parametrize("how", ["process", "descriptor", "mount"])


def gone_or_kept(host: Host, make_pod: Callable[[], Pod], reply: Any) -> None:
    """Assert that DEL succeeded with a warning, and that ADD does not allocate the address again."""
    assert reply.exit_code == 0, reply
    assert any("addresses may be in use" in line for line in reply.log), reply.log
    (kept,) = [line for line in leases(host.state / "ipam") if "10.56.0.2/24" in line["addresses"]]
    assert kept["boot"], kept
    result = host.ok("ADD", make_pod())
    assert OLD not in str(result["ips"])


def proved(host: Host, make_pod: Callable[[], Pod], reply: Any) -> None:
    """Assert that DEL succeeded without a warning, and that the address is free."""
    assert (reply.exit_code, reply.log) == (0, ())
    assert host.leases() == set()
    host.ok("ADD", make_pod(), CNI_ARGS=f"IP={OLD}")
