"""The gate of a claim's request: a file that a container of the request waits for, and reads as its metadata.

    /run/hpn/claims/<uid>.d/<number of the request's first device>

A CDI specification mounts it, and a runtime starts no container with a mount of a missing file.  It exists only while
all interfaces of the request are attached.  Its form is KEP-5304's, in both versions, the newer one first
(dynamic-resource-allocation, api/metadata).
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import files
from base.kernel.gids import ROCE_V2
from base.protocol.errors import IoFailure
from base.protocol.spec import Json
from base.state import claims, journal, places
from base.state.claims import Claim
from base.state.record import Record

DRIVER: Final = "hpn-cni.io"
NONE: Final = "none"
_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")


def open_if_whole(claim: Claim, number: int, state_dir: Path | None = None, known: Sequence[Record] = ()) -> bool:
    """Open the gate of device ``number``'s request, if all interfaces of the request are attached.

    ``state_dir`` may not be noted yet, and ``known`` records need not be searched.  Return whether the gate is open.
    Raises IoFailure, InvalidConfig.
    """
    first = claim.first_of_request(number)
    devices = list[Json]()
    for one, device in enumerate(claim.devices):
        if device.request != claim.devices[first].request:
            continue
        record = None if device.attach == NONE else _attached(claim.uid, one, state_dir, known)
        if device.attach != NONE and not record:  # guard: whole
            return False
        about = {"driver": DRIVER, "pool": device.pool, "name": device.device}
        devices.append({**about, **_described(device.attributes, record)})
    path = claims.gate(claim.uid, first)
    text = "".join(f"{json.dumps(_document(version, claim, first, devices))}\n" for version in _VERSIONS)
    try:
        # Below root's directory of mode 700; a container sees the file only by its mount.
        with files.open_directory(os.path.dirname(path), make=0o755) as folder:
            files.replace(folder, os.path.basename(path), text)
    except OSError as e:
        raise IoFailure(f"writing {path}: {e.strerror}; it must be writable and have room") from e
    return True


def close(claim: str) -> None:
    """Close the gate of a record's ``claim``: its containers start no more.  Raises IoFailure, InvalidConfig."""
    uid, _, number = claim.partition("/")
    found = claims.load(uid)
    if found and int(number) < len(found.devices):
        path = claims.gate(uid, found.first_of_request(int(number)))
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        except OSError as e:
            raise IoFailure(f"removing {path}: {e.strerror}; it must be writable") from e


def network_data(record: Record) -> Json:
    """The attachment's interface as a claim's status shows it (resource.k8s.io/v1, NetworkDeviceData)."""
    interface: Json = next(iter(record.result.get("interfaces") or ()), {})
    ips = [one["address"] for one in record.result.get("ips") or ()]
    found = {"interfaceName": record.key.ifname, "ips": ips, "hardwareAddress": interface.get("mac", "")}
    return {name: value for name, value in found.items() if value}


def records(uid: str, state_dir: Path | None = None) -> Iterator[Record]:
    """The attachments of a claim in this boot, complete or not."""
    dirs = places.state_dirs_with(state_dir) if state_dir else places.distinct_state_dirs()
    for folder in dirs:
        for file, body in journal.texts(folder):
            found = journal.decoded(file, body) if uid.encode() in body else None
            if found and found.of_this_boot and found.claim.partition("/")[0] == uid:
                yield found


def _attached(uid: str, number: int, state_dir: Path | None, known: Sequence[Record]) -> Record | None:
    found = (one for all_of in (known, records(uid, state_dir)) for one in all_of)
    return next((one for one in found if one.complete and one.claim == f"{uid}/{number}"), None)


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
