"""The gate of a claim's request: a file that a container of the request waits for, and reads as its metadata.

    /run/hpn/claims/<uid>.d/<number of the request's first device>

A CDI specification mounts it, and a runtime starts no container with a mount of a missing file.  It exists only while
all interfaces of the request are attached.  While several containers have them, it describes none's.  Its form is
KEP-5304's, in both versions, the newer one first (dynamic-resource-allocation, api/metadata).

Several containers may have a claim's interfaces at once: those of several pods, or a pod's present sandbox and one that
its runtime has lost.  So one's undo leaves the gate open for another.  Every change of a gate is under the claim's
lock, because one's ADD may run beside another's DEL.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final

from base.kernel import files
from base.kernel.gids import ROCE_V2
from base.protocol import location
from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.spec import Json
from base.state import claims, journal, locks
from base.state.claims import Claim
from base.state.locks import Lock
from base.state.record import Record

DRIVER: Final = "hpn-cni.io"
NONE: Final = "none"
_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
# Seconds that hpn node waits for a pod's command on the claim; kubelet repeats a Prepare that fails.
_SOON: Final = 1.0


def open_if_whole(claim: Claim, number: int, known: Sequence[Record] = ()) -> bool:
    """Open the gate of device ``number``'s request, if all interfaces of the request are attached.

    ``known`` records need not be searched.  Return whether the gate is open.  Raises IoFailure, InvalidConfig,
    TryAgain.
    """
    with _alone(claim.uid):
        return _open_if_whole(claim, number, lambda: chain(known, records(claim.uid)))


def _alone(uid: str, timeout: float = locks.SHARED) -> Lock:
    return journal.locked(location.state_dir(), "claim", uid, timeout)


def _open_if_whole(claim: Claim, number: int, found: Callable[[], Iterable[Record]]) -> bool:
    """``open_if_whole`` for the lock's holder, with the attachments that count."""
    first = claim.first_of_request(number)
    devices = _attached(claim, first, found)
    if devices is None:
        return False
    path = claims.gate(claim.uid, first)
    text = "".join(f"{json.dumps(_document(version, claim, first, devices))}\n" for version in _VERSIONS)
    try:
        # Below root's directory of mode 700; a container sees the file only by its mount.
        with files.open_directory(os.path.dirname(path), make=0o755) as folder:
            files.replace(folder, os.path.basename(path), text, for_containers=True)
    except OSError as e:
        raise IoFailure(f"writing {path}: {e.strerror}; it must be writable and have room") from e
    return True


def _attached(claim: Claim, first: int, found: Callable[[], Iterable[Record]]) -> list[Json] | None:
    """The metadata of the devices of the request with the first device ``first``; None if one that is awaited is not
    attached."""
    devices = list[Json]()
    for one, device in enumerate(claim.devices):
        if device.request != claim.devices[first].request:
            continue
        ours = f"{claim.uid}/{one}"
        matching = (r for r in found() if r.complete and r.claim == ours)
        attached = [] if device.attach == NONE else [*islice(matching, 1 if claim.pod_claim else None)]
        if device.is_awaited and not attached:
            return None
        about = {"driver": DRIVER, "pool": device.pool, "name": device.device}
        containers = {r.key.container_id for r in attached}
        record = attached[0] if len(containers) == 1 else None
        devices.append({**about, **_described(device.attributes, record)})
    return devices


def is_missing(claim: Claim, number: int, container: str) -> bool:
    """Whether the gate of device ``number``'s request is closed, although the container has all its interfaces."""
    if os.path.exists(claims.gate(claim.uid, claim.first_of_request(number))):
        return False
    ours = [record for record in records(claim.uid) if record.key.container_id == container]
    return _attached(claim, claim.first_of_request(number), lambda: ours) is not None


def close(attached: Collection[Record]) -> None:
    """Close the gates of a container's attachments, unless another container has all interfaces of the request.
    Raises IoFailure, InvalidConfig, TryAgain."""
    containers = {record.key.container_id for record in attached}
    numbers = dict[str, list[int]]()
    for record in attached:
        uid, _, number = record.claim.partition("/")
        numbers.setdefault(uid, []).append(int(number))
    for uid, ours in numbers.items():
        try:
            found = claims.load(uid)
            firsts = {found.first_of_request(one) for one in ours if one < len(found.devices)} if found else set()
        except RecordUnreadable:
            # DEL must succeed, and some of these are the requests'.
            found, firsts = None, {*range(max(ours) + 1)}
        if not firsts:
            continue
        with _alone(uid):
            others = [one for one in records(uid) if one.key.container_id not in containers]
            for first in firsts:
                if not (_is_anothers(found, first, others) if found else any(one.complete for one in others)):
                    _remove(claims.gate(uid, first))


def settle(claim: Claim, first: int) -> None:
    """Open the gate of the request with the first device ``first`` if all its interfaces are attached; else close it.
    Raises IoFailure, InvalidConfig; TryAgain soon, because hpn node answers no other call meanwhile."""
    with _alone(claim.uid, _SOON):
        if not _open_if_whole(claim, first, lambda: records(claim.uid)):
            _remove(claims.gate(claim.uid, first))


def _remove(path: str) -> None:
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
    except OSError as e:
        raise IoFailure(f"removing {path}: {e.strerror}; it must be writable") from e


def _is_anothers(claim: Claim, first: int, others: Sequence[Record]) -> bool:
    """Write the gate anew for another container; return whether one has the request's interfaces."""
    try:
        return _open_if_whole(claim, first, lambda: others)
    except IoFailure:
        return True  # one has, and the present file stays


def network_data(record: Record) -> Json:
    """The attachment's interface as a claim's status shows it (resource.k8s.io/v1, NetworkDeviceData)."""
    interface: Json = next(iter(record.result.get("interfaces") or ()), {})
    ips = [one["address"] for one in record.result.get("ips") or ()]
    found = {"interfaceName": record.key.ifname, "ips": ips, "hardwareAddress": interface.get("mac", "")}
    return {name: value for name, value in found.items() if value}


def records(uid: str) -> Iterator[Record]:
    """The attachments of a claim in this boot, complete or not."""
    for file, text in journal.texts(location.state_dir()):
        found = journal.decoded(file, text.body) if uid.encode() in text.body else None
        if found and found.of_this_boot and found.claim.partition("/")[0] == uid:
            yield found


def _described(attributes: Json, record: Record | None) -> Json:
    if not record:
        return {"attributes": attributes} if attributes else {}
    found = dict(attributes)
    if record.rdma_devs:
        found["rdmaDevice"] = {"string": record.rdma_devs[0]}
    # The index that programs want (NCCL_IB_GID_INDEX): RoCE v2's of the first address.
    if (index := next((one["index"] for one in record.gids if one["type"] == ROCE_V2), None)) is not None:
        found["gidIndex"] = {"int": index}
    return {"attributes": found, "networkData": network_data(record)}


def _document(version: str, claim: Claim, first: int, devices: list[Json]) -> Json:
    return {
        "apiVersion": version,
        "kind": "DeviceMetadata",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 1},
        **({"podClaimName": claim.pod_claim} if claim.pod_claim else {}),
        "requests": [{"name": claim.devices[first].request, "devices": devices}],
    }
