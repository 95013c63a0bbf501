"""Calls of the real program for the ipam tests, whole or killed half way, and the files that they leave."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from base.protocol.location import of_test
from base.protocol.spec import Reply, Request
from ipam import main
from ipam.ranges import Span
from ipam.stores.files.codec import from_line, outline, to_line
from ipam.stores.files.table import Table

# These operations on files raise an audit event before they act.
STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
# These raise no audit event.
CALLS = {"pwrite", "fsync", "fdatasync"}

# Ranges of one address, and of three.
ONE = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "rangeEnd": "10.0.0.5"}
FEW = {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.4"}


def of(pod: str, ifname: str = "net1") -> tuple[str, str]:
    """Return the interface name and the CNI_ARGS of a pod's attachment."""
    return ifname, f"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}"


# The settings of every state machine that tests the store.
MACHINE = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Net:
    """A network's configuration, and calls of the program with it."""

    state: Path
    ipam: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)

    def request(self, command: str, cid: str = "c", ifname: str = "net1", args: str = "", **more: Any) -> Request:
        conf = {
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "x",
            "ipam": self.ipam,
            **self.more,
            **more,
        }
        if isinstance(conf["ipam"], dict):
            conf["ipam"] = {"dataDir": f"{self.state}/ipam", **conf["ipam"]}
        environ = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_IFNAME": ifname, "CNI_NETNS": "/run/netns/p",
            "CNI_PATH": "/opt/cni/bin", "CNI_ARGS": args,
        }  # fmt: skip
        return Request(environ, json.dumps(conf).encode())

    def reply(self, command: str, *args: str, **more: Any) -> Reply:
        of_test.directory = f"{self.state}"  # where DEL and GC without ``ipam`` look for leases
        try:
            return main.run(self.request(command, *args, **more))
        finally:
            of_test.directory = ""

    def call(self, command: str, *args: str, **more: Any) -> dict[str, Any]:
        """Return the document on stdout, {} if there is none."""
        return json.loads(self.reply(command, *args, **more).stdout or "{}")

    def add(self, *args: str, **more: Any) -> tuple[str, ...]:
        """Return the addresses of a successful ADD."""
        answer = self.call("ADD", *args, **more)
        assert "ips" in answer, answer
        return tuple(ip["address"].partition("/")[0] for ip in answer["ips"])

    def gc(self, *keys: tuple[str, str]) -> dict[str, Any]:
        valid = [{"containerID": cid, "ifname": ifname} for cid, ifname in keys]
        return self.call("GC", **{"cni.dev/valid-attachments": valid})

    @property
    def dir(self) -> Path:
        return self.state / "ipam" / "net"

    @property
    def file(self) -> Path:
        return self.dir / "leases"

    def has_lines(self) -> bool:
        """Return False if there is no file or an empty one, as after a first ADD that was killed or had no room."""
        return self.file.exists() and self.file.stat().st_size > 0

    def lines(self) -> list[bytes]:
        data = self.file.read_bytes()
        return [data[i : i + 512] for i in range(0, len(data), 512)]

    def line(self, cid: str = "c", ifname: str = "net1") -> int:
        """Return the number of the line that has the lease."""
        start = f'{{"containerID":"{cid}","ifname":"{ifname}"'.encode()
        (number,) = (i for i, line in enumerate(self.lines()) if line.startswith(start))
        return number

    def overwrite(self, number: int, content: bytes) -> None:
        with self.file.open("r+b") as f:
            f.seek(number * 512)
            f.write(content)

    def body(self, cid: str = "c", ifname: str = "net1") -> dict[str, Any]:
        """Return the lease as a reader without knowledge of checksums finds it."""
        return json.loads(self.lines()[self.line(cid, ifname)])

    def rewrite(self, cid: str, **changes: Any) -> None:
        """Change members of a lease as a writer of those values would have written them."""
        body = self.body(cid) | changes
        del body["crc"]
        self.replace(self.line(cid), body)

    def replace(self, number: int, body: dict[str, Any]) -> None:
        """Write another line, and mark the index as a writer killed during a change does; else the old addresses stay
        held."""
        self.overwrite(number, to_line(body))
        with (self.dir / "index").open("r+b") as f:
            f.seek(24)
            f.write(b"\0")

    def leases(self) -> dict[str, tuple[str, ...]]:
        """Return the leases in the lines, whatever the index contains."""
        if not self.has_lines():
            return {}
        bodies = [json.loads(line) for line in self.lines() if line.strip()]
        assert bodies[0]["schema"] == 1
        return {
            f"{body['containerID']}:{body['ifname']}": tuple(a.partition("/")[0] for a in body["addresses"])
            for body in bodies[1:]
            if "containerID" in body
        }

    def held(self) -> set[str]:
        """Return all addresses that the index holds."""
        with Table(self.dir, []) as table:
            return {str(Span(v, n, n).address(n)) for v, n, _ in table.index.pages.held()}

    def kept(self) -> set[tuple[str, ...]]:
        """Return the sticky name and the addresses of all reserved leases."""
        bodies = [json.loads(line) for line in self.lines() if line.strip()]
        return {(body["sticky"], *body["addresses"]) for body in bodies if "released" in body}

    def another_boot(self, *cids: str) -> None:
        """Make the index and these leases those of an older boot."""
        for cid in cids:
            self.rewrite(cid, boot="another")
        index = self.dir / "index"
        if index.exists() and index.stat().st_size:
            with index.open("r+b") as f:
                f.seek(8)
                f.write(bytes(16))

    def litter(self) -> list[Path]:
        return [path for path in self.state.rglob("*") if path.name.endswith(".tmp")]

    def misleads(self) -> bool:
        """Return True if the program trusts the index, and it is wrong."""
        if not (self.dir / "index").exists():
            return False
        with Table(self.dir, []) as table:
            believed = table.is_clean
        return believed and not self.agrees()

    def agrees(self) -> bool:
        """Return True if the program trusts the index, it matches the lines, and it lists each other line once as
        free."""
        lines, parsed = self.lines(), cache(from_line)  # a file may have a million lines, most of them blank
        with Table(self.dir, []) as table:
            index = table.index
            bodies = {i: body for i, line in enumerate(lines) if i and (body := parsed(line))}
            heads = {line: outline(table.read(line).body) for line, body in bodies.items() if "of" not in body}
            expected = {(*address, line) for line, (_, addresses) in heads.items() for address in addresses}
            free = index.free_lines()
            return (
                table.is_clean
                and index.lines == len(lines)
                and index.leases == len(heads)
                and all(index.checksum(line) == table.read(line).checksum for line in heads)
                and set(index.pages.held()) == expected
                and all(index.find(digest) == line for line, (digest, _) in heads.items())
                and sorted([*free, *bodies]) == list(range(1, len(lines)))
                and not self.litter()
            )


def killed_at(step: int, work: Callable[[], object], synced: Callable[[], object] = lambda: None) -> bool:
    """Run the work in a child that is killed before its n-th step; return True if it came that far.

    The child calls ``synced`` after each sync of the leases.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def one_more() -> None:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

        def audit(event: str, _: tuple[Any, ...]) -> None:
            if event in STEPS:
                one_more()

        def profile(_frame: object, event: str, function: Any) -> None:
            if event == "c_call" and function.__name__ in CALLS:
                one_more()
            elif event == "c_return" and function.__name__ == "fdatasync":
                sys.setprofile(None)
                synced()
                sys.setprofile(profile)

        sys.addaudithook(audit)
        sys.setprofile(profile)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
