"""Requests of the DRA driver to the API server: this node's ResourceSlices, and claims (resource.k8s.io/v1).

For a child process, because the API server may answer late.  Each change compares first, so every request may be sent
twice.  POST fails if the name exists; PUT and DELETE fail if the object changed after the read (kubernetes.io,
"Kubernetes API Concepts").  Raises Unreachable if the API server gives no answer, BackendRefused if it refuses.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from base.kubernetes import credentials
from base.kubernetes.client import Client
from base.kubernetes.credentials import Kubeconfig
from base.kubernetes.http import Answer
from base.protocol.spec import Json
from base.state import policy
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
        self.node, self.url, self.whom = node, kubeconfig.server, (kubeconfig, node)
        self._client = Client(kubeconfig, _why, is_patient=True, patience=PATIENCE)

    def close(self) -> None:
        self._client.close()

    def own_node(self) -> Json:
        """The node's object; empty if it has none."""
        return self._client.get(f"{_NODES}/{quote(self.node, safe='')}", "nodes", _object) or {}

    def slices(self, since: str = "") -> list[Json]:
        """The metadata of each ResourceSlice of this driver and node: as it is now, or at least as new as ``since``, a
        resourceVersion.

        The API server can answer the latter from its own memory.  From etcd it reads the slices of all nodes, with a
        limit each time, else if etcd is older than 3.5.13.
        """
        query = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self.node}"}
        query |= {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"} if since else {}
        answer = self._client.send("GET", f"{_SLICES}?{urlencode(query)}", accept=_METADATA.format("List"))
        return self._client.read(answer, "list", "resourceslices", _slices)

    def slice(self, name: str) -> Json | None:
        """The ResourceSlice; None if it does not exist."""
        return self._client.get(f"{_SLICES}/{quote(name, safe='')}", "resourceslices", _slice)

    def create(self, made: Json) -> Json | None:
        """The metadata of the slice as the API server stored it; None if its name exists."""
        answer = self._client.send("POST", f"{_SLICES}?{_CHANGED}", made, _METADATA.format(""))
        return (
            self._of_earlier(answer, made)
            if answer.status == 409
            else self._client.read(answer, "create", "resourceslices", _stored)
        )

    def would_store(self, made: Json) -> Json:
        """The slice as the API server would store it, without the fields of features that are off.  Its name is new."""
        answer = self._client.send("POST", f"{_SLICES}?{_CHANGED}&dryRun=All", made)
        return self._client.read(answer, "create", "resourceslices", _object)

    def replace(self, changed: Json) -> Json | None:
        """The metadata of the slice as the API server stored it; None if another writer changed or removed it.

        ``changed`` has the name, the uid and the resourceVersion of the slice that was read.
        """
        answer = self._client.send("PUT", f"{_SLICES}/{_name(changed)}?{_CHANGED}", changed, _METADATA.format(""))
        if answer.status == 409 or answer.is_absent:
            return self._of_earlier(answer, changed)
        return self._client.read(answer, "update", "resourceslices", _stored)

    def delete(self, there: Json) -> None:
        """Remove a slice as it was read; one that is gone or changed meanwhile is left alone."""
        about = there["metadata"]
        self._client.delete(f"{_SLICES}/{_name(there)}", "resourceslices", about["uid"], about["resourceVersion"])

    def claim(self, namespace: str, name: str) -> Json | None:
        """The ResourceClaim; None if it does not exist."""
        return self._client.get(_claim(namespace, name), "resourceclaims", _object)

    def pods_with_claims(self) -> set[str]:
        """The pods of all nodes that have a claim for a device of this driver, as "namespace/name".  A Kubernetes
        without claims has none."""
        return {pod for claim in self._client.listed(f"/apis/{VERSION}/resourceclaims") for pod in _pods(claim)}

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
        answer = self._client.send("PATCH", f"{_claim(namespace, name)}/status?{_CHANGED}&force=true", body)
        if answer.status == 409 or answer.is_absent:
            return False
        self._client.read(answer, "patch", "resourceclaims/status", _object)
        return True

    def _of_earlier(self, answer: Answer, sent: Json) -> Json | None:
        """The metadata of a slice that an earlier sending of this request has stored; None if there is none."""
        found = self.slice(str(sent["metadata"]["name"])) if answer.again else None
        return found["metadata"] if found and found["spec"] == sent["spec"] else None


def opened(kubeconfig: str = "", of_pod: Mapping[str, str] = os.environ) -> Api:
    """The API server of ``kubeconfig``; without it that of the policy file, or else kubelet's.  ``of_pod`` is the
    environment of the pod whose service account a directory holds.

    Raises InvalidConfig for wrong keys in the policy file, and BackendRefused without a credential.
    """
    return Api(*credential(kubeconfig, of_pod))


def kept(kubeconfig: str) -> Api:
    """As ``opened``, with the connection of this process's last call, if that had the same credential."""
    global _kept  # noqa: PLW0603  # of the process
    whom = credential(kubeconfig)
    if not _kept or _kept.whom != whom:
        _kept = Api(*whom)
    return _kept


_kept: Api | None = None


def credential(kubeconfig: str = "", of_pod: Mapping[str, str] = os.environ) -> tuple[Kubeconfig, str]:
    """The credential of ``opened``, and the node's name.  Raises as ``opened``."""
    about, name = policy.backend("kubernetes")
    return credentials.of_node({**about, **({"kubeconfig": kubeconfig} if kubeconfig else {})}, name, of_pod)


def _why(answer: Answer, _: str) -> str:
    remedies = {
        403: f"allow it to the nodes: {_APPLY}",
        404: f"it does not serve {VERSION}, which Kubernetes has from 1.34 on",
    }
    return f"{answer.reason}; {remedies[answer.status]}" if answer.status in remedies else ""


def _object(found: Json) -> Json:
    """The object of an answer.  This and the next three raise ValueError for one that no API server gives."""
    if not isinstance(found.get("metadata"), dict):
        raise ValueError("there is no metadata")
    return found


def _stored(found: object) -> Json:
    """The metadata of an object that the API server has stored."""
    about = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(about, dict) or not {"name", "uid", "resourceVersion"} <= about.keys():
        raise ValueError("there is no metadata of a stored object")
    return about


def _slice(found: Json) -> Json:
    if not isinstance(found.get("spec"), dict) or not _stored(found):
        raise ValueError("there is no spec")
    return found


def _slices(found: Json) -> list[Json]:
    """The metadata of each object of a list."""
    items = _object(found).get("items", 0)
    if not isinstance(items, list | None):  # Go's empty list is null
        raise ValueError("there is no list")
    return [*map(_stored, items or ())]


def _pods(claim: Json) -> Iterator[str]:
    """The pods of a claim; none if it is for other drivers' devices."""
    status = claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    if any(one.get("driver") == DRIVER for one in devices.get("results") or ()):
        for one in status.get("reservedFor") or ():
            yield f"{claim['metadata']['namespace']}/{one['name']}"


def _name(found: Json) -> str:
    return quote(str(found["metadata"]["name"]), safe="")


def _claim(namespace: str, name: str) -> str:
    return f"/apis/{VERSION}/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"
