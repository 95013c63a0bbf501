"""Documents in etcd 3.4 or later, for clusters without Kubernetes.

A document is a key, PREFIX/KIND/NAME, with the body as JSON.  Every change is one transaction that compares first.  The
create_revision of an absent key is 0, and every change gives a key a new mod_revision (etcd's API guide, "KV API").
Other keys:

    PREFIX/of/NODE/KIND/NAME   the node owns that document: a node lists its own without reading all
    PREFIX/identity            a random text, written once: distinguishes two etcds with the same setup
    PREFIX/alive/NODE          the UID of its machine; in a lease, so it expires unless the node renews it
    PREFIX/nodes/NODE          when the node was first reported alive, by etcd's clock; permanent
"""

import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from base.protocol.spec import Json
from ipam.cluster import Document, Machine, Owner
from ipam.cluster.backends import kv
from ipam.cluster.backends.kv import EtcdAnswer, Gateway, Pair, Settings
from ipam.cluster.rules.documents import layout_name, shown

# Documents in one answer: some hundred kilobytes.
PAGE: Final = 1000
# Requests in one transaction; etcd allows 128 (its flag max-txn-ops).
_TOGETHER: Final = 100
_OF, _ALIVE, _NODES = "of", "alive", "nodes"
_RANGE, _TXN = "/v3/kv/range", "/v3/kv/txn"
_GRANT, _KEEP_ALIVE = "/v3/lease/grant", "/v3/lease/keepalive"


def opened(about: Mapping[str, Any], name: str) -> tuple["Etcd", str]:
    """Return the etcd that the policy file describes, and this node's name: ``name``, or the host's.

    Sends no request.  Raises InvalidConfig.
    """
    settings = Settings.of(dict(about))
    return Etcd(Gateway(settings), settings.prefix), name or os.uname().nodename.lower()


