"""The claims that hpn node has prepared in this boot: which pod may have which device, and how it is attached.

    /run/hpn/claims/<uid>.json    a Claim, in durable.py's format
    /run/hpn/claims/<uid>.d/<n>   the gate of a request, by its first device's number: its metadata for containers.
                                  It exists while all interfaces of the request are attached

hpn node writes a claim before it answers kubelet, and a CNI command only reads it.  A claim of an earlier boot counts
as none, and hpn node removes it at its start.  kubelet asks for each claim again after a boot.

What decides who may have a device never counts an unreadable file as no claim.  So ``of_pod``, ``with_device``,
``allocated`` and ``prepared`` raise IoFailure, or RecordUnreadable for a damaged file that may concern the caller.  The
others pass over unreadable claims.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from base.kernel import files
from base.protocol.errors import InvalidConfig, IoFailure, RecordUnreadable
from base.protocol.location import CLAIMS_DIR, KUBELET
from base.protocol.spec import Json
from base.state import durable, remembered

FOLDER: Final = CLAIMS_DIR
# kubelet's file of claims and their pods, written before a pod's first ADD (kubernetes: pkg/kubelet/cm/dra/state).
_KUBELETS: Final = "dra_manager_state"
_MOST: Final = 1 << 26  # bytes of it
_END: Final = ".json"
# In the file of a claim that no template made, so any number of pods may name it.
_NAMED: Final = b'"pod_claim":""'
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class ClaimedDevice:
    """One allocated device of a claim.

    - ``request``: the claim's request, "rails", or one of its alternatives, "rails/first".
    - ``pool``, ``device``, ``share``: its names in the ResourceSlice; ``share`` is empty for a device for one claim.
    - ``id``: the PCI or auxiliary address, or a master's interface name: Multus's deviceID.
    - ``kind``: vf, pf, sf, shared, master or accelerator.
    - ``resource``: the resource of hpn node's file, "example.com/rail0".
    - ``attach``: "multus", "chain", or "none" for a device that only has device nodes.
    - ``waits``: whether containers wait for an interface; false if the pod may do without one.
    - ``interface``: its name in the pod; empty unless the claim names one.
    - ``config``: with "chain" the CNI configuration, without deviceID and master; else empty.
    - ``ips``, ``mac``: the claim's own; empty if it has none.
    - ``admin``: it is only observed (adminAccess), so other claims may have it too.
    - ``attributes``: what the container learns of it, in the form of a ResourceSlice's attributes.
    - ``nodes``: the device nodes that its containers get.
    - ``info``: what their environment has of it, by bus address and provider (node/offer/needs.py).
    - ``memlock``: the limit of locked memory that the DeviceClass or the device file states; else empty.
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
    admin: bool = False
    attributes: Json = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    waits: bool = True
    info: Json = field(default_factory=dict)
    memlock: int | str = ""  # base/protocol/memlock.py

    @property
    def is_awaited(self) -> bool:
        """Whether containers wait until the device's interface is attached."""
        return self.waits and self.attach != "none"

    @property
    def is_shared(self) -> bool:
        """Whether other pods may use it too, as a master."""
        return self.kind in ("master", "shared")


@dataclass(frozen=True)
class Claim:
    """A prepared ResourceClaim.

    - ``pods``: the UIDs of the pods that it was reserved for when it was prepared.
    - ``boot``: the boot id.
    - ``pod_claim``: its name in the pod that it was made for by a template; else empty.
    - ``ended``: kubelet has given it up, and an attachment still uses its devices.
    - ``kubelet``: the directory of the kubelet that had it prepared.
    """

    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...]
    devices: tuple[ClaimedDevice, ...]
    boot: str = field(default_factory=durable.boot_id)
    pod_claim: str = ""
    ended: bool = False
    kubelet: str = KUBELET

    @property
    def own(self) -> list[ClaimedDevice]:
        """The devices that the claim has, without those that it only observes."""
        return [device for device in self.devices if not device.admin]

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
        return {**vars(self), "devices": [_without_rare(vars(device)) for device in self.devices]}

    @classmethod
    def from_json(cls, body: Json) -> "Claim":
        """``to_json``'s inverse.  Raises KeyError, TypeError if it is not a claim."""
        devices = tuple(
            ClaimedDevice(**{**one, "ips": tuple(one["ips"]), "nodes": tuple(one.get("nodes", ()))})
            for one in body["devices"]
        )
        return cls(**{**body, "pods": tuple(body["pods"]), "devices": devices})


