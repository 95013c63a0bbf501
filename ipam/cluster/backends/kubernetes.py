"""Documents in a cluster's API server: its objects HpnPool and HpnBlock (packaging/kubernetes/cluster).

Names are unique, and an object's resourceVersion changes with it, so the API server compares and swaps.  POST fails if
the name exists; PUT and DELETE fail if the object changed after the read (kubernetes.io, "Kubernetes API Concepts").
A node's machine is its Node object.  kubelet renews the node's Lease, which shows when the node was last alive.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from base.kubernetes import credentials
from base.kubernetes.client import PAGE, Client
from base.kubernetes.http import Answer
from base.protocol.errors import Unreachable
from base.protocol.spec import Json
from ipam.cluster import BLOCK, Document, Documents, Machine, Owner
from ipam.cluster.backends import objects
from ipam.cluster.backends.objects import GROUP, KINDS, VERSION
from ipam.cluster.node_blocks import GRACE

_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_SYSTEM: Final = "/api/v1/namespaces/kube-system"
# The admission policy finds the fields that hpn wrote, and when, by this name.
_MANAGER: Final = "hpn"
_RESTARTS: Final = 3
# Renewals of a node's Lease during its validity, if kubelet does not renew it every ten seconds.
_RENEWALS: Final = 12
_APPLY: Final = "kubectl apply -k packaging/kubernetes/cluster"


class Kubernetes:
    """ipam.cluster.Documents on the API server of a kubeconfig."""

    def __init__(self, kubeconfig: credentials.Kubeconfig) -> None:
        self._client, self._revision = Client(kubeconfig, _why), 0

    def create(self, kind: str, name: str, network: str, body: Json) -> Document | None:
        labels = {"network": network, **({"node": body["node"]} if body.get("node") else {})}
        answer = self._client.send("POST", _path(kind, changes=True), objects.build(kind, {"name": name}, labels, body))
        if answer.status == 409:
            # Equal content is this node's own, sent earlier with a lost answer: no two claims have the same nonce.
            there = self.read(kind, name) if answer.again else None
            return there if there and there.body == body else None
        return self._document(answer, "create", kind)

    def read(self, kind: str, name: str) -> Document | None:
        return self._client.get(_path(kind, name), _plural(kind), lambda found: objects.document(kind, found))

    def listed(self, kind: str, network: str | None = None, node: str | None = None) -> Sequence[Document]:
        asked = {key: value for key, value in (("network", network), ("node", node)) if value is not None}
        selector = objects.selector(asked)
        for _ in range(_RESTARTS):
            found = self._pages(kind, selector) if node is None else self._now(kind, selector)
            if found is not None:
                # A long name's label is a digest, which another name may share.
                return [one for one in found if all(one.body.get(key) == value for key, value in asked.items())]
        raise Unreachable(f"{self._client.server} dropped the list of {kind}s before its last page")

    def replace(self, document: Document, body: Json) -> Document | None:
        kind, name = document.kind, document.name
        labels = {key: str(body[key]) for key in ("network", "node") if body.get(key)}
        metadata = {"name": name, "uid": document.uid, "resourceVersion": document.version}
        answer = self._client.send("PUT", _path(kind, name, changes=True), objects.build(kind, metadata, labels, body))
        if answer.status == 409 or answer.is_absent:
            there = self.read(kind, name) if answer.again else None
            return there if there and (there.uid, there.body) == (document.uid, body) else None
        return self._document(answer, "update", kind)

    def remove(self, document: Document) -> bool:
        kind, name = document.kind, document.name
        return self._client.delete(_path(kind, name), _plural(kind), document.uid, document.version)

    def machine(self, name: str, owner: str = "") -> Machine:
        path = f"{_LEASES}/{quote(name, safe='')}"
        if owner and not (lease := self._client.send("GET", path)).is_absent:
            there = self._client.read(lease, "get", "leases", objects.machine)
            if there.uid == owner and (there.last_seen or 0.0) >= self._client.clock - GRACE:
                return there
        # The Lease last: a later answer would make it seem old.
        uid, lease = self.machine_uid(name), self._client.send("GET", path)
        return Machine(name, uid, None if lease.is_absent else self._last_seen(lease))

    def machine_uid(self, name: str) -> str:
        return self._client.get(f"{_NODES}/{quote(name, safe='')}", "nodes", objects.uid) or ""

    def silent(self, owners: Collection[Owner]) -> Collection[Owner]:
        """Return those of these owners without a Lease, or with one of another machine, or not renewed for the grace.

        Reads the watch cache.  Returns all owners if this credential may not list Leases.
        """
        answer = self._client.send("GET", f"{_LEASES}?resourceVersion=0")
        if answer.status == 403:
            return owners
        known = self._client.read(answer, "list", "leases", objects.machines)
        return {
            (name, uid)
            for name, uid in owners
            if (one := known.get(name)) is None
            or (uid and one.uid not in ("", uid))
            or (one.last_seen or 0.0) < self._client.clock - GRACE
        }

    def controller(self, pod: str) -> str | None:
        """kubelet's credential may read the pods of its node; another one perhaps none."""
        namespace, _, name = pod.rpartition("/")
        answer = self._client.send("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        if answer.status == 403 or answer.is_absent:
            return None
        return self._client.read(answer, "get", "pods", objects.controller)

    def keep_alive(self, name: str, seconds: int, machine: str = "") -> None:  # noqa: ARG002  # its Node object has it
        """Report the node as alive for that many seconds, if kubelet does not.

        The Lease is removed with the Node object, and kubelet creates no other.  So a node with only its Node object
        deleted would be suspected.  A credential that may not write Leases skips this.  The Lease made here is removed
        with the last of the node's current blocks; a node without blocks needs none.
        """
        path = f"{_LEASES}/{quote(name, safe='')}"
        found = self._client.send("GET", path)
        if found.is_absent:
            listed = self._pages(BLOCK, objects.selector({"node": name}), resourceVersion="0") or ()
            if blocks := [one for one in listed if one.body.get("node") == name]:
                self._renew(self._client.send("POST", _LEASES, objects.lease(name, self._client.clock, blocks)))
            return
        there, is_late = found.json(), (self._last_seen(found) or 0.0) < self._client.clock - seconds / _RENEWALS
        if objects.is_of_blocks(there) and self._client.send("GET", f"{_NODES}/{quote(name, safe='')}").status == 200:
            there, is_late = objects.without_owners(there), True  # kubelet makes the Node object its owner
        if is_late:
            spec = objects.lease_spec(name, self._client.clock, there.get("spec"))
            self._renew(self._client.send("PUT", path, {**there, "spec": spec}))

    def _renew(self, answer: Answer) -> None:
        # 409: another writer renewed it; 403: this credential may not.
        if answer.status not in (403, 409):
            self._client.good(answer, "write", "leases")

    def identity(self) -> str:
        """Return the UID of the namespace kube-system, which every cluster has permanently."""
        return self._client.read(self._client.send("GET", _SYSTEM), "get", "namespaces", objects.uid)

    def now(self) -> float:
        if not self._client.clock:
            self.identity()
        return self._client.clock

    def revision(self, known: int) -> int:
        """Return the resourceVersion of the last list of blocks.

        A node lists its own blocks from the watch cache, which may be old.  If that version is below ``known``, read
        one block past the cache.  Versions of one resource are comparable numbers (kubernetes.io, "Kubernetes API
        Concepts").
        """
        if self._revision >= known:
            return self._revision
        answer = self._client.send("GET", f"{_path(BLOCK)}?limit=1")
        return min(known, self._client.read(answer, "list", _plural(BLOCK), objects.revision))

    def close(self) -> None:
        self._client.close()

    def _now(self, kind: str, selector: str) -> list[Document] | None:
        """Return the matching documents, each current; None as ``_pages``.

        The list comes from the watch cache (resourceVersion 0). A consistent list could read every object from etcd to
        find a few, for every node every ten minutes.  The cache may be old, so each document is read again.
        """
        found = self._pages(kind, selector, resourceVersion="0")
        if found is None:
            return None
        there = [self._client.send("GET", _path(kind, one.name)) for one in found]
        return [self._document(answer, "get", kind) for answer in there if not answer.is_absent]

    def _pages(self, kind: str, selector: str, **more: str) -> list[Document] | None:
        """Return all matching documents; None if the API server dropped that state before the last page.

        ``more`` holds further parameters of the first page.
        """
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {}), **more}
        found, what = list[Document](), _plural(kind)
        while True:
            path = f"{_path(kind)}?{urlencode(query)}"
            answer = self._client.send("GET", path)
            if answer.status == 410:
                return None
            before = query.get("continue", "")
            if kind == BLOCK and not found:
                self._revision = self._client.read(answer, "list", what, objects.revision)
            some, after = self._client.read(answer, "list", what, lambda page: objects.page(kind, page, before))  # noqa: B023
            found += some
            if not after:
                return found
            query = {key: value for key, value in query.items() if key not in more} | {"continue": after}

    def _document(self, answer: Answer, verb: str, kind: str) -> Document:
        return self._client.read(answer, verb, _plural(kind), lambda found: objects.document(kind, found))

    def _last_seen(self, answer: Answer) -> float | None:
        return self._client.read(answer, "get", "leases", objects.last_seen)


