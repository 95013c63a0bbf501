"""Documents in a cluster's API server: its objects HpnPool and HpnBlock (packaging/kubernetes/cluster).

Names are unique, and an object's resourceVersion changes with it, so the API server compares and swaps.  POST fails if
the name exists; PUT and DELETE fail if the object changed after the read (kubernetes.io, "Kubernetes API Concepts").
A node's machine is its Node object.  kubelet renews the node's Lease, which shows when the node was last alive.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from base.protocol.errors import BackendRefused, Unreachable
from base.protocol.spec import Json
from ipam.cluster import BLOCK, Document, Documents, Machine, Owner
from ipam.cluster.backends import credentials, objects
from ipam.cluster.backends.http import Answer, Http
from ipam.cluster.backends.objects import GROUP, KINDS, VERSION
from ipam.cluster.node_blocks import GRACE

T = TypeVar("T")

_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_SYSTEM: Final = "/api/v1/namespaces/kube-system"
# The admission policy finds the fields that hpn wrote, and when, by this name.
_MANAGER: Final = "hpn"
# Objects per page: some hundred kilobytes.
_PAGE: Final = 500
_RESTARTS: Final = 3
# Renewals of a node's Lease during its validity, if kubelet does not renew it every ten seconds.
_RENEWALS: Final = 12
_APPLY: Final = "kubectl apply -k packaging/kubernetes/cluster"


class Kubernetes:
    """ipam.cluster.Documents on the API server of a kubeconfig."""

    def __init__(self, kubeconfig: credentials.Kubeconfig) -> None:
        self._kubeconfig = kubeconfig
        self._http = Http([kubeconfig.server], kubeconfig.tls, kubeconfig.headers)
        self._clock, self._revision = 0.0, 0

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:
        labels = {"network": network, **({"node": body["node"]} if body.get("node") else {})}
        answer = self._ask("POST", _path(kind, changes=True), objects.build(kind, {"name": name}, labels, body))
        if answer.status == 409:
            # Equal content is this node's own, sent earlier with a lost answer: no two claims have the same nonce.
            there = self.read(kind, name) if answer.again else None
            return there if there and there.body == body else None
        return self._document(answer, "create", kind)

    def read(self, kind: str, name: str) -> Document | None:
        answer = self._ask("GET", _path(kind, name))
        return None if answer.is_absent else self._document(answer, "get", kind)

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        asked = {key: value for key, value in (("network", network), ("node", node)) if value is not None}
        selector = objects.selector(asked)
        for _ in range(_RESTARTS):
            found = self._pages(kind, selector) if node is None else self._now(kind, selector)
            if found is not None:
                # A long name's label is a digest, which another name may share.
                return [one for one in found if all(one.body.get(key) == value for key, value in asked.items())]
        raise Unreachable(f"{self._http.server} dropped the list of {kind}s before its last page")

    def replace(self, document: Document, body: Json) -> Document | None:
        kind, name = document.kind, document.name
        labels = {key: str(body[key]) for key in ("network", "node") if body.get(key)}
        metadata = {"name": name, "uid": document.uid, "resourceVersion": document.version}
        answer = self._ask("PUT", _path(kind, name, changes=True), objects.build(kind, metadata, labels, body))
        if answer.status == 409 or answer.is_absent:
            there = self.read(kind, name) if answer.again else None
            return there if there and (there.uid, there.body) == (document.uid, body) else None
        return self._document(answer, "update", kind)

    def remove(self, document: Document) -> bool:
        preconditions = {"uid": document.uid, "resourceVersion": document.version}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        answer = self._ask("DELETE", _path(document.kind, document.name), options)
        if answer.is_absent:  # an earlier sending removed it
            return answer.again
        if answer.status == 409:
            return False
        self._good(answer, "delete", document.kind)
        return True

    def machine(self, name: str, owner: str = "") -> Machine:
        path = f"{_LEASES}/{quote(name, safe='')}"
        if owner and not (lease := self._ask("GET", path)).is_absent:
            there = self._read(lease, "get", "lease", objects.machine)
            if there.uid == owner and (there.last_seen or 0.0) >= self._clock - GRACE:
                return there
        # The Lease last: a later answer would make it seem old.
        uid, lease = self.machine_uid(name), self._ask("GET", path)
        return Machine(name, uid, None if lease.is_absent else self._last_seen(lease))

    def machine_uid(self, name: str) -> str:
        found = self._ask("GET", f"{_NODES}/{quote(name, safe='')}")
        return "" if found.is_absent else self._uid(found, "node")

    def silent(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Return those of these owners without a Lease, or with one of another machine, or not renewed for the grace.

        Reads the watch cache.  Returns all owners if this credential may not list Leases.
        """
        answer = self._ask("GET", f"{_LEASES}?resourceVersion=0")
        if answer.status == 403:
            return owners
        known = self._read(answer, "list", "lease", objects.machines)
        return {
            (name, uid)
            for name, uid in owners
            if (one := known.get(name)) is None
            or (uid and one.uid not in ("", uid))
            or (one.last_seen or 0.0) < self._clock - GRACE
        }

    def controller(self, pod: str) -> str | None:
        """kubelet's credential may read the pods of its node; another one perhaps none."""
        namespace, _, name = pod.rpartition("/")
        answer = self._ask("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        if answer.status == 403 or answer.is_absent:
            return None
        return self._read(answer, "get", "pod", objects.controller)

    def keep_alive(self, name: str, seconds: int, machine: str = "") -> None:  # noqa: ARG002  # its Node object has it
        """Report the node as alive for that many seconds, if kubelet does not.

        The Lease is removed with the Node object, and kubelet creates no other.  So a node with only its Node object
        deleted would be suspected.  A credential that may not write Leases skips this.  The Lease made here is removed
        with the last of the node's current blocks; a node without blocks needs none.
        """
        path = f"{_LEASES}/{quote(name, safe='')}"
        found = self._ask("GET", path)
        if found.is_absent:
            listed = self._pages(BLOCK, objects.selector({"node": name}), resourceVersion="0") or ()
            if blocks := [one for one in listed if one.body.get("node") == name]:
                self._renew(self._ask("POST", _LEASES, objects.lease(name, self._clock, blocks)))
            return
        there, is_late = found.json(), (self._last_seen(found) or 0.0) < self._clock - seconds / _RENEWALS
        if objects.is_of_blocks(there) and self._ask("GET", f"{_NODES}/{quote(name, safe='')}").status == 200:
            there, is_late = objects.without_owners(there), True  # kubelet makes the Node object its owner
        if is_late:
            spec = objects.lease_spec(name, self._clock, there.get("spec"))
            self._renew(self._ask("PUT", path, {**there, "spec": spec}))

    def _renew(self, answer: Answer) -> None:
        # 409: another writer renewed it; 403: this credential may not.
        if answer.status not in (403, 409):
            self._good(answer, "write", "lease")

    def identity(self) -> str:
        """Return the UID of the namespace kube-system, which every cluster has permanently."""
        return self._uid(self._ask("GET", _SYSTEM), "namespace")

    def now(self) -> float:
        if not self._clock:
            self.identity()
        return self._clock

    def revision(self, known: int) -> int:
        """Return the resourceVersion of the last list of blocks.

        A node lists its own blocks from the watch cache, which may be old.  If that version is below ``known``, read
        one block past the cache.  Versions of one resource are comparable numbers (kubernetes.io, "Kubernetes API
        Concepts").
        """
        if self._revision >= known:
            return self._revision
        answer = self._ask("GET", f"{_path(BLOCK)}?limit=1")
        return min(known, self._read(answer, "list", BLOCK, objects.revision))

    def close(self) -> None:
        self._http.close()

    def _now(self, kind: str, selector: str) -> list[Document] | None:
        """Return the matching documents, each current; None as ``_pages``.

        The list comes from the watch cache (resourceVersion 0). A consistent list could read every object from etcd to
        find a few, for every node every ten minutes.  The cache may be old, so each document is read again.
        """
        found = self._pages(kind, selector, resourceVersion="0")
        if found is None:
            return None
        there = [self._ask("GET", _path(kind, one.name)) for one in found]
        return [self._document(answer, "get", kind) for answer in there if not answer.is_absent]

    def _pages(self, kind: str, selector: str, **more: str) -> list[Document] | None:
        """Return all matching documents; None if the API server dropped that state before the last page.

        ``more`` holds further parameters of the first page.
        """
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {}), **more}
        found = list[Document]()
        while True:
            path = f"{_path(kind)}?{urlencode(query)}"
            answer = self._ask("GET", path)
            if answer.status == 410:
                return None
            before = query.get("continue", "")
            if kind == BLOCK and not found:
                self._revision = self._read(answer, "list", kind, objects.revision)
            some, after = self._read(answer, "list", kind, lambda page: objects.page(kind, page, before))  # noqa: B023
            found += some
            if not after:
                return found
            query = {key: value for key, value in query.items() if key not in more} | {"continue": after}

    def _ask(self, method: str, path: str, body: Json | None = None) -> Answer:
        """Return the API server's answer; sending twice is safe, because every change compares first."""
        if not self._kubeconfig.is_current():
            self.close()
            self._kubeconfig = self._kubeconfig.again()
            self._http = Http([self._kubeconfig.server], self._kubeconfig.tls, self._kubeconfig.headers)
        answer = self._http.ask(method, path, body, is_safe=True)
        if answer.status == 401:  # this connection's certificate may be an old one
            self._http.close()
            answer = self._http.ask(method, path, body, is_safe=True)
        self._clock = answer.at or self._clock
        return answer

    def _document(self, answer: Answer, verb: str, kind: str) -> Document:
        return self._read(answer, verb, kind, lambda found: objects.document(kind, found))

    def _uid(self, answer: Answer, kind: str) -> str:
        return self._read(answer, "get", kind, objects.uid)

    def _last_seen(self, answer: Answer) -> float | None:
        return self._read(answer, "get", "lease", objects.last_seen)

    def _read(self, answer: Answer, verb: str, kind: str, read: Callable[[Json], T]) -> T:
        """Return what ``read`` finds in the answer.  Raises BackendRefused, also for an answer that no API server
        gives."""
        found = self._good(answer, verb, kind)
        try:
            return read(found)
        except ValueError as e:
            raise BackendRefused(
                f"what answers at {self._http.server} is not an API server: the request was to {verb} {_plural(kind)}, "
                f"and in its answer {e}; correct the server in {self._kubeconfig.path}"
            ) from e

    def _good(self, answer: Answer, verb: str, kind: str) -> Json:
        """Return the object of a successful answer.  Raises BackendRefused for any other."""
        if 200 <= answer.status < 300 and (found := answer.json()):
            return found
        raise BackendRefused(self._why(answer, verb, kind))

    def _why(self, answer: Answer, verb: str, kind: str) -> str:
        what = f"the API server {self._http.server} refuses to {verb} {_plural(kind)}"
        if answer.status == 401:
            ended = self._kubeconfig.ended()
            of = f"{what}: it does not know this node's credential ({self._kubeconfig.path})"
            if ended and ended < time.time():
                return f"{of}, which expired at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(ended))}; renew it"
            return f"{of}: {answer.reason}; name a known one"
        if answer.status == 403 and "ValidatingAdmissionPolicy" not in answer.reason:
            remedy = f"allow it to all nodes: {_APPLY}; or bind the ClusterRole hpn-node to this user"
            return f"{what}: {answer.reason}; {remedy}"
        if answer.status == 404 and kind in KINDS:
            return f"{what}: the cluster has no such CustomResourceDefinition; make it: {_APPLY}"
        if answer.status == 400 and "unknown field" in answer.reason:
            return f"{what}: {answer.reason}; its CustomResourceDefinition is another version's: {_APPLY}"
        return f"{what}: {answer.reason}"


