"""etcd's key-value API over its JSON gateway: calls by HTTP, to any member that answers.

Every member serves it on the client port and forwards each call to the leader.  Keys and values are in base64, and
64-bit numbers are strings.  A field that is false, 0 or empty is left out (etcd's guide "Why gRPC gateway", rpc.proto).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from base.kubernetes import tls
from base.kubernetes.http import Answer, Http, is_url, shown
from base.protocol.errors import BackendRefused, InvalidConfig, RecordUnreadable
from base.protocol.spec import Json
from base.state import policy, trust
from ipam.cluster.rules import documents

PREFIX: Final = "/hpn"
_AUTHENTICATE: Final = "/v3/auth/authenticate"
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
# etcd's message for a token from before a change of its users (rpctypes.ErrGRPCAuthOldRevision, status 400).
_OLD: Final = "revision of auth store is old"
# With users enabled: its messages for a request without a user, and for a certificate with a name (embed/serve.go).
_NOBODY: Final = "user name is empty"
_NAMED: Final = "CommonName of client"
MOST: Final = (1 << 64) - 1  # a cluster ID has 64 bits
_KEYS: Final = ("endpoints", "prefix", "ca", "cert", "key", "user", "passwordFile")


@dataclass(frozen=True)
class Settings:
    """The etcd's address and this node's credential there: ``backends.etcd`` in the policy file.

    ``ca``, ``cert`` and ``key`` are paths of PEM files; ``password_file`` is the path of the user's password.
    """

    endpoints: tuple[str, ...]
    prefix: str = PREFIX
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""

    @classmethod
    def of(cls, document: Json) -> "Settings":
        """Raises InvalidConfig."""
        if unknown := sorted(document.keys() - set(_KEYS)):
            raise _wrong(unknown[0], f"is not a known key; known: {', '.join(_KEYS)}")
        endpoints = document.get("endpoints")
        if not (isinstance(endpoints, list) and endpoints and all(is_url(one, "http", "https") for one in endpoints)):
            raise _wrong("endpoints", f"{shown(endpoints)} is not a list of URLs such as https://10.0.0.1:2379")
        texts = {key: document.get(key, "") for key in _KEYS[1:]}
        for key, text in texts.items():
            if not isinstance(text, str) or (text and not text.startswith("/") and key != "user"):
                raise _wrong(key, f"{text!r} is not {'a name' if key == 'user' else 'an absolute path'}")
        for one, other in (("cert", "key"), ("key", "cert"), ("user", "passwordFile"), ("passwordFile", "user")):
            if texts[one] and not texts[other]:
                raise _wrong(one, f"has no effect without {other}; set both or none")
        prefix = texts["prefix"].rstrip("/") or PREFIX
        files = (texts["ca"], texts["cert"], texts["key"])
        return cls(tuple(endpoints), prefix, *files, texts["user"], texts["passwordFile"])


class Gateway:
    def __init__(self, settings: Settings, *, is_patient: bool = False) -> None:
        self._settings = settings
        self._token = ""
        self._http = Http(settings.endpoints, self._tls, self._headers, is_patient=is_patient)
        # The clock of the member that answered last, in seconds since 1970; 0 before the first answer.
        self.date = 0.0

    def call(self, path: str, body: Json, what: str) -> Answer:
        """Return the answer to a call that may be sent twice; ``what`` names it in an error.

        Raises Unreachable, BackendRefused.
        """
        self._http.begin()
        if self._settings.user and not self._token:
            self._authenticate()
        reply = self._ask(path, body)
        again = reply.again
        if self._settings.user and (reply.status == _UNAUTHENTICATED or _OLD in reply.reason):
            self._authenticate()
            reply = self._ask(path, body)
            again = again or reply.again
        if reply.status != 200:
            raise self._refused(reply, what)
        return replace(reply, again=again)

    def strange(self, what: str, why: str) -> BackendRefused:
        """Return the error for an answer that no etcd gives, with the request and the reason."""
        return BackendRefused(
            f"what answers at {self._http.server} is not an etcd: the request was to {what}, and in its answer {why}; "
            f"correct backends.etcd.endpoints in {policy.FILE}"
        )

    def close(self) -> None:
        self._http.close()

    def _ask(self, path: str, body: Json) -> Answer:
        reply = self._http.ask("POST", path, body, is_safe=True)
        self.date = reply.at or self.date
        return reply

    def _authenticate(self) -> None:
        self._token = ""
        password = _contents(self._settings.password_file).decode(errors="replace").strip()
        asked = {"name": self._settings.user, "password": password}
        reply = self._ask(_AUTHENTICATE, asked)
        self._token = str(reply.json().get("token", ""))
        if not self._token and _NAMED in reply.reason:
            raise self._refused(reply, "take the user's password")
        if not self._token:
            raise BackendRefused(
                f"etcd at {self._http.server} rejects user {self._settings.user}: {reply.reason}; correct "
                f"backends.etcd.user and the password in {self._settings.password_file}, or enable its authentication"
            )

    def _refused(self, reply: Answer, what: str) -> BackendRefused:
        user = self._settings.user
        if reply.status == _FORBIDDEN:
            prefix = self._settings.prefix
            return BackendRefused(
                f"etcd at {self._http.server} forbids user {user or 'nobody'} to {what}: {reply.reason}; let a role of "
                f"the user do so: etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/"
            )
        remedy = "correct backends.etcd"
        if _NAMED in reply.reason:
            remedy = "with users enabled, it accepts no certificate with a common name: use one without, and set user"
        elif not user and (reply.status == _UNAUTHENTICATED or _NOBODY in reply.reason):
            remedy = "it requires a user: set backends.etcd.user and backends.etcd.passwordFile"
        elif reply.status == 404:
            remedy = "it must be etcd 3.4 or later, without --enable-grpc-gateway=false"
        return BackendRefused(f"etcd at {self._http.server} did not {what}: {reply.reason}; {remedy} in {policy.FILE}")

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _tls(self) -> tls.Tls:
        files = (self._settings.ca, self._settings.cert, self._settings.key)
        ca, cert, key = (_contents(path) if path else b"" for path in files)
        return tls.Tls(ca, cert, key, source=f"backends.etcd in {policy.FILE}")


def _contents(path: str) -> bytes:
    """Read a file that the policy file names.  Raises InvalidConfig."""
    try:
        found = trust.read_trusted(path)
    except OSError as e:
        raise InvalidConfig(f"{path}, which backends.etcd in {policy.FILE} names: {e.strerror}") from e
    if found is None:
        raise InvalidConfig(f"{path}, which backends.etcd in {policy.FILE} names, does not exist; create it")
    return found


def _wrong(key: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"the policy file {policy.FILE}: backends.etcd.{key} {why}")


@dataclass(frozen=True)
class Pair:
    key: str
    value: bytes
    created: int
    changed: int
    lease: str

    @classmethod
    def of(cls, pair: Json) -> "Pair":
        created, changed = number(pair, "create_revision"), number(pair, "mod_revision")
        key, value = _decoded(pair, "key").decode(errors="replace"), _decoded({"value": "", **pair}, "value")
        return cls(key, value, created, changed, documents.text({"lease": "", **pair}, "lease"))

    def last_seen(self) -> float:
        """Return when the node was first reported alive, from its key.  Raises RecordUnreadable."""
        found = self.decoded().get("heard")
        if not isinstance(found, int):
            raise self._not_ours(f"has heard {found!r}, not a time")
        return float(min(found, MOST))

    def decoded(self) -> Json:
        """Return the value as an object.  Raises RecordUnreadable."""
        try:
            body = json.loads(self.value)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise self._not_ours("is not a JSON object")
        return body

    def _not_ours(self, why: str) -> RecordUnreadable:
        return RecordUnreadable(
            f"key {self.key} in etcd {why}, so hpn did not write it; read it with 'etcdctl get {self.key}', then "
            f"remove it with 'etcdctl del {self.key}', or set another backends.etcd.prefix in /etc/hpn/policy.json"
        )


@dataclass(frozen=True)
class EtcdAnswer:
    """An answer to a range or a transaction.

    - ``pairs``: those of a range, with ``more`` beyond its limit; ``parts``: those of each range of a transaction.
    - ``again``: the call was sent more than once, so an earlier sending may have taken effect.
    """

    revision: int
    cluster: int
    pairs: list[Pair]
    more: bool
    succeeded: bool
    parts: list[list[Pair]]
    again: bool

    @classmethod
    def of(cls, reply: Answer) -> "EtcdAnswer":
        """Parse the answer, where false and empty fields are left out.  Raises ValueError with the reason."""
        body = {"header": {}, "more": False, "succeeded": False, **reply.json()}
        header = documents.typed(body, "header", dict)
        more, succeeded = (documents.typed(body, key, bool) for key in ("more", "succeeded"))
        responses = [
            documents.typed({"response_range": {}, **part}, "response_range", dict)
            for part in documents.objects(body, "responses")
        ]
        pairs, *parts = ([Pair.of(one) for one in documents.objects(found, "kvs")] for found in (body, *responses))
        revision, cluster = number(header, "revision"), number(header, "cluster_id")
        return cls(revision, cluster, pairs, more, succeeded, parts, reply.again)

    @property
    def pair(self) -> Pair | None:
        """The first pair of a transaction."""
        return next((pair for part in self.parts for pair in part), None)


def number(found: Json, key: str) -> int:
    value = found.get(key)
    if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MOST))):
        raise ValueError(f"{key} is {documents.shown(value)}, not a number")
    return int(value)


def _decoded(pair: Json, key: str) -> bytes:
    try:
        return b64decode(documents.text(pair, key), validate=True)
    except ValueError as e:
        raise ValueError(f"{key} is {documents.shown(pair.get(key))}, not base64") from e


def base64(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def all_below(beginning: str, limit: int) -> Json:
    """Return a request for the keys with that beginning, in order, ``limit`` at most."""
    first = beginning.encode()
    end = first[:-1] + bytes([first[-1] + 1])
    return {"key": base64(first), "range_end": base64(end), "limit": str(limit)}


def absent(key: str) -> Json:
    """Return a comparison: the key does not exist."""
    return {"key": base64(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def unchanged(key: str, revision: str) -> Json:
    """Return a comparison: the key did not change since that revision."""
    return {"key": base64(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def put(key: str, value: bytes, lease: str = "0") -> Json:
    return {"request_put": {"key": base64(key), "value": base64(value), "lease": lease}}


def get(key: str) -> Json:
    return {"request_range": {"key": base64(key)}}


def delete(key: str) -> Json:
    return {"request_delete_range": {"key": base64(key)}}
