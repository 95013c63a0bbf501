"""A real HTTPS server on loopback, with certificates by openssl and with answers that a test sets."""

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from conftest import require

_CONFIG = """
[ca]
default_ca = it
[it]
database = index.txt
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
copy_extensions = copy
policy = any
[any]
organizationName = optional
commonName = optional
[req]
distinguished_name = none
[none]
"""


class Authority:
    """An authority that signs certificates; ``ca`` is its own certificate as PEM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "ca.cnf").write_text(_CONFIG)
        (folder / "index.txt").touch()
        self._key("ca")
        self._openssl(
            *("req", "-x509", "-new", "-key", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "9"),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
        )
        self.ca = (folder / "ca.pem").read_bytes()

    def sign(self, subject: str, *, names: str = "", until: str = "20991231235959Z") -> tuple[bytes, bytes]:
        """Return a certificate and its key as PEM; subject as "/O=system:nodes/CN=x", end as YYYYMMDDHHMMSSZ."""
        self._key("one")
        extensions = ["-addext", f"subjectAltName={names}"] if names else []
        self._openssl(
            *("req", "-config", "ca.cnf", "-new", "-key", "one.key", "-out", "one.csr"),
            *("-utf8", "-subj", subject, *extensions),
        )
        self._openssl(
            *("ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key"),
            *("-preserveDN", "-startdate", "20200101000000Z", "-enddate", until, "-in", "one.csr", "-out", "one.pem"),
        )
        return (self._folder / "one.pem").read_bytes(), (self._folder / "one.key").read_bytes()

    def _key(self, name: str) -> None:
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def authority(folder: Path) -> Authority:
    if not shutil.which("openssl"):
        require("unit", "openssl, which makes certificates")
    return Authority(folder)


@dataclass
class Asked:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    peer: tuple[str, int]


@dataclass
class Told:
    """An answer; ``cut`` ends the connection before it (0) or after so many bytes of its body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    is_silent: bool = False


class Server:
    """The received requests in ``asked``.  ``tell`` sets the next answers, else each is an empty object; ``route``
    answers all of them instead."""

    route: Callable[[Asked], Told] | None = None

    def __init__(self) -> None:
        self.asked = list[Asked]()
        self.url = ""
        self._told = list[Told]()
        self.ended = threading.Event()

    def tell(self, *answers: Told) -> None:
        self._told += answers

    def forget(self) -> None:
        """Drop the answers that were set and not sent."""
        self._told.clear()

    def next(self) -> Told:
        return self._told.pop(0) if self._told else Told()


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # sends head and body together; else the body waits 40 ms for an acknowledgement

        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(sent) if sent else None
            asked = Asked(self.command, self.path, dict(self.headers), body, self.client_address[:2])
            server.asked.append(asked)
            told = server.route(asked) if server.route else server.next()
            if told.is_silent:
                server.ended.wait(60)
            if told.is_silent or told.cut == 0:
                self.close_connection = True
                return
            data = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
            self.send_response(told.status)
            for name, value in {"Content-Length": str(len(data)), **told.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: told.cut])
            self.close_connection = told.cut is not None or told.headers.get("Connection") == "close"

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # http.server's names

        def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002
            return "Mon, 23 Nov 2026 06:00:00 GMT"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


class _Listening(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: some tests hang up during the handshake."""


@contextmanager
def serving(cert: bytes, key: bytes, *, ca: bytes = b"", folder: Path) -> Iterator[Server]:
    """Run the server; it requires a client certificate signed by ``ca``, or none if that is empty."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "server.pem").write_bytes(cert + key)
    context.load_cert_chain(folder / "server.pem")
    if ca:
        context.load_verify_locations(cadata=ca.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    server = Server()
    with _Listening(("127.0.0.1", 0), _handler(server)) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        server.url = f"https://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            listening.shutdown()
            thread.join()
            with suppress(OSError):
                listening.socket.close()


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Server, Path]]:
    """Run this server in place of an API server, with a kubeconfig that has a token."""
    signer = authority(folder)
    (folder / "keys").mkdir()
    with serving(*signer.sign("/CN=server", names="IP:127.0.0.1"), folder=folder / "keys") as server:
        document = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": "ca.pem"}}],
            "users": [{"name": "u", "user": {"token": "a-token"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(document))
        yield server, folder / "kubeconfig"
