"""How blocks changed hands, by what an etcd itself remembers: every change of every key since it was made."""

import json
import urllib.request
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# After all that is to be read.
_LAST = b"last"
CLAIMED, RETURNED, TAKEN = "claimed", "given back", "taken over"


def moves(url: str, prefix: str, owner: Callable[[Any], str]) -> dict[str, int]:
    """Of the documents whose keys begin so how many were made, removed, and given from one node to another; ``owner``
    says of a document's body whose it is.

    It must not have been compacted.  Raises OSError.
    """
    return counted((key, owner(json.loads(value)) if value else "") for key, value in _ever(url, prefix))


def counted(changes: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Pure: of changes as they were, each a key and its owner from then on, which is "" if nobody has it."""
    owners, found = dict[str, str](), Counter[str]()
    for key, now in changes:
        was, owners[key] = owners.get(key, ""), now
        if was != now:
            found[CLAIMED if not was else TAKEN if now else RETURNED] += 1
    return {what: found[what] for what in (CLAIMED, RETURNED, TAKEN)}


def _ever(url: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    """All changes of keys that begin so, as they were: the key and its value, which is empty where it was removed."""
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