def opened(about: Mapping[str, Any], name: str) -> tuple[Documents, str]:
    """Return the backend and this node's name in it, by the policy file's keys.

    Raises InvalidConfig for these keys, BackendRefused without a credential.
    """
    kubeconfig, name = credentials.of_node(about, name)
    return Kubernetes(kubeconfig), name


def _why(answer: Answer, what: str) -> str:
    """Return the reason of a refusal with its remedy; empty if none is known here."""
    if answer.status == 403 and "ValidatingAdmissionPolicy" not in answer.reason:
        return f"{answer.reason}; allow it to all nodes: {_APPLY}; or bind the ClusterRole hpn-node to this user"
    if answer.status == 404 and what.endswith(GROUP):
        return f"the cluster has no such CustomResourceDefinition; make it: {_APPLY}"
    if answer.status == 400 and "unknown field" in answer.reason:
        return f"{answer.reason}; its CustomResourceDefinition is another version's: {_APPLY}"
    return ""


def _plural(kind: str) -> str:
    return f"{KINDS[kind][1]}.{GROUP}"


def _path(kind: str, name: str = "", *, changes: bool = False) -> str:
    # Strict: an unknown field is an error, instead of silently dropped.
    query = f"?fieldManager={_MANAGER}&fieldValidation=Strict" if changes else ""
    return f"/apis/{VERSION}/{KINDS[kind][1]}{'/' * bool(name)}{quote(name, safe='')}{query}"
