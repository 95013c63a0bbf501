"""The API server's objects as documents, and its Leases.  Pure: what comes may be anybody's.

Every function that reads an answer raises ValueError for one that no API server gives; it says what is strange.
"""

import hashlib
import re
from calendar import timegm
from collections.abc import Iterable, Mapping
from time import gmtime, strftime, strptime
from typing import Final

from base.protocol.spec import Json
from ipam.cluster import BLOCK, GRID, Document
from ipam.cluster.backends.http import Answer
from ipam.cluster.rules import ownership
from ipam.cluster.rules.documents import shown, text

GROUP: Final = "hpn-cni.io"
VERSION: Final = f"{GROUP}/v1"
# Of each kind: its name in an object, and in a path.
KINDS: Final = {GRID: ("HpnGrid", "hpngrids"), BLOCK: ("HpnBlock", "hpnblocks")}
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def made(kind: str, metadata: Json, names: Mapping[str, str], body: Json) -> Json:
    """The object of a document, labelled with these names."""
    metadata = {**metadata, "labels": labels(names)}
    return {"apiVersion": VERSION, "kind": KINDS[kind][0], "metadata": metadata, "spec": body}


def labels(names: Mapping[str, str]) -> dict[str, str]:
    """The labels by which documents are selected."""
    return {f"{GROUP}/{key}": _label(name) for key, name in names.items()}


def selector(names: Mapping[str, str]) -> str:
    """What selects the objects that are labelled with these names."""
    return ",".join(f"{key}={value}" for key, value in labels(names).items())


def _label(name: str) -> str:
    """The name as a label's value; a digest of one that cannot be (kubernetes.io, "Labels and Selectors")."""
    return name if _LABEL.fullmatch(name) else f"x{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def document(kind: str, found: Json) -> Document:
    """The document that the object is."""
    texts = [_named(_metadata(found), key) for key in ("name", "uid", "resourceVersion")]
    body = found.get("spec")
    if not isinstance(body, dict):
        raise ValueError(f"{texts[0]} has spec {shown(body)}, which is no object")
    return Document(kind, texts[0], body, texts[1], texts[2])


def page(kind: str, found: Json, before: str) -> tuple[list[Document], str]:
    """The documents of a page, and how to ask for the next; empty after the last.  ``before`` is how this one was asked
    for."""
    items = _items(found)
    after = (found.get("metadata") and _metadata(found).get("continue")) or ""
    # guard below: no-page-again (after and after)
    if not isinstance(after, str) or (after and after == before):  # it would be asked without end
        raise ValueError(f"continue is {shown(after)}")
    return [document(kind, item) for item in items], after


def revision(found: Json) -> int:
    """How far the store was when it answered with that list; 0 if it does not say so in a number."""
    metadata = found.get("metadata")
    return ownership.change_count(metadata.get("resourceVersion")) if isinstance(metadata, dict) else 0


def _items(found: Json) -> list[Json]:
    items = found.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"items is {shown(items)}, which is no list of objects")
    return items


def uid(found: Json) -> str:
    """Which object it is, and no other of its name."""
    return _named(_metadata(found), "uid")


def _metadata(found: Json) -> Json:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is {shown(metadata)}, which is no object")
    return metadata


def _named(metadata: Json, key: str) -> str:
    if not text(metadata, key):
        raise ValueError(f"{key} is empty")
    return text(metadata, key)


def is_absent(answer: Answer) -> bool:
    """Whether there is no such object; without its CustomResourceDefinition the answer is 404 too, and no Status."""
    found = answer.json() if answer.status == 404 else {}
    details = found.get("details")
    # guard below: no-kind-is-not-free = answer.status == 404 or isinstance(details, dict) and bool(details.get("name"))
    return found.get("reason") == "NotFound" and isinstance(details, dict) and bool(details.get("name"))


def last_seen(lease: Json) -> float | None:
    """When the node was heard of, by the API server's clock: when it has last written the Lease.

    What the Lease itself says (renewTime) is the node's clock, which may be wrong by years.
    """
    managers = _metadata(lease).get("managedFields") or ()
    if not isinstance(managers, list | tuple):
        raise ValueError(f"managedFields is {shown(managers)}, which is no list")
    times = [_seconds(time) for one in managers if isinstance(one, dict) and (time := one.get("time"))]
    spec = lease.get("spec")
    if not times and isinstance(spec, dict) and spec.get("renewTime"):  # guard: stores-clock (times)
        times = [_seconds(spec["renewTime"])]
    return max(times, default=None)


def heard_of(found: Json) -> dict[str, float | None]:
    """When each node was heard of, by its name, of a list of Leases."""
    return {_named(_metadata(lease), "name"): last_seen(lease) for lease in _items(found)}


def lease(name: str, now: float, blocks: Iterable[Document]) -> Json:
    """The Lease of a node that lives and has these blocks; it goes with the last of them."""
    kind = {"apiVersion": VERSION, "kind": KINDS[BLOCK][0]}
    metadata = {"name": name, "ownerReferences": [{**kind, "name": one.name, "uid": one.uid} for one in blocks]}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": alive(name, now)}


def is_of_blocks(found: Json) -> bool:
    """Whether that Lease goes with blocks."""
    owners = _metadata(found).get("ownerReferences")
    return isinstance(owners, list) and any(
        one.get("kind") == KINDS[BLOCK][0] for one in owners if isinstance(one, dict)
    )


def let_go(found: Json) -> Json:
    """That Lease as nobody's."""
    return {**found, "metadata": {key: value for key, value in _metadata(found).items() if key != "ownerReferences"}}


def alive(name: str, now: float, before: object = None) -> Json:
    """What a Lease says of a node that lives; ``before`` is what it said.  The rest is kubelet's, which renews the time
    and nothing else, also of a Lease that we have made: so that is made as kubelet makes it."""
    told = strftime("%Y-%m-%dT%H:%M:%S.000000Z", gmtime(now))
    spec = before if isinstance(before, dict) else {}
    return {"holderIdentity": name, "leaseDurationSeconds": 40, **spec, "renewTime": told}


def _seconds(time: object) -> float:
    """A time of the API server's (RFC 3339, always UTC) in seconds since 1970."""
    if not isinstance(time, str) or not _TIME.match(time):
        raise ValueError(f"time is {shown(time)}, which is no time of RFC 3339")
    try:
        return float(timegm(strptime(time[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError as e:
        raise ValueError(f"time is {shown(time)}, which is no time of RFC 3339") from e
