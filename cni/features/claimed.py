"""An attachment whose device Kubernetes allocated by a claim (Dynamic Resource Allocation), and Multus handed on.

hpn node has prepared the claim, so its file names the pods, and the claim's own addresses and MAC.  ADD takes them, and
refuses a device that is another pod's.  After ADD the gate opens, on which the pod's containers wait.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from base.kernel import rtnl
from base.protocol import arguments
from base.protocol.errors import CheckFailed, DeviceInUse, InvalidConfig, TryAgain
from base.protocol.spec import ALTNAME, Config, Json, Request, bad_ifname
from base.state import claims, gates
from base.state.claims import Claim, ClaimedDevice
from base.state.journal import Entry
from base.state.record import Record

_MULTUS: Final = "multus"
# Keys with the name of the device that the runtime chose (cni/models/device.py).
_KEYS: Final = ("deviceID", "pciBusID")


@dataclass(frozen=True)
class Claimed:
    """A device of a prepared claim, by its number."""

    claim: Claim
    number: int

    @property
    def device(self) -> ClaimedDevice:
        return self.claim.devices[self.number]

    @property
    def of_record(self) -> str:
        """The member ``claim`` of the attachment's record."""
        return f"{self.claim.uid}/{self.number}"


def find(request: Request, conf: Config) -> Claimed | None:
    """The claim of this pod that has the attachment's device; None if no claim has it.

    Raises DeviceInUse if only claims of other pods have it.  Raises InvalidConfig for an interface that the claim names
    otherwise, and for a device that the claim attaches otherwise.
    """
    chosen = arguments.chosen_device(conf, *_KEYS)
    found = [Claimed(*one) for one in claims.with_device(chosen)] if isinstance(chosen, str) else []
    pod, ifname = arguments.cni_args(request.var("CNI_ARGS")).get("K8S_POD_UID", ""), request.var("CNI_IFNAME")
    # What an ended claim of another pod still has, the kind finds (base/state/owned.py).
    found = [one for one in found if not one.claim.ended or pod in one.claim.pods]
    if not found:
        return None
    ours = claims.of_pod(pod)
    of_pod = [one for one in found if one.claim in ours]
    if by_multus := [one for one in of_pod if one.device.attach == _MULTUS]:
        if fitting := [one for one in by_multus if one.device.interface in ("", ifname)]:
            return _unused(fitting, request)
        title, names = by_multus[0].claim.title, ", ".join(repr(one.device.interface) for one in by_multus)
        raise InvalidConfig(
            f"CNI_IFNAME={ifname}: {title} names the interface {names}; name it so in the pod's annotation too, or not "
            "in the claim"
        )
    if found[0].device.is_shared:
        return None
    if of_pod:
        device, title = of_pod[0].device, of_pod[0].claim.title
        raise InvalidConfig(
            f"device {chosen}: {title} has it with attach {device.attach!r}, so its network is not for Multus; remove "
            "the network from the pod's annotation, or attach from the DeviceClass"
        )
    is_over, remedy = "is not prepared", "name the claim in the pod, or take another device"
    if found[0].claim.ended:
        is_over, remedy = "has ended", "delete the pod"
    raise DeviceInUse(
        f"device {chosen}: Kubernetes allocated it to {found[0].claim.title}, and that {is_over} for this pod "
        f"(K8S_POD_UID={pod!r}); {remedy}"
    )


def _unused(fitting: Sequence[Claimed], request: Request) -> Claimed:
    """The one that names the interface, else one that no other attachment of the container has: a claim may have
    several shares of a device."""
    if len(fitting) == 1:
        return fitting[0]
    key = request.key
    used = {
        record.claim
        for uid in {one.claim.uid for one in fitting}
        for record in gates.records(uid)
        if record.key.container_id == key.container_id and record.key.ifname != key.ifname
    }
    return min(fitting, key=lambda one: (one.of_record in used, not one.device.interface))


def with_keys(claimed: Claimed, request: Request, conf: Config) -> tuple[Request, Config]:
    """The request and its configuration with the claim's addresses and MAC, and a master that is its device.

    Raises InvalidConfig if the pod requests others, or the configuration has another master.
    """
    device, given = claimed.device, dict[str, Any]()
    args = arguments.cni_args(request.var("CNI_ARGS"))
    for key, arg, value in (("ips", "IP", [*device.ips]), ("mac", "MAC", device.mac)):
        asked = arguments.requested(conf, args, key, arg)
        if value:
            if asked is not None and asked != value:
                raise InvalidConfig(
                    f"{key} {json.dumps(asked)}: {claimed.claim.title} has {key} {json.dumps(value)}; remove one"
                )
            given[key] = value
    new: Json = dict(conf)
    if given:
        new["runtimeConfig"] = {**(conf.get("runtimeConfig") or {}), **given}
    if device.kind == "master":
        master = conf.get("master", device.id)
        is_name = isinstance(master, str) and not bad_ifname(master, ALTNAME)
        if (rtnl.real_name(master) if is_name else master) != device.id:
            raise InvalidConfig(
                f"master {master!r}: Kubernetes allocated {device.id!r} by {claimed.claim.title}; remove master"
            )
        new["master"] = device.id
    return (request, conf) if new == conf else (request.but(stdin=json.dumps(new).encode()), new)


def attached(made: Sequence[tuple[Entry, Record]]) -> None:
    """Open the gates of the complete attachments that one ADD made.  Raises IoFailure, InvalidConfig; TryAgain if a
    claim is gone."""
    requests, load = dict[tuple[str, int], Claim](), cache(claims.load)
    for _, record in made:
        uid, _, number = record.claim.partition("/")
        claim = load(uid)
        if not claim:
            raise TryAgain(
                f"{record.title}: its claim {uid} is not prepared any more, and no container would start; kubelet "
                "prepares it again before the next ADD"
            )
        requests[uid, claim.first_of_request(int(number))] = claim
    for (_, first), claim in requests.items():
        gates.open_if_whole(claim, first, [record for _, record in made])


def check(record: Record) -> None:
    """Raise CheckFailed if the gate is closed although the container has the interfaces.  A claim that is not prepared
    any more has no gate."""
    found = claims.of_record(record.claim)
    if found and gates.is_missing(found[0], int(record.claim.rpartition("/")[2]), record.key.container_id):
        raise CheckFailed(
            f"{record.title}: the gate of {found[0].title}, request {found[1].request}, is closed, so no container of "
            "the request starts again; delete the pod"
        )


def undo(records: Collection[Record]) -> None:
    """Close the gates, before anything of a container's attachments goes.  Raises IoFailure, InvalidConfig,
    TryAgain."""
    gates.close(records)
