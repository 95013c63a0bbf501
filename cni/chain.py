"""Chain mode: one ADD, after the cluster's network, attaches all devices of the pod's ResourceClaims.

    {"type": "hpn", "claims": true}     the last plugin of the cluster's own conflist

hpn node has prepared the claims (base/state/claims.py), each device with its own configuration.  The attachments are
one transaction: all are made, or none.  A chain on disk names them (base/state/chains.py), so DEL and GC of the
conflist find them; GC is in cni/collect.py.  The pod's result stays that of the plugins before.
"""

import json
from dataclasses import replace
from itertools import count
from typing import Final

from base.protocol import arguments, spec
from base.protocol.errors import CheckFailed, CniError, InvalidConfig, UnsupportedField
from base.protocol.location import location
from base.protocol.result import Result, Unchanged
from base.protocol.spec import Config, Json, Request
from base.state import chains, claims, journal, permitted
from base.state import pod as pods
from base.state.chains import Chain, Member
from base.state.claims import ClaimedDevice
from base.state.permitted import Permits
from cni import commands, given, several
from cni.features.delegate import Programs
from cni.transaction import Asked
from cni.undo import Undo

_ATTACHED: Final = "chain"
# The keys that an entry of the cluster's conflist may have.  Those of an attachment are in the class's network.
_KEYS: Final = frozenset({
    "cniVersion", "name", "type", "claims", "prevResult", "runtimeConfig", "args", "capabilities", "cniVersions",
    "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "stateDir", "strict", "logFile", "logLevel", "logFormat",
})  # fmt: skip

_ONLY_ONE: Final = (
    "another network with claims true attached it; only one network of a pod may have that key, so remove it from the "
    "other"
)


def add(request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    """Attach the devices of the pod's claims, all or none; return prevResult.  Raises CniError, OSError."""
    _refuse_keys(conf)
    where, previous = location(conf), conf.get("prevResult")
    if not isinstance(previous, dict):
        raise InvalidConfig(
            "prevResult is missing; claims true is for the last plugin of a conflist, after the cluster's network"
        )
    members, whole = _of_pod(request, conf), Chain(where.state_dir, where.network, request.key)
    if members or whole.exists:
        permits = permitted.read()
        asked = [_asked(one, request, programs, permits) for one in members]
        with whole.lock():
            request.refuse_if_abandoned()
            undo = Undo(request, programs, log)
            several.settle(whole, undo, "its claims are")
            if asked:
                several.refuse_standing(members, request, _ONLY_ONE)
                several.attach(whole, members, asked, undo)
    return Unchanged(document=previous)


def delete(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Detach all of the pod's devices.  Without any, there is nothing to do."""
    where = location(conf)
    at = where.state_dir, where.network, request.key
    if chains.find(*at) or journal.Entry(*at).version():  # the latter if it was not in chain mode at its ADD
        commands.delete(request, conf, log, programs)


def check(request: Request, conf: Config, _log: list[str], programs: Programs) -> None:
    """Raise CheckFailed unless each device of the pod's claims is attached as ADD left it."""
    from cni import repair  # noqa: PLC0415  # rarely needed

    where = location(conf)
    whole = chains.find(where.state_dir, where.network, request.key)
    attached = whole.load() if whole else ()
    for one in _of_pod(request, conf):
        if not any((one.ifname, one.claim) == (known.ifname, known.claim) for known in attached):
            raise CheckFailed(f"{several.name(one)}: not attached; delete the pod")
    if not attached:
        return
    with pods.open_pod(request) as pod:
        identity = pod.identity
    for member in attached:
        entry = member.entry(request.key.container_id)
        record = journal.peek(entry.state_dir, entry.network, entry.key)
        if record is None or not record.complete:
            raise CheckFailed(f"{several.name(member)}: not attached completely; delete the pod")
        if not record.of_this_boot or record.identity != identity:
            raise CheckFailed(f"{record.title}: attached to another namespace than {request.netns} is now")
        repair.check(entry.state_dir, record, programs)


def status(_request: Request, conf: Config, _log: list[str], _programs: Programs) -> None:
    """Raise NotAvailable if the journal cannot be written, or the kernel is too old.  A class's network is not checked:
    its failure is that of the pods which request it, and STATUS stops all pods of the node."""
    _refuse_keys(conf)
    several.refuse_if_not_ready(location(conf))


def _refuse_keys(conf: Config) -> None:
    if "rails" in conf:
        raise InvalidConfig("rails beside claims true: a claim has the pod's rails; remove one")
    if conf["claims"] is not True:
        raise InvalidConfig(f"claims {json.dumps(conf['claims'])} is neither true nor false; set it to true")
    if conf.get("strict", True) and (other := sorted(key for key in conf.keys() - _KEYS if "/" not in key)):
        raise UnsupportedField(
            f"{other[0]} beside claims true: the networks of DeviceClasses have the keys of attachments; remove it"
        )
    permitted.refuse_former(conf)


def _asked(member: Member, request: Request, programs: Programs, permits: Permits) -> Asked:
    """The request for one member.  Raises what parsing its configuration raises, with the claim's name as a note."""
    one = member.request(request)
    try:
        conf = spec.configuration(one)
        return Asked(replace(commands.allowed(one, conf, programs, permits), claim=member.claim), conf, one)
    except CniError as e:
        e.add_note(f"for {several.name(member)}")
        raise


def _of_pod(request: Request, conf: Config) -> tuple[Member, ...]:
    """The attachments for the prepared claims of the request's pod.  Raises BadEnvironment, InvalidConfig,
    LinkUnavailable."""
    args = arguments.cni_args(request.var("CNI_ARGS"))
    uid = args.get("K8S_POD_UID", "")
    found = claims.of_pod(uid) if uid else []
    devices = [
        (claim, number, device)
        for claim in found
        for number, device in enumerate(claim.devices)
        if device.attach == _ATTACHED
    ]
    names = [device.interface for *_, device in devices]
    for claim, _, device in devices:
        twice = "another device of the pod has it too" if names.count(device.interface) > 1 else ""
        if device.interface and (why := spec.bad_new_ifname(device.interface) or twice):
            title = f"{claim.title}, request {device.request}"
            raise InvalidConfig(f"interface {device.interface!r} of {title}: {why}; set another in the claim")
    taken = {device.interface for claim in found for device in claim.devices}
    # Not net1, net2 and so on: Multus gives them to the pod's own networks, after this.
    free = (name for number in count() if (name := f"claim{number}") not in taken)
    return tuple(
        Member(d.interface or next(free), f"{c.uid}/{number}", _configuration(d, conf)) for c, number, d in devices
    )


def _configuration(device: ClaimedDevice, conf: Config) -> Json:
    """The configuration of a device's attachment: the class's network, with the allocated device, and with the
    addresses and MAC that the claim requests.  Raises LinkUnavailable."""
    chosen: Json = {}
    runtime = {"ips": list(device.ips), "mac": device.mac}
    if device.kind == "master":
        chosen["master"] = device.id
    elif device.kind != "shared":
        runtime["deviceID"] = device.id
    elif "master" not in device.config:
        chosen["master"] = given.master_of(device.id)
    merged = {**(device.config.get("runtimeConfig") or {}), **{key: value for key, value in runtime.items() if value}}
    common = {"cniVersion": conf.get("cniVersion"), "type": conf.get("type")}
    return {**common, **device.config, **chosen, **({"runtimeConfig": merged} if merged else {})}


COMMANDS: Final = {"ADD": add, "DEL": delete, "CHECK": check, "STATUS": status}