def opened(about: Mapping[str, Any], name: str) -> tuple[Documents, str]:
    """Return the backend and this node's name in it, by the policy file's keys.

    Raises InvalidConfig for these keys, BackendRefused without a credential.
    """
    kubeconfig, name = credentials.of_node(about, name)
    return Kubernetes(kubeconfig), name


def _plural(kind: str) -> str:
    return f"{KINDS[kind][1]}.{GROUP}" if kind in KINDS else f"{kind}s"


def _path(kind: str, name: str = "", *, changes: bool = False) -> str:
    # Strict: an unknown field is an error, instead of silently dropped.
    query = f"?fieldManager={_MANAGER}&fieldValidation=Strict" if changes else ""
    return f"/apis/{VERSION}/{KINDS[kind][1]}{'/' * bool(name)}{quote(name, safe='')}{query}"


def listed_objects(server: Http, path: str, unknown: str = "") -> Iterator[Json]:
    """Yield the objects of a list of any kind, page by page (kubernetes.io, "Kubernetes API Concepts", "Retrieving
    large results sets in chunks").

    ``unknown``: the reason for an error if the API server does not know the kind; if empty, there are no objects then.
    Raises Unreachable, BackendRefused.
    """
    what, follow = f"{server.server} does not list {path.rpartition('/')[2]}", ""
    while True:
        answer = server.ask("GET", f"{path}?limit={_PAGE}{follow}", is_safe=True)
        if answer.status == 404 and not unknown:
            return
        if answer.status != 200:
            raise BackendRefused(f"{what}: {unknown if answer.status == 404 else answer.reason}")
        page = answer.json()
        items, about = page.get("items"), page.get("metadata")
        if not isinstance(items, list | None) or not isinstance(about, dict | None):
            raise BackendRefused(f"{what}: its answer is not a list of objects; correct the server in the kubeconfig")
        yield from (one for one in items or () if isinstance(one, dict))
        before, more = follow, (about or {}).get("continue")
        if not more:
            return
        follow = f"&continue={quote(str(more), safe='')}"
        if follow == before:  # it would be asked without end
            raise BackendRefused(f"{what}: it names the same next page again; correct the server in the kubeconfig")
