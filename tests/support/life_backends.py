"""The backends of a simulated cluster: an API server in memory, and the gateway of an etcd without HTTP."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from support.documents import Memory
from support.etcd_server import Keys, Member, keys_of

from base.kubernetes.http import Answer
from base.protocol.errors import Unreachable
from base.protocol.spec import Json
from ipam.cluster import BLOCK, Document, Machine
from ipam.cluster.node_blocks import GRACE
from ipam.cluster.rules.documents import Block

# Objects in a page of an API server's list.
PAGE = 500


class ApiServer(Memory):
    """An API server; kubelets renew their Leases, and garbage collection removes those of removed nodes.

    ``requests`` counts all, and ``by_network`` those about a network, by its name.
    """

    is_silent = False
    requests = 0

    def __init__(self, clock: float) -> None:
        super().__init__(clock=clock)
        self.by_network = Counter[str]()
        # The names of all documents that a network or a node ever had, in their order.
        self._ever = defaultdict[tuple[str, str, str], dict[str, None]](dict)

    def blocks(self) -> list[Block]:
        """Return all blocks; this counts as no request."""
        return [Block.of(Document(BLOCK, name, body, "u", "1")) for name, body in self.bodies(BLOCK).items()]

    def _put(self, kind: str, name: str, uid: str, body: Json) -> Document | None:
        for about in (("network", self._networks[kind, name]), ("node", str(body.get("node")))):
            self._ever[kind, *about][name] = None
        super()._put(kind, name, uid, body)
        made = self.documents[kind, name]
        # Nobody can change the body, so no reader needs a copy of it.
        self.documents[kind, name] = replace(made, body=MappingProxyType(made.body))  # type: ignore[arg-type]
        return self._found(kind, name)

    def _found(self, kind: str, name: str) -> Document | None:
        return self.documents.get((kind, name))

    def _names(self, kind: str, network: str | None, node: str | None) -> Iterable[str]:
        """As Memory, by an index: most lists are of one node, among the blocks of a thousand."""
        if network is None and node is None:
            return super()._names(kind, network, node)
        ever = self._ever[(kind, "node", node) if node is not None else (kind, "network", network or "")]
        return [name for name in ever if (kind, name) in self.documents]

    def forget(self, network: str) -> None:
        """Remove all documents of a network, as an operator does who retires it."""
        for key in [key for key, name in self._networks.items() if name.partition("/")[0] == network]:
            self.documents.pop(key, None)
        self.changes += 1

    def _call(self, call: str, name: str, act: Callable[[], Any], conflict: Any) -> Any:
        if self.is_silent:
            raise Unreachable("the API server does not answer")
        self.calls.clear()
        answer = super()._call(call, name, act, conflict)
        self._count(name, 1)
        return answer

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        """Count as the real backend does: it reads each block in a node's list again, and another list by pages."""
        found = super().listed(kind, network, node)
        self._count(network or node or "", (max(0, len(found) - 1) // PAGE) if node is None else len(found))
        return found

    def machine(self, name: str, owner: str = "") -> Machine:
        """Count as the real backend does: it reads the Lease first if it knows an owner, then the Node object."""
        found = super().machine(name)
        is_sure = owner and found.uid == owner and (found.last_seen or 0) >= self.clock - GRACE
        self._count(name, 0 if is_sure else 2 if owner else 1)
        return found

    def _count(self, name: str, number: int) -> None:
        self.requests += number
        self.by_network[name.partition(".")[0]] += number


@dataclass(frozen=True)
class Told(Answer):
    """An answer that is not sent as text; test_etcd_gateway.py sends it."""

    told: Json = field(default_factory=dict)

    def json(self) -> Json:
        return self.told


class Gateway:
    """An etcd's gateway without HTTP; leases expire by the simulation's clock.  The counts as for an API server."""

    is_silent = False
    requests = 0

    def __init__(self, now: Callable[[], float]) -> None:
        self.member, self._now, self._until = Member(), now, dict[str, float]()
        self.by_network = Counter[str]()
        # No lease expires before.
        self._soonest = 0.0

    @property
    def date(self) -> float:
        return float(int(self._now()))

    def blocks(self) -> list[Block]:
        """Return all blocks; this counts as no request."""
        keys = [key for key in self.member.keys if key.startswith(f"/hpn/{BLOCK}/")]
        bodies = {key.rpartition("/")[2]: json.loads(self.member.value(key)) for key in keys}
        return [Block.of(Document(BLOCK, name, body, "u", "1")) for name, body in bodies.items()]

    def forget(self, network: str) -> None:
        """Remove all documents of a network, as an operator does who retires it."""
        of = re.compile(rf"/(block|pool)/{network}(\.[0-9]+|-sticky-.*)?$")
        self.member.keys = Keys({key: pair for key, pair in self.member.keys.items() if not of.search(key)})
        self.member.revision += 1

    def backup(self) -> Callable[[], None]:
        """Return a function that restores the present state.  A lease then has its whole time again."""
        member, keys, leases = self.member, deepcopy(self.member.keys), dict(self.member.leases)
        revision = member.revision

        def restore() -> None:
            member.keys, member.leases, member.revision = keys, leases, revision
            self._until = {lease: self._now() + seconds for lease, seconds in leases.items()}
            self._soonest = 0.0

        return restore

    def call(self, path: str, body: Json, _what: str) -> Answer:
        if self.is_silent:
            raise Unreachable("the etcd does not answer")
        self._expire()
        self.requests += 1
        self.by_network.update({_network(key) for key in keys_of(body)})
        status, answer = self.member.done(path, json.loads(json.dumps(body)))
        assert status == 200, answer
        lease = str(body.get("ID") or answer.get("ID") or "")
        if path.startswith("/v3/lease/") and lease in self.member.leases:
            self._until[lease] = self._now() + self.member.leases[lease]
            self._soonest = min(self._soonest, self._until[lease])
        return Told(200, b"", self.date, told=answer)

    def _expire(self) -> None:
        if self._now() <= self._soonest:
            return
        for lease in [lease for lease, until in self._until.items() if until < self._now()]:
            del self._until[lease]
            self.member.expire(lease)
        self._soonest = min(self._until.values(), default=self._now())

    def strange(self, what: str, why: str) -> Exception:
        return AssertionError(f"{what}: {why}")


def _network(key: str) -> str:
    """Return the network of a document's key, or of a list of a node's documents."""
    return key.rpartition("/")[2].partition(".")[0]
