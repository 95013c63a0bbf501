"""Requests of the DRA driver to the API server: this node's ResourceSlices, and claims (resource.k8s.io/v1).

For a child process, because the API server may answer late.  Each change compares first, so every request may be sent
twice.  POST fails if the name exists; PUT and DELETE fail if the object changed after the read (kubernetes.io,
"Kubernetes API Concepts").  Raises Unreachable if the API server gives no answer, BackendRefused if it refuses.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from base.protocol.errors import BackendRefused
from base.protocol.spec import Json
from base.state import policy
from ipam.cluster.backends import backend, credentials
from ipam.cluster.backends.credentials import Kubeconfig
from ipam.cluster.backends.http import Answer, Http
from node.dra import DRIVER, VERSION

_SLICES: Final = f"/apis/{VERSION}/resourceslices"
_NODES: Final = "/api/v1/nodes"
# Strict: an API server that does not know a field refuses the object, instead of dropping the field.
_CHANGED: Final = f"fieldManager={DRIVER}&fieldValidation=Strict"
# Objects with their metadata only: a slice has up to 40 kB (kubernetes.io, "Kubernetes API Concepts").
_METADATA: Final = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io,application/json"
# Seconds for one answer.  API Priority and Fairness may queue a request for 15, and an election in etcd takes some.
PATIENCE: Final = 20.0
_APPLY: Final = "kubectl apply -k packaging/kubernetes/dra"


class Api:
    """The API server of a kubeconfig, for the node ``node``."""

    def __init__(self, kubeconfig: Kubeconfig, node: str) -> None:
        self.node, self.url = node, kubeconfig.server
        self._kubeconfig = kubeconfig
        self._http = Http([kubeconfig.server], kubeconfig.tls, kubeconfig.headers, is_patient=True, patience=PATIENCE)

    def close(self) -> None:
        self._http.close()

    def own_node(self) -> Json:
        """The node's object; empty if it has none."""
        answer = self._ask("GET", f"{_NODES}/{quote(self.node, safe='')}")
        return {} if answer.is_absent else self._good(answer, "get", "nodes")

    def slices(self, since: str = "") -> list[Json]:
        """The metadata of each ResourceSlice of this driver and node: as it is now, or at least as new as ``since``, a
        resourceVersion.

        The API server can answer the latter from its own memory.  From etcd it reads the slices of all nodes, with a
        limit each time, else if etcd is older than 3.5.13.
        """
        query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self.node}"}
        query |= {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"} if since else {}
        answer = self._ask("GET", f"{_SLICES}?{urlencode(query)}", accept=_METADATA.format("List"))
        items = self._good(answer, "list", "resourceslices").get("items", 0)
        found = list[Json]()
        for one in [] if items is None else items if isinstance(items, list) else [None]:  # Go's empty list is null
            about = one.get("metadata") if isinstance(one, dict) else None
            if not isinstance(about, dict) or not _is_stored(about):
                raise self._strange("list", "resourceslices")
            found.append(about)
        return found

    def slice(self, name: str) -> Json | None:
        """The ResourceSlice; None if it does not exist."""
        answer = self._ask("GET", f"{_SLICES}/{quote(name, safe='')}")
        if answer.is_absent:
            return None
        found = self._good(answer, "get", "resourceslices")
        if not isinstance(found.get("spec"), dict) or not _is_stored(found["metadata"]):
            raise self._strange("get", "resourceslices")
        return found

    def create(self, made: Json) -> Json | None:
        """The metadata of the slice as the API server stored it; None if its name exists."""
        answer = self._ask("POST", f"{_SLICES}?{_CHANGED}", made, _METADATA.format(""))
        return self._of_earlier(answer, made) if answer.status == 409 else self._stored(answer, "create")

    def would_store(self, made: Json) -> Json:
        """The slice as the API server would store it, without the fields of features that are off.  Its name is new."""
        answer = self._ask("POST", f"{_SLICES}?{_CHANGED}&dryRun=All", made)
        return self._good(answer, "create", "resourceslices")

    def replace(self, changed: Json) -> Json | None:
        """The metadata of the slice as the API server stored it; None if another writer changed or removed it.

        ``changed`` has the name, the uid and the resourceVersion of the slice that was read.
        """
        answer = self._ask("PUT", f"{_SLICES}/{_name(changed)}?{_CHANGED}", changed, _METADATA.format(""))
        if answer.status == 409 or answer.is_absent:
            return self._of_earlier(answer, changed)
        return self._stored(answer, "update")

    def delete(self, there: Json) -> None:
        """Remove a slice as it was read; one that is gone or changed meanwhile is left alone."""
        about = there["metadata"]
        preconditions = {"uid": about["uid"], "resourceVersion": about["resourceVersion"]}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        answer = self._ask("DELETE", f"{_SLICES}/{_name(there)}", options)
        if answer.status != 409 and not answer.is_absent:
            self._good(answer, "delete", "resourceslices")

    def claim(self, namespace: str, name: str) -> Json | None:
        """The ResourceClaim; None if it does not exist."""
        answer = self._ask("GET", _claim(namespace, name))
        return None if answer.is_absent else self._good(answer, "get", "resourceclaims")

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
        if answer.status == 409 or answer.is_absent:
            return False
        self._good(answer, "patch", "resourceclaims/status")
        return True

    def _ask(self, method: str, path: str, body: Json | None = None, accept: str = "application/json") -> Answer:
        return self._http.ask(method, path, body, is_safe=True, accept=accept)

    def _of_earlier(self, answer: Answer, sent: Json) -> Json | None:
        """The metadata of a slice that an earlier sending of this request has stored; None if there is none."""
        found = self.slice(str(sent["metadata"]["name"])) if answer.again else None
        return found["metadata"] if found and found["spec"] == sent["spec"] else None

    def _stored(self, answer: Answer, verb: str) -> Json:
        """The metadata of a successful answer.  Raises BackendRefused."""
        about: Json = self._good(answer, verb, "resourceslices")["metadata"]
        if not _is_stored(about):
            raise self._strange(verb, "resourceslices")
        return about

    def _good(self, answer: Answer, verb: str, what: str) -> Json:
        """The object of a successful answer.  Raises BackendRefused for any other."""
        if 200 <= answer.status < 300:
            found = answer.json()
            if not isinstance(found.get("metadata"), dict):
                raise self._strange(verb, what)
            return found
        refused = f"the API server {self._http.server} refuses to {verb} {what}: {answer.reason}"
        if answer.status == 401:
            raise BackendRefused(f"{refused}; it does not know the credential in {self._kubeconfig.path}; renew it")
        if answer.status == 403:
            raise BackendRefused(f"{refused}; allow it to the nodes: {_APPLY}")
        if answer.status == 404:
            raise BackendRefused(f"{refused}; it does not serve {VERSION}, which Kubernetes has from 1.34 on")
        raise BackendRefused(refused)

    def _strange(self, verb: str, what: str) -> BackendRefused:
        return BackendRefused(
            f"what answers at {self._http.server} is not an API server: the request was to {verb} {what}; correct the "
            f"server in {self._kubeconfig.path}"
        )


def opened(kubeconfig: str = "", of_pod: Mapping[str, str] = os.environ) -> Api:
    """The API server of ``kubeconfig``; without it that of the policy file, or else kubelet's.  ``of_pod`` is the
    environment of the pod whose service account a directory holds.

    Raises InvalidConfig for wrong keys in the policy file, and BackendRefused without a credential.
    """
    about, name = policy.backend("kubernetes", backend.KINDS)
    return Api(*credentials.of_node({**about, **({"kubeconfig": kubeconfig} if kubeconfig else {})}, name, of_pod))


def _is_stored(about: Json) -> bool:
    """Whether it is the metadata of an object that the API server has stored."""
    return {"name", "uid", "resourceVersion"} <= about.keys()


def _name(found: Json) -> str:
    return quote(str(found["metadata"]["name"]), safe="")


def _claim(namespace: str, name: str) -> str:
    return f"/apis/{VERSION}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"