def _without_rare(device: Json) -> Json:
    """The members without an empty one that earlier versions do not know: they can read all other claims."""
    return {name: value for name, value in device.items() if value or name != "memlock"}


def save(claim: Claim) -> None:
    """Put the claim on disk, in place of an earlier one of its UID.  Raises InvalidConfig, IoFailure."""
    durable.write(_file(claim.uid), claim.to_json())


def load(uid: str) -> Claim | None:
    """The prepared claim; None if there is none in this boot.  Raises InvalidConfig, RecordUnreadable, IoFailure."""
    file = _file(uid)
    text = durable.contents(file)
    return None if text is None else _parsed(text, file)


def of_pod(uid: str) -> list[Claim]:
    """The claims that the pod uses, in order of their names, without ended ones.  Raises IoFailure, RecordUnreadable.

    A claim was reserved for the pod at Prepare, or the pod came later: kubelet has it prepared once, for all pods.
    """
    there, text = list(_contents(decides=True)), _encoded(uid)
    named = (one for one in there if _NAMED in one[1])
    kubelet = next((claim.kubelet for one in named for claim in _decoded_of([one])), "")
    later = _of_kubelet(uid, kubelet) if kubelet else set()
    found = _decoded_of((one for one in there if text in one[1] or _uid_of(one[0]) in later), decides=True)
    ours = [claim for claim in found if uid in claim.pods or (not claim.pod_claim and claim.uid in later)]
    return [claim for claim in ours if not claim.ended]


def with_device(device_id: str) -> list[tuple[Claim, int]]:
    """The prepared uses of a device by ``Device.id``, each a claim and a number of its devices: several for a shared
    one.  Without devices that a claim only observes.  Raises IoFailure, RecordUnreadable."""
    text = _encoded(device_id)
    found = _decoded_of((one for one in _contents(decides=True) if text in one[1]), decides=True)
    return [
        (claim, number)
        for claim in found
        for number, one in enumerate(claim.devices)
        if one.id == device_id and not one.admin
    ]


def allocated(names: Collection[str], besides: str = "") -> dict[str, tuple[Claim, ClaimedDevice]]:
    """The claims that have these devices, at least, by ``Device.id``; one that has not ended, and has the device alone,
    before others.

    Without the claim of an attachment (Record.claim), ``besides``, and without devices that a claim only observes.
    Raises IoFailure, RecordUnreadable.
    """
    own, texts = besides.partition("/")[0], [f'"id":{durable.canonical(name)}'.encode() for name in names]
    others = (one for one in _contents(decides=True) if _uid_of(one[0]) != own)
    there = (one for one in others if any(text in one[1] for text in texts))
    found = [(claim, one) for claim in _decoded_of(there, decides=True) for one in claim.own]
    return {one.id: (claim, one) for claim, one in sorted(found, key=lambda it: (not it[0].ended, not it[1].is_shared))}


def of_record(named: str) -> tuple[Claim, ClaimedDevice] | None:
    """The claim and device of an attachment (Record.claim); None if the claim is not prepared, or is unreadable."""
    uid, _, number = named.partition("/")
    with suppress(InvalidConfig, IoFailure, RecordUnreadable, ValueError, IndexError):
        if claim := load(uid):
            return claim, claim.devices[int(number)]
    return None


