"""The claims that hpn node has prepared in this boot: which pod may have which device, and how it is attached.

    /run/hpn/claims/<uid>.json    a Claim, in durable.py's format
    /run/hpn/claims/<uid>.d/<n>   the gate of a request, by its first device's number: its metadata for containers.
                                  It exists while all interfaces of the request are attached

hpn node writes a claim before it answers kubelet, and a CNI command only reads it.  A claim of an earlier boot counts
as none: kubelet asks for each claim again after a boot.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from base.protocol.errors import InvalidConfig, IoFailure, RecordUnreadable
from base.protocol.location import CLAIMS_DIR
from base.protocol.spec import Json
from base.state import durable

FOLDER: Final = CLAIMS_DIR
_END: Final = ".json"
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Device:
    """One allocated device of a claim.

    - ``request``: the claim's request, "rails", or one of its alternatives, "rails/first".
    - ``pool``, ``device``, ``share``: its names in the ResourceSlice; ``share`` is empty for a device for one claim.
    - ``id``: the PCI or auxiliary address, or a master's interface name: Multus's deviceID.
    - ``kind``: vf, pf, sf, shared, master or accelerator.
    - ``resource``: the resource of hpn node's file, "example.com/rail0".
    - ``attach``: "multus", "chain", or "none" for a device that only has device nodes.
    - ``interface``: its name in the pod; with "multus" empty unless the claim names one.
    - ``config``: with "chain" the CNI configuration, without deviceID and master; else empty.
    - ``ips``, ``mac``: the claim's own; empty if it has none.
    - ``attributes``: what the container learns of it, in the form of a ResourceSlice's attributes.
    """

    request: str
    pool: str
    device: str
    share: str
    id: str
    kind: str
    resource: str
    attach: str
    interface: str = ""
    config: Json = field(default_factory=dict)
    ips: tuple[str, ...] = ()
    mac: str = ""
    attributes: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A prepared ResourceClaim.

    - ``pods``: the UIDs of the pods that it was reserved for when it was prepared.
    - ``boot``: the boot id.
    - ``pod_claim``: its name in the pod that it was made for by a template; else empty.
    - ``ended``: kubelet has given it up, and an attachment still uses its devices.
    """

    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...]
    devices: tuple[Device, ...]
    boot: str = field(default_factory=durable.boot_id)
    pod_claim: str = ""
    ended: bool = False

    @property
    def title(self) -> str:
        """The claim's name in a message for people."""
        return f"claim {self.namespace}/{self.name}"

    def first_of_request(self, number: int) -> int:
        """The number of the first device of the same request: its gate is that of the whole request."""
        name = self.devices[number].request
        return next(n for n, one in enumerate(self.devices) if one.request == name)

    def to_json(self) -> Json:
        """The claim as a JSON object."""
        return {**vars(self), "devices": [vars(device) for device in self.devices]}

    @classmethod
    def from_json(cls, body: Json) -> "Claim":
        """``to_json``'s inverse.  Raises KeyError, TypeError if it is not a claim."""
        devices = tuple(Device(**{**one, "ips": tuple(one["ips"])}) for one in body["devices"])
        return cls(**{**body, "pods": tuple(body["pods"]), "devices": devices})


def save(claim: Claim) -> None:
    """Put the claim on disk, in place of an earlier one of its UID.  Raises InvalidConfig, IoFailure."""
    durable.write(_file(claim.uid), claim.to_json())


def load(uid: str) -> Claim | None:
    """The prepared claim; None if there is none in this boot.  Raises InvalidConfig, RecordUnreadable, IoFailure."""
    file = _file(uid)
    text = durable.contents(file)
    return None if text is None else _parsed(text, file)


def of_pod(uid: str) -> list[Claim]:
    """The claims that were reserved for the pod, in order of their names.  Unreadable claims are passed over, and ended
    ones."""
    # guard below: of-its-pods (uid in claim.pods -> True)
    return [claim for claim in _containing(uid) if uid in claim.pods and not claim.ended]


def with_device(device_id: str) -> list[tuple[Claim, Device]]:
    """The prepared uses of a device, by ``Device.id``: several for a shared one.  Unreadable claims are passed over."""
    return [(claim, one) for claim in _containing(device_id) for one in claim.devices if one.id == device_id]


def of_record(named: str) -> tuple[Claim, Device] | None:
    """The claim and device of an attachment (Record.claim); None if the claim is not prepared, or is unreadable."""
    uid, _, number = named.partition("/")
    with suppress(InvalidConfig, IoFailure, RecordUnreadable, ValueError, IndexError):
        if claim := load(uid):
            return claim, claim.devices[int(number)]
    return None


def all_claims() -> list[Claim]:
    """All prepared claims, in order of their names.  Unreadable claims are passed over."""
    return _containing("")


def forget(uid: str) -> None:
    """Remove the claim with its gates, if it exists.  Raises InvalidConfig, IoFailure."""
    file = _file(uid)
    folder = f"{file.removesuffix(_END)}.d"
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)  # noqa: PTH106  # making a Path takes longer
    except FileNotFoundError:
        pass
    except OSError as e:
        raise IoFailure(f"removing {folder}: {e.strerror}; the state directory must be writable") from e
    durable.remove(file)


def gate(uid: str, number: int) -> str:
    """The path of the gate of the request with the first device ``number``.  Raises InvalidConfig."""
    return f"{_file(uid).removesuffix(_END)}.d/{number}"


def _file(uid: str) -> str:
    if not _UID.fullmatch(uid):  # guard: uid-is-no-path
        raise InvalidConfig(f"claim UID {uid!r} is not a UUID in lower case, as Kubernetes makes them")
    return f"{FOLDER}/{uid}{_END}"


def _containing(text: str) -> list[Claim]:
    # Most claims are not decoded: a node may have hundreds, and an ADD needs those of one pod.
    return sorted(_claims(durable.canonical(text)[1:-1].encode()), key=lambda claim: (claim.namespace, claim.name))


def _claims(text: bytes) -> Iterator[Claim]:
    try:
        names = os.listdir(FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        uid = name.removesuffix(_END)
        if uid != name and _UID.fullmatch(uid):
            with suppress(IoFailure, RecordUnreadable):
                contents = durable.contents(f"{FOLDER}/{name}") or b""
                if text in contents and (claim := _parsed(contents, f"{FOLDER}/{name}")):
                    yield claim


def _parsed(text: bytes, file: str) -> Claim | None:
    claim = _decoded(text, file)
    return claim if claim.boot == durable.boot_id() else None  # guard: of-this-boot = claim


@lru_cache(32)  # a command of a pod reads its claims for each of their devices
def _decoded(text: bytes, file: str) -> Claim:
    try:
        claim = Claim.from_json(durable.parsed(text, file))
    except (TypeError, KeyError) as e:
        raise RecordUnreadable(f"{file} lacks members of a prepared claim: {e!r}") from e
    if _file(claim.uid) != file:  # guard: its-own-file
        raise RecordUnreadable(f"{file} is the file of another claim, {claim.uid}")
    return claim
