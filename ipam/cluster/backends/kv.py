"""Requests and answers of etcd's KV API, in the JSON of its gateway.  Pure.

Keys and values are in base64, 64-bit numbers are strings, and a field that is false, 0 or empty is left out (etcd's
guide "Why gRPC gateway", and rpc.proto).
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

from base.protocol.errors import RecordUnreadable
from base.protocol.spec import Json
from ipam.cluster.rules.documents import shown, text

MOST: Final = (1 << 64) - 1  # a cluster ID has 64 bits


@dataclass(frozen=True)
class Pair:
    """A key and its value."""

    key: str
    value: bytes
    created: int
    changed: int
    lease: str

    @classmethod
    def of(cls, pair: Json) -> "Pair":
        key, value = b64decode(pair["key"]).decode(errors="replace"), b64decode(pair.get("value", ""))
        return cls(key, value, int(pair["create_revision"]), int(pair["mod_revision"]), str(pair.get("lease", "")))

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
            f"remove it with 'etcdctl del {self.key}', or set another stores.etcd.prefix in /etc/hpn/policy.json"
        )


def check(answer: Json) -> None:
    """Check that it is an answer to a range or a transaction, so that no other function here fails on it.

    Raises ValueError with the reason.
    """
    header = _object(answer, "header")
    _number(header, "revision")  # guard: revision
    _number(header, "cluster_id")
    if "succeeded" in answer and not isinstance(answer["succeeded"], bool):  # guard: succeeded
        raise ValueError(f"succeeded is {shown(answer['succeeded'])}")
    for found in (answer, *(_object(part, "response_range") for part in _objects(answer, "responses"))):
        for pair in _objects(found, "kvs"):
            _number(pair, "create_revision")
            _number(pair, "mod_revision")  # guard: pairs
            text({"lease": "", **pair}, "lease")
            for key in ("key", "value"):
                try:
                    b64decode(text({"value": "", **pair}, key), validate=True)
                except ValueError as e:
                    raise ValueError(f"{key} is {shown(pair.get(key))}, not base64") from e


def number(found: Json, key: str) -> int:
    """Return a number; a missing one is 0. Raises ValueError."""
    return _number({key: "0", **found}, key)


def _number(found: Json, key: str) -> int:
    value = found.get(key)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MOST)):
        return int(value)
    raise ValueError(f"{key} is {shown(value)}, not a number")


def _object(found: Json, key: str) -> Json:
    value = found.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {shown(value)}, not an object")
    return value


def _objects(found: Json, key: str) -> list[Json]:
    value = found.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{key} is {shown(value)}, not a list of objects")
    return value


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


def succeeded(answer: Json) -> bool:
    """Whether all comparisons of the transaction held.  The gateway leaves out false."""
    return bool(answer.get("succeeded"))


def revision(answer: Json) -> int:
    return int(answer["header"]["revision"])


def cluster(answer: Json) -> str:
    return str(answer["header"]["cluster_id"])


def parts(answer: Json) -> list[Json]:
    """Return the answer to each request of a transaction."""
    return [part.get("response_range", {}) for part in answer.get("responses", [])]


def pairs(found: Json) -> list[Pair]:
    return [Pair.of(pair) for pair in found.get("kvs", [])]


def pair(answer: Json) -> Pair | None:
    return next((pair for part in parts(answer) for pair in pairs(part)), None)
