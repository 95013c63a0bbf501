"""Documents in an etcd, version 3.4 or later: for clusters without Kubernetes.

A document is a key, PREFIX/KIND/NAME, whose value is the body as JSON.  Every change is one transaction that compares
first: a key's create_revision is 0 where there is no such key, and its mod_revision is another after every change
(etcd's API guide, "KV API").  What etcd keeps beside the documents:

    PREFIX/of/NODE/KIND/NAME   that the document is this node's: a node reads its own, and not those of all
    PREFIX/identity            a text at random, written once: what tells apart two etcds that were set up alike
    PREFIX/alive/NODE          in a lease, so it goes if the node does not tell in time that it lives
    PREFIX/nodes/NODE          when the node began to tell that, by etcd's clock; it stays
"""

import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from base.protocol.spec import Json
from ipam.cluster import Document, Machine
from ipam.cluster.backends import kv
from ipam.cluster.backends.gateway import Answer, Gateway, Settings
from ipam.cluster.rules.documents import layout_name, shown

# The documents of one answer: some hundred kilobytes of blocks.
PAGE: Final = 1000
# The keys of one transaction, of which etcd takes 128 requests (its flag max-txn-ops).
_TOGETHER: Final = 100
_OF, _ALIVE, _TOLD = "of", "alive", "nodes"
_RANGE, _TXN = "/v3/kv/range", "/v3/kv/txn"
_GRANT, _KEEP_ALIVE = "/v3/lease/grant", "/v3/lease/keepalive"


def opened(about: Mapping[str, Any], name: str) -> tuple["Etcd", str]:
    """The etcd that the policy file describes, and this node's name: the given one, or the host's.

    Nothing is asked of it yet.  Raises InvalidConfig.
    """
    settings = Settings.of(dict(about))
    return Etcd(Gateway(settings), settings.prefix), name or os.uname().nodename.lower()


