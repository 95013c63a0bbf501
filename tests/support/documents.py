"""A backend in memory, with faults on demand; it replaces the API server in unit tests.

It fulfils the same contract as the real ones (tests/support/documents_contract.py).
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from base.protocol.errors import BackendRefused, Unreachable
from base.protocol.spec import Json
from ipam.cluster import BLOCK, Document, Machine, Owner

T = TypeVar("T")


class Fault(Enum):
    """The fault of one call."""

    UNREACHABLE = auto()  # nothing was done, and no answer comes
    LOST = auto()  # it was done, and the answer is lost
    CONFLICT = auto()  # another writer was faster: create and replace return None, remove returns False
    FORBIDDEN = auto()
    KILLED = auto()  # the caller dies before the call
    KILLED_AFTER = auto()  # the caller dies before it receives the answer


class Killed(BaseException):
    """The end of the process; no except clause of the program catches it."""


# Maps a call to its fault: the number of calls before it (all, from 0), its name and the document's name.
Faults = Callable[[int, str, str], Fault | None]


def none(_number: int, _call: str, _name: str) -> None:
    """Return no fault."""


def at(number: int, fault: Fault) -> Faults:
    """Return that fault for the call with that number, counted from 0."""
    return lambda called, _call, _name: fault if called == number else None


def every(call: str, fault: Fault) -> Faults:
    """Return that fault for each call of this kind; "" means all calls."""
    return lambda _number, called, _name: fault if call in ("", called) else None


@dataclass
class Memory:
    """An ipam.cluster.Documents that all nodes of a test share; ``calls`` lists the calls, such as "create b.1".

    With ``file`` it keeps the documents there, for processes that are forked and killed.
    """

    cluster: str = "cluster-1"
    machines: dict[str, Machine] = field(default_factory=dict)
    faults: Faults = none
    clock: float = 1_800_000_000.0
    calls: list[str] = field(default_factory=list)
    documents: dict[tuple[str, str], Document] = field(default_factory=dict)
    file: Path | None = None
    _networks: dict[tuple[str, str], str] = field(default_factory=dict)
    changes: int = 0
    # The kind of a pod's controller; an unknown pod has none here.
    controllers: dict[str, str] = field(default_factory=dict)

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:
        def act() -> Document | None:
            if (kind, name) in self.documents:
                return None
            self._networks[kind, name] = network
            return self._put(kind, name, f"uid-{self._next()}", body)

        return self._call("create", name, act, None)

    def read(self, kind: str, name: str) -> Document | None:
        return self._call("read", name, lambda: self._found(kind, name), None)

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        def act() -> list[Document]:
            names = [
                name
                for name in self._names(kind, network, node)
                if network in (None, self._networks[kind, name])
                and node in (None, self.documents[kind, name].body.get("node"))
            ]
            return [found for name in names if (found := self._found(kind, name))]

        return self._call("listed", network or node or "", act, [])

    def replace(self, document: Document, body: Json) -> Document | None:
        def act() -> Document | None:
            now = self.documents.get((document.kind, document.name))
            if now is None or (now.uid, now.version) != (document.uid, document.version):
                return None
            return self._put(document.kind, document.name, document.uid, body)

        return self._call("replace", document.name, act, None)

    def remove(self, document: Document) -> bool:
        def act() -> bool:
            now = self.documents.get((document.kind, document.name))
            if now is None or (now.uid, now.version) != (document.uid, document.version):
                return False
            del self.documents[document.kind, document.name]
            return True

        return self._call("remove", document.name, act, False)  # the call's answer

    def machine(self, name: str, owner: str = "") -> Machine:
        about = f"{name} {owner}".rstrip()
        return self._call("machine", about, lambda: self.machines.get(name, Machine(name)), Machine(name))

    def machine_uid(self, name: str) -> str:
        return self._call("machine_uid", name, lambda: self.machines.get(name, Machine(name)).uid, "")

    def silent(self, owners: Collection[Owner]) -> Collection[Owner]:
        def act() -> set[Owner]:
            known = {owner: self.machines.get(owner[0], Machine(owner[0])) for owner in owners}
            return {
                owner
                for owner, one in known.items()
                if one.last_seen is None or self.clock - one.last_seen > 3600 or one.uid not in ("", owner[1])
            }

        return self._call("silent", "", act, set())

    def controller(self, pod: str) -> str | None:
        return self._call("controller", pod, lambda: self.controllers.get(pod), None)

    def keep_alive(self, name: str, seconds: int, machine: str = "") -> None:  # noqa: ARG002  # kubelet reports it
        def act() -> None:
            known = self.machines.get(name, Machine(name))
            self.machines[name] = Machine(name, known.uid, self.clock)

        assert seconds > 0
        self._call("keep_alive", name, act, None)

    def identity(self) -> str:
        return self._call("identity", "", lambda: self.cluster, self.cluster)  # only this call writes it

    def now(self) -> float:
        return self.clock

    def revision(self, known: int) -> int:  # noqa: ARG002  # it has no other memory
        return self.changes

    def backup(self) -> Callable[[], None]:
        """Return a function that restores the present state."""
        documents, changes = dict(self.documents), self.changes

        def restore() -> None:
            self.documents.clear()
            self.documents.update(documents)
            self.changes = changes

        return restore

    def _next(self) -> int:
        self.changes += 1
        return self.changes

    def counted(self) -> dict[str, int]:
        """Return how often each call was made."""
        return dict(Counter(call.partition(" ")[0] for call in self.calls))

    def bodies(self, kind: str) -> dict[str, Json]:
        """Return the bodies of one kind by name; this counts as no call."""
        self._load()
        return {name: document.body for (kinds, name), document in sorted(self.documents.items()) if kinds == kind}

    def _names(self, kind: str, _network: str | None, _node: str | None) -> Iterable[str]:
        """Return the names of the documents among which the wanted ones are."""
        return [name for kinds, name in self.documents if kinds == kind]

    def _load(self) -> None:
        if self.file and self.file.exists():
            self.documents, self._networks, self.changes = pickle.loads(self.file.read_bytes())

    def _found(self, kind: str, name: str) -> Document | None:
        found = self.documents.get((kind, name))
        return found and Document(kind, name, _copied(found.body), found.uid, found.version)

    def _put(self, kind: str, name: str, uid: str, body: Json) -> Document | None:
        self.documents[kind, name] = Document(kind, name, _copied(body), uid, f"{self._next()}")
        return self._found(kind, name)

    def _call(self, call: str, name: str, act: Callable[[], T], conflict: T) -> T:
        fault = self.faults(len(self.calls), call, name)
        self.calls.append(f"{call} {name}".rstrip())
        match fault:
            case Fault.UNREACHABLE:
                raise Unreachable(f"{call} {name}: the store in memory does not answer")
            case Fault.FORBIDDEN:
                raise BackendRefused(f"{call} {name}: the store in memory forbids it")
            case Fault.CONFLICT:
                return conflict
            case Fault.KILLED:
                raise Killed
        self._load()
        done = act()
        if self.file:
            new = self.file.with_suffix(".new")
            new.write_bytes(pickle.dumps((self.documents, self._networks, self._next())))
            new.rename(self.file)
        if fault is Fault.LOST:
            raise Unreachable(f"{call} {name}: the answer of the store in memory is lost")
        if fault is Fault.KILLED_AFTER:
            raise Killed
        return done


def _copied(body: Json) -> Json:
    """Return a copy, as after a transfer."""
    copied: Json = json.loads(json.dumps(body))
    return copied


def whose(store: Memory) -> dict[str, str]:
    """Return the owner of each block, by the block's name."""
    return {name: body["node"] for name, body in store.bodies(BLOCK).items()}
