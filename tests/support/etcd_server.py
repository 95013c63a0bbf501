"""A part of etcd's JSON gateway in a thread, for faults that a real one does not produce on demand.

tests/cluster/test_etcd_store.py sends the same requests to this server and to a real etcd, and compares the answers.
"""

import json
import socket
import threading
from base64 import b64decode, b64encode
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings
from ipam.cluster.rules.documents import Block

Body = dict[str, Any]


class Keys(dict[str, Body]):
    """The keys with their values; ``names`` has them in order."""

    def __init__(self, keys: Mapping[str, Body] | None = None) -> None:
        super().__init__(keys or {})
        self.names = sorted(self)

    def __setitem__(self, key: str, pair: Body) -> None:
        if key not in self:
            insort(self.names, key)
        super().__setitem__(key, pair)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self.names[bisect_left(self.names, key)]

    def __deepcopy__(self, memo: Any) -> "Keys":
        return Keys(deepcopy({**self}, memo))


@dataclass
class Member:
    """A member that serves a cluster's keys, with faults.

    ``answers`` replaces the next answers: statuses and bodies.  ``lost`` counts the next calls that are done and not
    answered.  ``change`` alters each answer.  ``asked`` holds the paths of all calls, and ``tokens`` their tokens.
    """

    keys: Keys = field(default_factory=Keys)
    leases: dict[str, int] = field(default_factory=dict)
    revision: int = 1
    granted: int = 0
    cluster: str = "14841639068965178418"
    date: str = "Mon, 02 Nov 2026 10:00:00 GMT"
    answers: list[tuple[int, Body]] = field(default_factory=list)
    lost: int = 0
    asked: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    url: str = ""
    change: Callable[[Body], Any] | None = None

    def expire(self, lease: str) -> None:
        """End the lease, and remove its keys."""
        del self.leases[lease]
        for key in [key for key, pair in self.keys.items() if pair["lease"] == lease]:
            del self.keys[key]

    def value(self, key: str) -> str:
        """Return the text of a key."""
        return b64decode(self.keys[key]["value"]).decode()

    def done(self, path: str, body: Body) -> tuple[int, Body]:
        """Carry out the call; return its answer."""
        match path:
            case "/v3/kv/range":
                return 200, self._headed(self._range(body))
            case "/v3/kv/txn":
                return 200, self._transaction(body)
            case "/v3/lease/grant":
                self.granted += 1
                lease = str(7587848390000000000 + self.granted)
                self.leases[lease] = int(body["TTL"])
                return 200, self._headed({"ID": lease, "TTL": body["TTL"]})
            case "/v3/lease/keepalive":  # an expired lease has no TTL
                ttl = {"TTL": str(self.leases[body["ID"]])} if body["ID"] in self.leases else {}
                return 200, {"result": self._headed({"ID": body["ID"], **ttl})}
            case "/v3/auth/authenticate":
                return 200, self._headed({"token": "token.1"})
            case _:
                return 404, {"error": "Not Found", "code": 5, "message": "Not Found"}

    def _headed(self, answer: Body) -> Body:
        about = {"cluster_id": self.cluster, "member_id": "1", "revision": str(self.revision), "raft_term": "2"}
        return {"header": about, **answer}

    def _range(self, asked: Body) -> Body:
        first, end = _text(asked["key"]), _text(asked.get("range_end", ""))
        names = self.keys.names
        some = names[bisect_left(names, first) : bisect_left(names, end)] if end else [first] * (first in self.keys)
        found = [self.keys[key] for key in some]
        limit = int(asked.get("limit", 0)) or len(found)
        answer = {"kvs": found[:limit], "more": len(found) > limit, "count": str(len(found))}
        return {key: value for key, value in answer.items() if value not in (False, [], "0")}

    def _transaction(self, body: Body) -> Body:
        is_so = all(map(self._holds, body["compare"]))
        asked = body["success"] if is_so else body["failure"]
        self.revision += any("request_range" not in one for one in asked)
        parts = [self._part(*one.popitem()) for one in asked]
        answer = ({"succeeded": True} if is_so else {}) | ({"responses": parts} if parts else {})
        return self._headed(answer)

    def _holds(self, compared: Body) -> bool:
        pair = self.keys.get(_text(compared["key"]), {})
        word = {"CREATE": "create_revision", "MOD": "mod_revision"}[compared["target"]]
        return bool(pair.get(word, "0") == compared[word])

    def _part(self, request: str, body: Body) -> Body:
        match request:
            case "request_range":
                return {"response_range": self._headed(self._range(body))}
            case "request_put":
                self._put(body)
                return {"response_put": self._headed({})}
            case _:
                if (key := _text(body["key"])) in self.keys:
                    del self.keys[key]
                return {"response_delete_range": self._headed({"deleted": "1"})}

    def _put(self, body: Body) -> None:
        now, before = str(self.revision), self.keys.get(_text(body["key"]), {})
        about = {"create_revision": before.get("create_revision", now), "mod_revision": now, "lease": body["lease"]}
        self.keys[_text(body["key"])] = {"key": body["key"], "value": body["value"], **about}


def _text(encoded: str) -> str:
    return b64decode(encoded).decode()


def keys_of(request: Any) -> Iterator[str]:
    """Yield all keys of a request."""
    if isinstance(request, dict):
        if isinstance(request.get("key"), str):
            yield _text(request["key"])
        request = [*request.values()]
    for one in request if isinstance(request, list) else ():
        yield from keys_of(one)


def encoded(text: str) -> str:
    """Return the text in the encoding of keys and values."""
    return b64encode(text.encode()).decode()


@contextmanager
def serving(member: Member) -> Iterator[Member]:
    """Yield the member, on its own port."""
    lock, connections = threading.Lock(), list[socket.socket]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # sends head and body together; else the body waits 40 ms for an acknowledgement

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                member.asked.append(self.path)
                member.bodies.append(json.loads(json.dumps(body)))
                member.tokens.append(self.headers.get("Authorization", ""))
                status, answer = member.answers.pop(0) if member.answers else member.done(self.path, body)
                if member.lost:
                    member.lost -= 1
                    self.close_connection = True
                    return
                if member.change:
                    answer = member.change(answer)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002  # the header Date
            return member.date

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        member.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield member
        finally:
            server.shutdown()
            thread.join()
            for connection in connections:  # clients keep connections open, and each has a thread
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


Opened = Callable[..., Etcd]


@contextmanager
def opening() -> Iterator[Opened]:
    """Yield a function that opens the etcd of members, or of URLs; close the connections afterwards."""
    with ExitStack() as stack:

        def open_it(*members: Member | str, **settings: Any) -> Etcd:
            urls = [one if isinstance(one, str) else one.url for one in members]
            gateway = Gateway(Settings(tuple(urls), **settings))
            stack.callback(gateway.close)
            return Etcd(gateway, settings.get("prefix", "/hpn"))

        yield open_it


def body(index: int, node: str = "n1", network: str = "net", claim: str = "c") -> Body:
    """Return the body of a block's document."""
    return Block(network, index, 16, node, "", claim).to_json()