def prepared(besides: str = "") -> list[Claim]:
    """All prepared claims, without that of the UID ``besides``, which may be written anew.  Raises IoFailure,
    RecordUnreadable."""
    there = (one for one in _contents(decides=True) if _uid_of(one[0]) != besides)
    return _decoded_of(there, decides=True)


def all_claims() -> list[Claim]:
    """All prepared claims, for people: in order of their names, and without unreadable ones."""
    return _decoded_of(_contents())


def listed(folder: str = "") -> Iterator[tuple[str, Claim | None]]:
    """Every claim's file in a folder, FOLDER by default, and its claim, also of an earlier boot; None for an unreadable
    one."""
    for file, text in remembered.files(folder or FOLDER, _text):
        claim = None
        with suppress(RecordUnreadable):
            claim = _decoded(text, file) if isinstance(text, bytes) else None
        yield file, claim


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
    if not _UID.fullmatch(uid):
        raise InvalidConfig(f"claim UID {uid!r} is not a UUID in lower case, as Kubernetes makes them")
    return f"{FOLDER}/{uid}{_END}"


def _of_kubelet(pod: str, kubelet: str) -> set[str]:
    """The UIDs of the pod's claims in kubelet's file; none if the file is missing, or does not name the pod.  Raises
    IoFailure if it cannot be read, or has another version's format."""
    file = f"{kubelet}/{_KUBELETS}"
    try:
        text = files.read(file, _MOST)
        if not pod or pod.encode() not in text:
            return set()
        entries = json.loads(json.loads(text)["Data"])["ClaimInfoStateList"]
        return {one["ClaimUID"] for one in entries if pod in one["PodUIDs"]}
    except FileNotFoundError:
        return set()
    except OSError as e:
        raise IoFailure(f"reading kubelet's claims, {file}: {e.strerror}; it must be readable") from e
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise IoFailure(
            f"kubelet's claims, {file}, name the pod in a format that this version of hpn does not know, so its claims "
            "are unknown; use a version of hpn that knows this kubelet's"
        ) from e


def _encoded(text: str) -> bytes:
    return durable.canonical(text)[1:-1].encode()


def _uid_of(file: str) -> str:
    return os.path.basename(file).removesuffix(_END)


def _contents(*, decides: bool = False) -> Iterator[tuple[str, bytes]]:
    """The file and the bytes of every claim.  Most are not decoded: a node may have hundreds, and an ADD needs those of
    one pod.  Raises IoFailure if the caller ``decides``."""
    for file, text in remembered.files(FOLDER, _text):
        if isinstance(text, bytes):
            yield file, text
        elif decides:
            raise text


def _text(file: str) -> bytes | None:
    """The claim's bytes; None if it is another file, or has just gone."""
    return durable.contents(file) if file.endswith(_END) and _UID.fullmatch(_uid_of(file)) else None


def _decoded_of(listed: Iterable[tuple[str, bytes]], *, decides: bool = False) -> list[Claim]:
    """The claims of this boot, in order of their names.  Raises RecordUnreadable if the caller ``decides``."""
    found = list[Claim]()
    for file, contents in listed:
        try:
            if claim := _parsed(contents, file):
                found.append(claim)
        except RecordUnreadable as e:
            if decides:
                e.add_note("hpn node writes it anew when kubelet has the claim prepared again; delete the claim's pods")
                raise
    return sorted(found, key=lambda claim: (claim.namespace, claim.name))


def _parsed(text: bytes, file: str) -> Claim | None:
    claim = _decoded(text, file)
    return claim if claim.boot == durable.boot_id() else None


@lru_cache(512)  # a node has a claim for each pod, and hpn node compares each new one with all others
def _decoded(text: bytes, file: str) -> Claim:
    try:
        claim = Claim.from_json(durable.parsed(text, file))
    except (TypeError, KeyError) as e:
        raise RecordUnreadable(f"{file} lacks members of a prepared claim: {e!r}") from e
    if claim.uid != _uid_of(file):
        raise RecordUnreadable(f"{file} is the file of another claim, {claim.uid}")
    return claim
