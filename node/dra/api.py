"""Requests of the DRA driver to the API server: this node's ResourceSlices, and claims (resource.k8s.io/v1).

For a child process, because the API server may answer late.  Each change compares first, so every request may be sent
twice.  POST fails if the name exists; PUT and DELETE fail if the object changed after the read (kubernetes.io,
"Kubernetes API Concepts").  Raises Unreachable if the API server gives no answer, StoreRefused if it refuses.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from base.protocol.errors import StoreRefused, Unreachable
from base.protocol.spec import Json
from base.state import node
from ipam.cluster.backends import backend, kubernetes, objects
from ipam.cluster.backends.credentials import Kubeconfig
from ipam.cluster.backends.http import Answer, Http
from node.dra import DRIVER, VERSION

_SLICES: Final = f"/apis/{VERSION}/resourceslices"
_NODES: Final = "/api/v1/nodes"
# Strict: an API server that does not know a field refuses the object, instead of dropping the field.
_CHANGED: Final = f"fieldManager={DRIVER}&fieldValidation=Strict"
_PAGE: Final = 16  # slices per page: half a megabyte, and ten when decoded
_RESTARTS: Final = 3
_APPLY: Final = "kubectl apply -k packaging/kubernetes/dra"
T = TypeVar("T")


class Api:
    """The API server of a kubeconfig, for the node ``node``."""

    def __init__(self, kubeconfig: Kubeconfig, node: str) -> None:
        self.node = node
        self._kubeconfig = kubeconfig
        self._http = Http([kubeconfig.server], kubeconfig.tls, kubeconfig.headers, is_patient=True)

    def close(self) -> None:
        self._http.close()

    def own_node(self) -> Json:
        """The node's object; empty if it has none."""
        answer = self._ask("GET", f"{_NODES}/{quote(self.node, safe='')}")
        return {} if objects.is_absent(answer) else self._good(answer, "get", "nodes")

    def slices(self, keep: Callable[[Json], T]) -> list[T]:
        """What ``keep`` makes of each ResourceSlice of this driver and node.  Decoded, all of a node with thousands of
        devices would take a hundred megabytes."""
        for _ in range(_RESTARTS):
            if (found := self._listed(keep)) is not None:
                return found
        raise Unreachable(f"{self._http.server} dropped the list of resourceslices before its last page")

    def create(self, made: Json) -> Json | None:
        """The slice as the API server stored it; None if its name exists."""
        answer = self._ask("POST", f"{_SLICES}?{_CHANGED}", made)
        return None if answer.status == 409 else self._good(answer, "create", "resourceslices")

    def would_store(self, made: Json) -> Json:
        """The slice as the API server would store it, without the fields of features that are off.  Its name is new."""
        answer = self._ask("POST", f"{_SLICES}?{_CHANGED}&dryRun=All", made)
        return self._good(answer, "create", "resourceslices")

    def replace(self, changed: Json) -> Json | None:
        """The slice as the API server stored it; None if another writer changed or removed it.

        ``changed`` has the name, the uid and the resourceVersion of the slice that was read.
        """
        answer = self._ask("PUT", f"{_SLICES}/{_name(changed)}?{_CHANGED}", changed)
        if answer.status == 409 or objects.is_absent(answer):
            return None
        return self._good(answer, "update", "resourceslices")

    def delete(self, there: Json) -> None:
        """Remove a slice as it was read; one that is gone or changed meanwhile is left alone."""
        about = there["metadata"]
        preconditions = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        answer = self._ask("DELETE", f"{_SLICES}/{_name(there)}", options)
        if answer.status != 409 and not objects.is_absent(answer):
            self._good(answer, "delete", "resourceslices")

    def claim(self, namespace: str, name: str) -> Json | None:
        """The ResourceClaim; None if it does not exist."""
        answer = self._ask("GET", _claim(namespace, name))
        return None if objects.is_absent(answer) else self._good(answer, "get", "resourceclaims")

    def patch_claim_status(self, namespace: str, name: str, uid: str, devices: Sequence[Json]) -> bool:
        """Set this driver's entries of a claim's ``status.devices``, and no other driver's.

        Each entry has ``driver``, ``pool`` and ``device``, and ``shareID`` if the allocation has one.  Return False if
        that claim is gone, or another one has its name.
        """
        body = {
            "apiVersion": VERSION,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": {"devices": list(devices)},
        }
        answer = self._ask("PATCH", f"{_claim(namespace, name)}/status?{_CHANGED}&force=true", body)
        if answer.status == 409 or objects.is_absent(answer):
            return False
        self._good(answer, "patch", "resourceclaims/status")
        return True

    def _listed(self, keep: Callable[[Json], T]) -> list[T] | None:
        """All slices, kept; None if the API server dropped that state before the last page (410)."""
        selector = f"spec.driver={DRIVER},spec.nodeName={self.node}"
        query, found = {"fieldSelector": selector, "limit": str(_PAGE)}, list[T]()
        while True:
            answer = self._ask("GET", f"{_SLICES}?{urlencode(query)}")
            if answer.status == 410:
                return None
            page = self._good(answer, "list", "resourceslices")
            items = page.get("items")
            for one in items if isinstance(items, list) else [None]:
                if not isinstance(one, dict) or not isinstance(one.get("spec"), dict):
                    raise self._strange("list", "resourceslices")
                about = one.get("metadata")
                if not isinstance(about, dict) or not {"name", "uid", "resourceVersion"} <= about.keys():
                    raise self._strange("list", "resourceslices")
                found.append(keep(one))
            after = str(page["metadata"].get("continue") or "")
            if not after:
                return found
            if after == query.get("continue"):  # it would be asked without end
                raise self._strange("list", "resourceslices")
            query["continue"] = after

    def _ask(self, method: str, path: str, body: Json | None = None) -> Answer:
        return self._http.ask(method, path, body, is_safe=True)

    def _good(self, answer: Answer, verb: str, what: str) -> Json:
        """The object of a successful answer.  Raises StoreRefused for any other."""
        if 200 <= answer.status < 300:
            found = answer.json()
            if not isinstance(found.get("metadata"), dict):
                raise self._strange(verb, what)
            return found
        refused = f"the API server {self._http.server} refuses to {verb} {what}: {answer.reason}"
        if answer.status == 401:
            raise StoreRefused(f"{refused}; it does not know the credential in {self._kubeconfig.path}; renew it")
        if answer.status == 403:
            raise StoreRefused(f"{refused}; allow it to the nodes: {_APPLY}")
        if answer.status == 404:
            raise StoreRefused(f"{refused}; it does not serve {VERSION}, which Kubernetes has from 1.34 on")
        raise StoreRefused(refused)

    def _strange(self, verb: str, what: str) -> StoreRefused:
        return StoreRefused(
            f"what answers at {self._http.server} is not an API server: the request was to {verb} {what}; correct the "
            f"server in {self._kubeconfig.path}"
        )


def opened(kubeconfig: str = "") -> Api:
    """The API server of ``kubeconfig``; without it that of the policy file, or else kubelet's.

    Raises InvalidConfig for wrong keys in the policy file, and StoreRefused without a credential.
    """
    about, name = node.store("kubernetes", backend.KINDS)
    return Api(*kubernetes.credential({**about, **({"kubeconfig": kubeconfig} if kubeconfig else {})}, name))


def _name(found: Json) -> str:
    return quote(str(found["metadata"]["name"]), safe="")


def _claim(namespace: str, name: str) -> str:
    return f"/apis/{VERSION}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"