class Etcd:
    """ipam.cluster.Documents, in an etcd, below ``prefix``."""

    def __init__(self, gateway: Gateway, prefix: str) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._identity = ""
        self._revision = 0
        # Of each node that this process keeps alive: its lease.
        self._leases = dict[str, str]()

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:  # noqa: ARG002  # in the body
        key, value = self._key(kind, name), _encoded(body)
        made = [kv.put(key, value), *self._owned(kind, name, {}, body)]
        # guard below: only-if-absent (absent(key))
        answer = self._transaction([kv.absent(key)], made, [kv.get(key)], f"create {key}")
        if kv.succeeded(answer.body):
            revision = kv.revision(answer.body)
            return Document(kind, name, body, _uid(answer, revision, key), str(revision))
        # Our own, of an earlier sending whose answer was lost: no two claims have the same text.
        there = kv.pair(answer.body)
        # guard below: our-own = self._document(kind, there, answer) if there else None
        return self._document(kind, there, answer) if answer.again and there and there.value == value else None

    def read(self, kind: str, name: str) -> Document | None:
        key = self._key(kind, name)
        answer = self._asked(_RANGE, {"key": kv.base64(key)}, f"read {key}")
        return next((self._document(kind, pair, answer) for pair in kv.pairs(answer.body)), None)

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        beginning = layout_name(network) if network is not None else ""
        found = self._below(kind, beginning) if node is None else self._of(node, kind, beginning)
        asked = {"network": network, "node": node}
        return [
            one for one in found if all(value is None or one.body.get(key) == value for key, value in asked.items())
        ]

    def replace(self, document: Document, body: Json) -> Document | None:
        kind, name = document.kind, document.name
        key, value = self._key(kind, name), _encoded(body)
        made = [kv.put(key, value), *self._owned(kind, name, document.body, body)]
        # guard below: as-it-was-read (document)
        answer = self._transaction([kv.unchanged(key, document.version)], made, [kv.get(key)], f"replace {key}")
        if kv.succeeded(answer.body):
            return Document(kind, name, body, document.uid, str(kv.revision(answer.body)))
        there = kv.pair(answer.body)
        if not answer.again or not there or there.value != value:
            return None
        found = self._document(kind, there, answer)
        return found if found.uid == document.uid else None

    def remove(self, document: Document) -> bool:
        kind, name = document.kind, document.name
        key = self._key(kind, name)
        gone = [kv.delete(key), *self._owned(kind, name, document.body, {})]
        # guard below: removed-as-read (document)
        answer = self._transaction([kv.unchanged(key, document.version)], gone, [kv.get(key)], f"remove {key}")
        # If it is gone though not by this sending, then by an earlier one.
        return kv.succeeded(answer.body) or (answer.again and kv.pair(answer.body) is None)

    def machine(self, name: str) -> Machine:
        """What the store knows of the node of that name.

        Of a node that told that it lives, and does so no more, it is known when it began to.  One that never told, and
        has documents, is taken for living: no agent tells of it, and it may have pods.
        """
        asked = [kv.get(f"{self._prefix}/{where}/{name}") for where in (_ALIVE, _TOLD)]
        has = {"request_range": kv.all_below(f"{self._prefix}/{_OF}/{name}/", 1)}
        answer = self._transaction([], [*asked, has], [], f"look for node {name}")
        alive, told, documents = map(kv.pairs, kv.parts(answer.body))
        if alive or (documents and not told):  # guard: never-told (documents and not told)
            return Machine(name, "", self.now(), told=bool(alive))  # guard: says-who-told (alive)
        return Machine(name, "", told[0].last_seen() if told else None)

    def silent(self, names: Collection[str]) -> Collection[str]:
        """Those of these nodes that may be dead: they told that they live, and do so no more."""
        alive, told = (self._names(f"{self._prefix}/{where}/") for where in (_ALIVE, _TOLD))
        return {*names} & (told - alive)

    def keep_alive(self, name: str, seconds: int) -> None:
        lease = self._leases.get(name) or self._lease_of(name)
        if not lease or self._renewed(lease) < seconds:
            lease = self._granted(name, seconds)
        self._leases[name] = lease

    def identity(self) -> str:
        """Which cluster this is: the text that was written once.

        etcd's own number of the cluster does not do: whatever was set up with the defaults has the same, and what is
        restored from a backup may have another.
        """
        if not self._identity:
            key = f"{self._prefix}/identity"
            text = secrets.token_hex(16).encode()
            answer = self._transaction([kv.absent(key)], [kv.put(key, text)], [kv.get(key)], f"create {key}")
            there = kv.pair(answer.body)
            self._identity = (there.value if there else text).decode(errors="replace")
        return self._identity

    def now(self) -> float:
        """The clock of the member that answered last, in seconds since 1970."""
        if not self._gateway.date:
            self._gateway.call(_RANGE, {"key": kv.base64(f"{self._prefix}/identity")}, "ask for the time")
        return self._gateway.date

    def revision(self, known: int) -> int:  # noqa: ARG002  # no range that we ask for is of a member's memory
        return self._revision

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}/{kind}/{name}"

    def _owned(self, kind: str, name: str, before: Json, after: Json) -> list[Json]:
        """What makes the document its owner's, and no more that of the owner whom it had before."""
        was, now = before.get("node"), after.get("node")
        keys = {node: f"{self._prefix}/{_OF}/{node}/{kind}/{name}" for node in (was, now)}
        if was == now:
            return []
        return ([kv.delete(keys[was])] if was else []) + ([kv.put(keys[now], b"{}")] if now else [])

    def _transaction(self, compare: list[Json], success: list[Json], failure: list[Json], what: str) -> Answer:
        answer = self._asked(_TXN, {"compare": compare, "success": success, "failure": failure}, what)
        asked = success if kv.succeeded(answer.body) else failure
        if len(kv.parts(answer.body)) != len(asked):  # guard: every-request
            raise self._gateway.strange(what, f"are {len(kv.parts(answer.body))} responses to {len(asked)} requests")
        return answer

    def _asked(self, path: str, body: Json, what: str) -> Answer:
        """The answer to a range or a transaction.  Raises Unreachable; StoreRefused, also if it is none."""
        answer = self._gateway.call(path, body, what)
        try:
            kv.check(answer.body)
        except ValueError as e:
            raise self._gateway.strange(what, f"{e}") from e
        self._revision = kv.revision(answer.body)
        return answer

    def _below(self, kind: str, beginning: str) -> Iterator[Document]:
        """The documents whose names begin so.  One that is made or removed meanwhile may be among them or not."""
        for pair, answer in self._pages(self._key(kind, beginning)):
            yield self._document(kind, pair, answer)

    def _of(self, node: str, kind: str, beginning: str) -> Iterator[Document]:
        """The node's documents whose names begin so."""
        above = f"{self._prefix}/{_OF}/{node}/{kind}/"
        names = [pair.key.removeprefix(above) for pair, _ in self._pages(above + beginning)]
        for at in range(0, len(names), _TOGETHER):
            asked = [kv.get(self._key(kind, name)) for name in names[at : at + _TOGETHER]]
            answer = self._transaction([], asked, [], f"read what node {node} has")
            for part in kv.parts(answer.body):
                yield from (self._document(kind, pair, answer) for pair in kv.pairs(part))

    def _pages(self, beginning: str) -> Iterator[tuple[kv.Pair, Answer]]:
        """All keys that begin so, in their order, each with the answer that it was in."""
        asked, last = kv.all_below(beginning, PAGE), ""
        while True:
            answer = self._asked(_RANGE, asked, f"list {beginning}")
            pairs = kv.pairs(answer.body)
            yield from ((pair, answer) for pair in pairs)
            if not pairs or not answer.body.get("more"):
                return
            if pairs[-1].key <= last:  # it would be asked without end  # guard: no-key-again
                raise self._gateway.strange(f"list {beginning}", f"is {pairs[-1].key} again")
            last = pairs[-1].key
            asked["key"] = kv.base64(f"{last}\0")

    def _names(self, above: str) -> set[str]:
        return {pair.key.removeprefix(above) for pair, _ in self._pages(above)}

    def _document(self, kind: str, pair: kv.Pair, answer: Answer) -> Document:
        name = pair.key.removeprefix(self._key(kind, ""))
        return Document(kind, name, pair.decoded(), _uid(answer, pair.created, pair.key), str(pair.changed))

    def _lease_of(self, node: str) -> str:
        key = f"{self._prefix}/{_ALIVE}/{node}"
        answer = self._asked(_RANGE, {"key": kv.base64(key)}, f"read {key}")
        return pairs[0].lease if (pairs := kv.pairs(answer.body)) else ""

    def _renewed(self, lease: str) -> int:
        """How many seconds the lease has again; 0 if it is gone."""
        what = "renew the node's lease"
        answer = self._gateway.call(_KEEP_ALIVE, {"ID": lease}, what)
        result = answer.body.get("result")
        try:
            return kv.number(result if isinstance(result, dict) else {"TTL": result}, "TTL")
        except ValueError as e:
            raise self._gateway.strange(what, f"{e}") from e

    def _granted(self, node: str, seconds: int) -> str:
        """A new lease, with the node's key in it."""
        what = "grant a lease"
        granted = self._gateway.call(_GRANT, {"TTL": str(seconds)}, what)
        lease = granted.body.get("ID")
        if not isinstance(lease, str) or not lease:
            raise self._gateway.strange(what, f"ID is {shown(lease)}")
        told = kv.put(f"{self._prefix}/{_TOLD}/{node}", _encoded({"node": node, "heard": int(self.now())}))
        alive = kv.put(f"{self._prefix}/{_ALIVE}/{node}", b"{}", lease)
        self._transaction([], [alive, told], [], f"tell that node {node} lives")
        return lease


def _encoded(body: Json) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _uid(answer: Answer, created: int, key: str) -> str:
    """Which document this is: one that is made again with the same key is made later."""
    return f"{kv.cluster(answer.body)}/{created}{key}"
