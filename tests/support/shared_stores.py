"""Real servers on loopback that a test may kill: an etcd of one member or three, and an API server."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "netns-fixtures"))

from cluster.space import until

PATIENCE = 60.0
# The kernel kills the server when its starter ends.
_WITH_US = ("setpriv", "--pdeathsig=KILL")


def free_ports(number: int) -> list[int]:
    """Return unused ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Server:
    """A daemon and its command line; ``ready`` returns True when it serves."""

    words: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_WITH_US, *self.words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        if wait:
            until(self._up, f"{self.words[0]}, whose log is {self.log}", PATIENCE)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait()
        self.process = None

    def signal(self, number: int) -> None:
        if self.process:
            self.process.send_signal(number)

    def _up(self) -> bool:
        assert self.process
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        return self.ready()


@dataclass
class Etcds:
    """The members of an etcd; ``curl`` holds curl's options for access."""

    members: list[Server]
    urls: list[str]
    curl: Sequence[str] = ()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def leader(self) -> int:
        """Return the number of the leading member."""

        def found() -> tuple[int, ...]:
            for number in range(len(self.urls)):
                # time: then it asks the next one
                said = self.call(number, "/v3/maintenance/status", {}, patience=2)
                if said.get("leader") and said["leader"] == said["header"]["member_id"]:
                    return (number,)
            return ()

        return until(found, f"a leader among {self.urls}", PATIENCE)[0]

    def call(self, number: int, path: str, body: Mapping[str, Any], patience: float = 60) -> dict[str, Any]:
        """Return a member's answer to curl; empty if it does not answer."""
        words = [
            "curl",
            "-s",
            "--max-time",
            f"{patience}",
            *self.curl,
            "-d",
            json.dumps(body),
            self.urls[number] + path,
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        with suppress(ValueError):
            found = json.loads(done.stdout)
            return found if isinstance(found, dict) else {}
        return {}


@contextmanager
def etcds(folder: Path, number: int = 1, tls: Mapping[str, Path] | None = None) -> Iterator[Etcds]:
    """Run an etcd of so many members; with ``tls`` (ca, cert, key) it requires client certificates."""
    program, scheme = shutil.which("etcd") or "etcd", "https" if tls else "http"
    ports = free_ports(2 * number)
    urls = [f"{scheme}://127.0.0.1:{port}" for port in ports[:number]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[number:]]
    ours = {"ca": "--cacert", "cert": "--cert", "key": "--key"}
    curl = [word for name, path in (tls or {}).items() for word in (ours[name], str(path))]
    it = Etcds([], urls, curl)
    for n, (url, peer) in enumerate(zip(urls, peers, strict=True)):
        options = {
            "name": f"m{n}", "data-dir": folder / f"m{n}", "listen-client-urls": url, "advertise-client-urls": url,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster-state": "new",
            "initial-cluster": ",".join(f"m{m}={other}" for m, other in enumerate(peers)),
            "heartbeat-interval": 50, "election-timeout": 500, "log-level": "warn",
        }  # fmt: skip
        if tls:
            options |= {
                "trusted-ca-file": tls["ca"], "client-cert-auth": "true", "cert-file": tls["cert"],
                "key-file": tls["key"],
            }  # fmt: skip
        words = [program, *(f"--{name}={value}" for name, value in options.items())]
        it.members.append(Server(words, folder / f"m{n}.log", lambda n=n: bool(it.call(n, "/v3/kv/range", _ANY))))
    try:
        for member in it.members:
            member.start(wait=False)
        for n in range(number):
            until(lambda n=n: "header" in it.call(n, "/v3/kv/range", _ANY), f"member {n}", PATIENCE)
        yield it
    finally:
        it.kill()


_ANY = {"key": "AA=="}


@dataclass
class Api:
    """An API server, and the etcd below it; ``authority`` signed its certificate."""

    url: str
    etcd: Etcds
    server: Server
    kubectl: Sequence[str]
    authority: bytes

    def kubeconfig(self, user: str, server: str = "", authority: bytes = b"") -> dict[str, Any]:
        """Return a kubeconfig of that user; another URL and its authority replace the server's own."""
        signed = b64encode(authority or self.authority).decode()
        about = {"server": server or self.url, "certificate-authority-data": signed}
        return {
            "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", "user": user}}],
            "clusters": [{"name": "it", "cluster": about}], "users": [{"name": user, "user": {"token": user}}],
        }  # fmt: skip

    def apply(self, *paths: Path) -> None:
        self.run("apply", *(f"--filename={path}" for path in paths))

    def run(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run([*self.kubectl, *words], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def api_server(folder: Path, programs: Path, users: Mapping[str, str], authority: Path | None = None) -> Iterator[Api]:
    """Run an API server.

    ``users`` maps names to groups; each user's token is its name.  The server accepts client certificates of
    ``authority``.
    """
    (port,) = free_ports(1)
    for words in (["genrsa", "-out", "sa.key", "2048"], ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"]):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    listed = {"root": "system:masters", **users}
    (folder / "tokens.csv").write_text("".join(f'{name},{name},{name},"{group}"\n' for name, group in listed.items()))
    url = f"https://127.0.0.1:{port}"
    kubectl = [str(programs / "kubectl"), f"--server={url}", "--insecure-skip-tls-verify", "--token=root",
               f"--cache-dir={folder}/cache", "--kubeconfig=/dev/null"]  # fmt: skip
    with etcds(folder) as below:
        options = {
            "etcd-servers": below.urls[0], "bind-address": "127.0.0.1", "secure-port": port, "cert-dir": folder,
            "token-auth-file": folder / "tokens.csv", "anonymous-auth": "false", "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction", "service-cluster-ip-range": "10.97.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc", "advertise-address": "127.0.0.1",
            "service-account-key-file": folder / "sa.pub", "service-account-signing-key-file": folder / "sa.key",
            "endpoint-reconciler-type": "none",
            # Without compaction etcd keeps all revisions, and a test may read them.
            "etcd-compaction-interval": "0",
        }  # fmt: skip
        if authority:
            options["client-ca-file"] = authority
        words = [str(programs / "kube-apiserver"), *(f"--{name}={value}" for name, value in options.items())]
        server = Server(words, folder / "apiserver.log", lambda: _is_ready(kubectl))
        try:
            server.start()
            yield Api(url, below, server, kubectl, (folder / "apiserver.crt").read_bytes())
        finally:
            server.kill()


def _is_ready(kubectl: Sequence[str]) -> bool:
    words = [*kubectl, "get", "--raw=/readyz"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    # time: the pace at which it is asked
    time.sleep(0.1)
    return done.stdout == "ok"
