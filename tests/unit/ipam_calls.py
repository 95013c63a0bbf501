"""Calls of the real program for the ipam tests, whole or killed half way, and what they leave on disk."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni import durable
from cni.spec import Reply, Request
from ipam import main

# What changes or opens a file says so to audit hooks, before it does.
STEPS = {"open", "os.rename", "os.remove", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate"}


@dataclass
class Net:
    """One network's configuration, and calls under it."""

    state: Path
    ipam: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)

    def request(self, command: str, cid: str = "c", ifname: str = "net1", args: str = "", **more: Any) -> Request:
        conf = {"cniVersion": "1.1.0", "name": "net", "type": "x", "stateDir": str(self.state), "ipam": self.ipam}
        environ = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_IFNAME": ifname, "CNI_NETNS": "/run/netns/p",
            "CNI_PATH": "/opt/cni/bin", "CNI_ARGS": args,
        }  # fmt: skip
        return Request(environ, json.dumps({**conf, **self.more, **more}).encode())

    def reply(self, command: str, *args: str, **more: Any) -> Reply:
        return main.run(self.request(command, *args, **more))

    def call(self, command: str, *args: str, **more: Any) -> dict[str, Any]:
        """The document on stdout, {} if there is none."""
        return json.loads(self.reply(command, *args, **more).stdout or "{}")

    def add(self, *args: str, **more: Any) -> tuple[str, ...]:
        """The addresses an ADD gives; it must succeed."""
        answer = self.call("ADD", *args, **more)
        assert "ips" in answer, answer
        return tuple(ip["address"].partition("/")[0] for ip in answer["ips"])

    def gc(self, *keys: tuple[str, str]) -> dict[str, Any]:
        valid = [{"containerID": cid, "ifname": ifname} for cid, ifname in keys]
        return self.call("GC", **{"cni.dev/valid-attachments": valid})

    @property
    def dir(self) -> Path:
        return self.state / "ipam" / "net"

    def lease(self, cid: str = "c", ifname: str = "net1") -> Path:
        return self.dir / "leases" / f"{cid}:{ifname}.json"

    def leases(self) -> dict[str, tuple[str, ...]]:
        """What the lease files say."""
        bodies = {path.stem: durable.read(path) for path in sorted((self.dir / "leases").glob("*.json"))}
        return {key: tuple(a.partition("/")[0] for a in body["addresses"]) for key, body in bodies.items() if body}

    def index(self) -> dict[str, str]:
        """What the links say."""
        links = (self.dir / "addresses").iterdir() if self.dir.exists() else ()
        return {link.name: link.readlink().name.removesuffix(".json") for link in links}

    def litter(self) -> list[Path]:
        return [path for path in self.state.rglob("*") if path.name.endswith(".tmp")]

    def agrees(self) -> bool:
        """Whether links and leases say the same and nothing half done lies about."""
        return self.index() == {a: key for key, held in self.leases().items() for a in held} and not self.litter()


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a child that is killed before its n-th step; whether it came that far."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, _: tuple[Any, ...]) -> None:
            nonlocal count
            if event in STEPS:
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
