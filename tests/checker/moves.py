"""Count changes of block ownership from etcd's own history: every change of every key since its creation."""

import json
import urllib.request
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# The key that ends the history to read.
_LAST = b"last"
CLAIMED, RETURNED, TAKEN = "claimed", "given back", "taken over"


def moves(url: str, prefix: str, owner: Callable[[Any], str]) -> dict[str, int]:
    """Count created, removed and transferred documents below a key prefix; ``owner`` returns the owner that a
    document's body names.

    The history must not be compacted.  Raises OSError.
    """
    return counted((key, owner(json.loads(value)) if value else "") for key, value in _ever(url, prefix))


def counted(changes: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Count changes in order; each is a key and its new owner, or "" for no owner.  Pure."""
    owners, found = dict[str, str](), Counter[str]()
    for key, now in changes:
        was, owners[key] = owners.get(key, ""), now
        if was != now:
            found[CLAIMED if not was else TAKEN if now else RETURNED] += 1
    return {what: found[what] for what in (CLAIMED, RETURNED, TAKEN)}


def _ever(url: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield all changes of keys with that prefix in order: the key and its value, which is empty after a removal."""
    _asked(url, "/v3/kv/put", {"key": _text(_LAST), "value": ""}).close()
    wanted = {"key": "AA==", "range_end": "AA==", "start_revision": "1"}
    with _asked(url, "/v3/watch", {"create_request": wanted}) as lines:
        for line in lines:
            for event in json.loads(line)["result"].get("events", ()):
                key = b64decode(event["kv"]["key"])
                if key == _LAST:
                    return
                if key.startswith(prefix.encode()):
                    yield key.decode(), b64decode(event["kv"].get("value", ""))


def _asked(url: str, path: str, body: Any) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode()), timeout=60)


def _text(key: bytes) -> str:
    return b64encode(key).decode()