class Etcd:
    """ipam.cluster.Documents in an etcd, below ``prefix``."""

    def __init__(self, client: Gateway, prefix: str) -> None:
        self._gateway = client
        self._prefix = prefix
        self._identity = ""
        self._revision = 0
        # The lease of each node that this process keeps alive.
        self._leases = dict[str, str]()

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:  # noqa: ARG002  # in the body
        key, value = self._key(kind, name), _encoded(body)
        made = [kv.put(key, value), *self._owned(kind, name, {}, body)]
        answer = self._transaction([kv.absent(key)], made, [kv.get(key)], f"create {key}")
        if answer.succeeded:
            return Document(kind, name, body, _uid(answer, answer.revision, key), str(answer.revision))
        # Equal content is this node's own, sent earlier with a lost answer: no two claims have the same nonce.
        there = answer.pair
        return self._document(kind, there, answer) if answer.again and there and there.value == value else None

    def read(self, kind: str, name: str) -> Document | None:
        key = self._key(kind, name)
        answer = self._asked(_RANGE, {"key": kv.base64(key)}, f"read {key}")
        return next((self._document(kind, pair, answer) for pair in answer.pairs), None)

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
        answer = self._transaction([kv.unchanged(key, document.version)], made, [kv.get(key)], f"replace {key}")
        if answer.succeeded:
            return Document(kind, name, body, document.uid, str(answer.revision))
        there = answer.pair
        if not answer.again or not there or there.value != value:
            return None
        found = self._document(kind, there, answer)
        return found if found.uid == document.uid else None

    def remove(self, document: Document) -> bool:
        kind, name = document.kind, document.name
        key = self._key(kind, name)
        gone = [kv.delete(key), *self._owned(kind, name, document.body, {})]
        answer = self._transaction([kv.unchanged(key, document.version)], gone, [kv.get(key)], f"remove {key}")
        # If the key is gone, an earlier sending removed it.
        return answer.succeeded or (answer.again and answer.pair is None)

    def machine(self, name: str, owner: str = "") -> Machine:  # noqa: ARG002  # one request anyway
        """Return what etcd knows of the named node.

        For a node that is no longer reported alive, ``last_seen`` is when it first was.  A node with documents that
        never was reported counts as alive, because it may have pods and no hpn node or agent.
        """
        asked = [kv.get(f"{self._prefix}/{where}/{name}") for where in (_ALIVE, _NODES)]
        has = {"request_range": kv.all_below(f"{self._prefix}/{_OF}/{name}/", 1)}
        answer = self._transaction([], [*asked, has], [], f"read about node {name}")
        alive, told, documents = answer.parts
        if alive or (documents and not told):
            return Machine(name, _machine(alive[0]) if alive else "", self.now(), has_reported=bool(alive))
        return Machine(name, "", told[0].last_seen() if told else None)

    def machine_uid(self, name: str) -> str:
        return self.machine(name).uid

    def silent(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Return those of these owners whose nodes were reported alive and no longer are, or by another machine."""
        above, first = f"{self._prefix}/{_ALIVE}/", f"{self._prefix}/{_NODES}/"
        alive = {pair.key.removeprefix(above): pair for pair, _ in self._pages(above)}
        # Each node that ever was has a key there, so a list of them grows without end.
        keys = [f"{first}{name}" for name in sorted({name for name, _ in owners if name not in alive})]
        told = {pair.key for pair, _ in self._each(keys, "read when nodes were first reported alive")}
        return {
            (name, uid)
            for name, uid in owners
            if f"{first}{name}" in told or (uid and name in alive and _machine(alive[name]) not in ("", uid))
        }

    def keep_alive(self, name: str, seconds: int, machine: str = "") -> None:
        lease = self._leases.get(name) or self._lease_of(name, machine)
        if not lease or self._renewed(lease) < seconds:
            lease = self._granted(name, seconds, machine)
        self._leases[name] = lease

    def controller(self, pod: str) -> str | None:  # noqa: ARG002  # an etcd knows no pods
        return None

    def identity(self) -> str:
        """Return the text that was written once.

        etcd's own cluster ID does not serve: all clusters with default settings share one, and a restore may change it.
        """
        if not self._identity:
            key = f"{self._prefix}/identity"
            text = secrets.token_hex(16).encode()
            answer = self._transaction([kv.absent(key)], [kv.put(key, text)], [kv.get(key)], f"create {key}")
            there = answer.pair
            self._identity = (there.value if there else text).decode(errors="replace")
        return self._identity

    def now(self) -> float:
        """Return the clock of the member that answered last, in seconds since 1970."""
        if not self._gateway.date:
            self._gateway.call(_RANGE, {"key": kv.base64(f"{self._prefix}/identity")}, "ask for the time")
        return self._gateway.date

    def revision(self, known: int) -> int:  # noqa: ARG002  # no range here reads a member's cache
        return self._revision

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}/{kind}/{name}"

    def _owned(self, kind: str, name: str, before: Json, after: Json) -> list[Json]:
        """Return the requests that move the document from its former owner's list to its owner's."""
        was, now = before.get("node"), after.get("node")
        keys = {node: f"{self._prefix}/{_OF}/{node}/{kind}/{name}" for node in (was, now)}
        if was == now:
            return []
        return ([kv.delete(keys[was])] if was else []) + ([kv.put(keys[now], b"{}")] if now else [])

    def _transaction(self, compare: list[Json], success: list[Json], failure: list[Json], what: str) -> EtcdAnswer:
        answer = self._asked(_TXN, {"compare": compare, "success": success, "failure": failure}, what)
        asked = success if answer.succeeded else failure
        if len(answer.parts) != len(asked):
            raise self._gateway.strange(what, f"are {len(answer.parts)} responses to {len(asked)} requests")
        return answer

    def _asked(self, path: str, body: Json, what: str) -> EtcdAnswer:
        """Return the answer to a range or a transaction.  Raises Unreachable; BackendRefused, also for any other
        answer."""
        reply = self._gateway.call(path, body, what)
        try:
            answer = EtcdAnswer.of(reply)
        except ValueError as e:
            raise self._gateway.strange(what, f"{e}") from e
        self._revision = answer.revision
        return answer

    def _below(self, kind: str, beginning: str) -> Iterator[Document]:
        """Yield the documents with that beginning of the name; a concurrent change may show or not."""
        for pair, answer in self._pages(self._key(kind, beginning)):
            yield self._document(kind, pair, answer)

    def _of(self, node: str, kind: str, beginning: str) -> Iterator[Document]:
        """Yield the node's documents with that beginning of the name."""
        above = f"{self._prefix}/{_OF}/{node}/{kind}/"
        keys = [self._key(kind, pair.key.removeprefix(above)) for pair, _ in self._pages(above + beginning)]
        for pair, answer in self._each(keys, f"read the documents of node {node}"):
            yield self._document(kind, pair, answer)

    def _each(self, keys: Sequence[str], what: str) -> Iterator[tuple[Pair, EtcdAnswer]]:
        """Yield those of the keys that exist with their values, and the answer that contained each."""
        for at in range(0, len(keys), _TOGETHER):
            answer = self._transaction([], [kv.get(key) for key in keys[at : at + _TOGETHER]], [], what)
            yield from ((pair, answer) for part in answer.parts for pair in part)

    def _pages(self, beginning: str) -> Iterator[tuple[Pair, EtcdAnswer]]:
        """Yield each key below ``beginning`` with its value, in order of keys, and the answer that contained it."""
        asked, last = kv.all_below(beginning, PAGE), ""
        while True:
            answer = self._asked(_RANGE, asked, f"list {beginning}")
            yield from ((pair, answer) for pair in answer.pairs)
            if not answer.pairs or not answer.more:
                return
            if answer.pairs[-1].key <= last:  # it would be asked without end
                raise self._gateway.strange(f"list {beginning}", f"is {answer.pairs[-1].key} again")
            last = answer.pairs[-1].key
            asked["key"] = kv.base64(f"{last}\0")

    def _document(self, kind: str, pair: Pair, answer: EtcdAnswer) -> Document:
        name = pair.key.removeprefix(self._key(kind, ""))
        return Document(kind, name, pair.decoded(), _uid(answer, pair.created, pair.key), str(pair.changed))

    def _lease_of(self, node: str, machine: str) -> str:
        """Return the lease that reports this machine; empty if there is none, or only another machine's."""
        key = f"{self._prefix}/{_ALIVE}/{node}"
        found = self._asked(_RANGE, {"key": kv.base64(key)}, f"read {key}").pairs
        return next((pair.lease for pair in found if _machine(pair) == machine), "")

    def _renewed(self, lease: str) -> int:
        """Renew the lease; return its seconds, 0 if it is gone."""
        what = "renew the node's lease"
        result = self._gateway.call(_KEEP_ALIVE, {"ID": lease}, what).json().get("result")
        try:
            return kv.number({"TTL": "0", **result} if isinstance(result, dict) else {"TTL": result}, "TTL")
        except ValueError as e:
            raise self._gateway.strange(what, f"{e}") from e

    def _granted(self, node: str, seconds: int, machine: str) -> str:
        """Return a new lease that holds the node's key."""
        what = "grant a lease"
        lease = self._gateway.call(_GRANT, {"TTL": str(seconds)}, what).json().get("ID")
        if not isinstance(lease, str) or not lease:
            raise self._gateway.strange(what, f"ID is {shown(lease)}")
        told = kv.put(f"{self._prefix}/{_NODES}/{node}", _encoded({"node": node, "heard": int(self.now())}))
        of = _encoded({"machine": machine} if machine else {})
        alive = kv.put(f"{self._prefix}/{_ALIVE}/{node}", of, lease)
        self._transaction([], [alive, told], [], f"report node {node} alive")
        return lease


def _machine(alive: Pair) -> str:
    """Return the UID of the machine that reported the node alive; empty if it reported none, as older versions do."""
    uid = alive.decoded().get("machine")
    return uid if isinstance(uid, str) else ""


def _encoded(body: Json) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _uid(answer: EtcdAnswer, created: int, key: str) -> str:
    """Return the document's identity: a later document with the same key has a later create_revision."""
    return f"{answer.cluster}/{created}{key}"
