"""Convert the API server's objects to documents, and build and read its Leases.  Pure; answers are untrusted.

Every function that reads an answer raises ValueError, with the reason, for one that no API server gives.
"""

import hashlib
import re
from calendar import timegm
from collections.abc import Iterable, Mapping
from time import gmtime, strftime, strptime
from typing import Final

from base.protocol.spec import Json
from ipam.cluster import BLOCK, POOL, Document, Machine
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import objects, shown, text, typed

GROUP: Final = "hpn-cni.io"
VERSION: Final = f"{GROUP}/v1"
# Each kind's name in an object, and in a path.
KINDS: Final = {POOL: ("HpnPool", "hpnpools"), BLOCK: ("HpnBlock", "hpnblocks")}
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def build(kind: str, metadata: Json, names: Mapping[str, str], body: Json) -> Json:
    """Return the object of a document, labelled with these names."""
    metadata = {**metadata, "labels": labels(names)}
    return {"apiVersion": VERSION, "kind": KINDS[kind][0], "metadata": metadata, "spec": body}


def labels(names: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that select documents."""
    return {f"{GROUP}/{key}": _label(name) for key, name in names.items()}


def selector(names: Mapping[str, str]) -> str:
    """Return the selector of the objects with these labels, also of the reserved numbers that an older version labelled
    with a digest."""
    return ",".join(
        f"{GROUP}/{key} in ({_label(name)},{_digest(name)})" if "/" in name else f"{GROUP}/{key}={_label(name)}"
        for key, name in names.items()
    )


def _label(name: str) -> str:
    """Return the name as a label's value, or a digest of an unfit name (kubernetes.io, "Labels and Selectors").

    A network's reserved numbers, NETWORK/sticky, have the label NETWORK.sticky.
    """
    name = name.replace("/", ".")
    return name if _LABEL.fullmatch(name) else _digest(name)


def _digest(name: str) -> str:
    return f"x{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def document(kind: str, found: Json) -> Document:
    name, uid, version = (_named(_metadata(found), key) for key in ("name", "uid", "resourceVersion"))
    return Document(kind, name, typed(found, "spec", dict), uid, version)


def page(kind: str, found: Json, before: str) -> tuple[list[Document], str]:
    """Return a page's documents, and the token of the next page, empty after the last; ``before`` is this page's
    token."""
    after = (found.get("metadata") and _metadata(found).get("continue")) or ""
    if not isinstance(after, str) or (after and after == before):  # it would be asked without end
        raise ValueError(f"continue is {shown(after)}")
    return [document(kind, item) for item in objects(found, "items")], after


def revision(found: Json) -> int:
    """Return the list's resourceVersion; 0 if it is not a number."""
    metadata = found.get("metadata")
    return ownership.change_count(metadata.get("resourceVersion")) if isinstance(metadata, dict) else 0


def uid(found: Json) -> str:
    return _named(_metadata(found), "uid")


def controller(pod: Json) -> str:
    """Return the kind of the pod's controller; empty for none."""
    owners = objects(_metadata(pod), "ownerReferences")
    return next((text(one, "kind") for one in owners if one.get("controller") is True), "")


def _metadata(found: Json) -> Json:
    return typed(found, "metadata", dict)


def _named(metadata: Json, key: str) -> str:
    if not text(metadata, key):
        raise ValueError(f"{key} is empty")
    return text(metadata, key)


def last_seen(lease: Json) -> float | None:
    """Return when the Lease was last written, by the API server's clock; None if unknown.

    Its renewTime is by the node's clock, which may be wrong by years.
    """
    times = [_seconds(time) for one in objects(_metadata(lease), "managedFields") if (time := one.get("time"))]
    spec = lease.get("spec")
    if not times and isinstance(spec, dict) and spec.get("renewTime"):
        times = [_seconds(spec["renewTime"])]
    return max(times, default=None)


def machines(found: Json) -> dict[str, Machine]:
    """Return each node by name, from a list of Leases."""
    return {one.name: one for one in map(machine, objects(found, "items"))}


def machine(lease: Json) -> Machine:
    """Return the node of that Lease.

    kubelet makes its Node object the owner of its Lease; the UID is empty without such an owner.
    """
    metadata = _metadata(lease)
    uids = [text(owner, "uid") for owner in objects(metadata, "ownerReferences") if owner.get("kind") == "Node"]
    return Machine(_named(metadata, "name"), uids[0] if len(uids) == 1 else "", last_seen(lease))


def lease(name: str, now: float, blocks: Iterable[Document]) -> Json:
    """Return the Lease of a live node with these blocks; garbage collection removes it with the last of them."""
    kind = {"apiVersion": VERSION, "kind": KINDS[BLOCK][0]}
    metadata = {"name": name, "ownerReferences": [{**kind, "name": one.name, "uid": one.uid} for one in blocks]}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": lease_spec(name, now),
    }


def is_of_blocks(found: Json) -> bool:
    """Whether blocks own that Lease."""
    owners = _metadata(found).get("ownerReferences")
    return isinstance(owners, list) and any(
        one.get("kind") == KINDS[BLOCK][0] for one in owners if isinstance(one, dict)
    )


def without_owners(found: Json) -> Json:
    return {**found, "metadata": {key: value for key, value in _metadata(found).items() if key != "ownerReferences"}}


def lease_spec(name: str, now: float, before: object = None) -> Json:
    """Return a Lease's spec for a live node; ``before`` is its former spec.

    kubelet only renews the time, also in a Lease of ours, so the other fields are set as kubelet sets them.
    """
    renewed = strftime("%Y-%m-%dT%H:%M:%S.000000Z", gmtime(now))
    spec = before if isinstance(before, dict) else {}
    return {"holderIdentity": name, "leaseDurationSeconds": 40, **spec, "renewTime": renewed}


def _seconds(time: object) -> float:
    """Return an API server's time (RFC 3339, always UTC) in seconds since 1970."""
    if not isinstance(time, str) or not _TIME.match(time):
        raise ValueError(f"time is {shown(time)}, not a time of RFC 3339")
    try:
        return float(timegm(strptime(time[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError as e:
        raise ValueError(f"time is {shown(time)}, not a time of RFC 3339") from e
