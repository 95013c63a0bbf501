"""Parse stdin's JSON into a NetConf, without reading from the kernel or the disk.

An unknown key is refused, so "mtuu" is an error and not a slow pod.  Keys that runtimes add are ignored.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from base.protocol import arguments, spec, written
from base.protocol.errors import CniError, InvalidConfig, UnsupportedField, combine
from base.protocol.location import location, names_itself
from base.protocol.result import Result
from base.protocol.spec import Config, Json, Request
from base.state.permitted import Named
from cni import kinds
from cni.models import Common, NetConf, port_guid, unicast_mac

# Keys that runtimes add to a plugin's configuration: the specification's, libcni's, and two of Multus.
_RUNTIME_KEYS: Final = frozenset({
    "cniVersion", "name", "type", "prevResult", "runtimeConfig", "args", "capabilities", "cniVersions",
    "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "deviceID", "pciBusID",
    "claims",  # if it is not false, cni/chain.py serves the command
    "stateDir",  # an earlier version's; base/state/permitted.py refuses it
})  # fmt: skip

# Keys of ib-sriov-cni and ib-kubernetes that are ignored if the kind's model lacks them, each with the reason.
_PASSED_OVER: Final = {
    "ibKubernetesEnabled": "the plugin takes the GUID from runtimeConfig or args.cni, also without ib-kubernetes",
    "pkey": "ib-kubernetes reads it from definitions of type ib-sriov, and the subnet manager sets partitions",
    "rdmaIsolation": "rdma.mode does this here",
    "vfioPciMode": "the plugin detects a VF's driver",
}

# The lists of the policy file, each with the keys that it restricts (base/state/permitted.py).
_NAMING: Final[Mapping[str, tuple[str, ...]]] = {
    "kind": ("kind",),
    "master": ("master",),
    "pf": ("pf",),
    "device": ("device", "hwaddr", "kernelpath", "deviceID"),
}

# The key that names a rail's interface, by kind; of other kinds it is the first.
_OF_RAILS: Final[Mapping[str, str]] = {"": "master", "sriov": "pf", "host-device": "device"}

# Keys beside master in hustcat's sriov-cni and its forks, where master is the PF.
_BESIDE_A_PF: Final = frozenset({"vf", "vlan", "pfOnly", "l2enable"})


def of(request: Request) -> NetConf:
    """Return ``load`` of the request.  Requests that differ only in the pod's name are parsed once."""
    args = arguments.cni_args(request.var("CNI_ARGS"))
    nameless = ";".join(f"{name}={value}" for name, value in args.items() if not name.startswith("K8S_"))
    return replace(_loaded(request.stdin, nameless), pod=arguments.pod_name(args))


@spec.cached
def _loaded(stdin: bytes, cni_args: str) -> NetConf:
    return load(spec.decode(stdin, True), cni_args)  # noqa: FBT003  # so spec.decode returns its cached result


def load(conf: Config, cni_args: str) -> NetConf:
    """Parse and validate a configuration.  Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    if names_itself(conf):
        raise InvalidConfig(f"ipam.type {conf['type']!r} is the main plugin's own name; did you mean hpn-ipam?")
    args = arguments.cni_args(cni_args)
    own = {k: v for k, v in conf.items() if k not in _RUNTIME_KEYS and not k.startswith("cni.dev/")}
    own |= _numbers(conf, args)
    _refuse_pf_as_master(own, conf)
    attach = _model(own, conf)
    mac, guid = _mac(conf, args, attach), _guid(conf, args, attach)
    return NetConf(
        where=location(conf),
        attach=attach,
        mac=mac,
        guid=guid,
        pod=arguments.pod_name(args),
        previous=previous_result(conf),
        named=tuple(_named(attach)),
        remarks=tuple(
            f"{k} {json.dumps(conf[k])} is ignored: {why}"
            for k, why in _PASSED_OVER.items()
            if k in conf and k not in type(attach).model_fields
        ),
    )


def of_rail(interface: str, conf: Config) -> Json:
    """The key that names a rail by its interface, for the configuration's kind."""
    kind = conf.get("kind", kinds.implied({**conf, "master": interface}))
    return {_OF_RAILS.get(kind if isinstance(kind, str) else "", _OF_RAILS[""]): interface}


def _named(attach: Common) -> Iterator[Named]:
    for listed, keys in _NAMING.items():
        for key in filter(type(attach).model_fields.__contains__, keys):
            value = getattr(attach, key)
            # An unset master, that of the default route, needs the policy file's permission too; the pod's does not.
            if value if key != "master" else not getattr(attach, "linkInContainer", False):
                yield listed, key, value


def previous_result(conf: Config) -> Result | None:
    """Return the chain's result so far; None if we are the first plugin.  Raises InvalidConfig."""
    if conf.get("prevResult") is None:
        return None
    try:
        return Result.from_json(conf["prevResult"])
    except ValueError as e:
        raise InvalidConfig(f"prevResult: {e}") from e


def _model(own: Json, conf: Config) -> Common:
    device = arguments.chosen_device(conf, "deviceID")
    if own.get("mode") == "rdma":
        raise InvalidConfig(
            "mode 'rdma' is a key of ib-sriov-cni and not supported; remove mode: kind sriov moves a VF with its RDMA "
            "device (rdma.mode)"
        )
    kind = own.get("kind", kinds.implied({**own, "deviceID": device} if device else own))
    if not isinstance(kind, str) or kind not in kinds.KINDS:
        raise InvalidConfig(f"kind {kind!r} is not one of {', '.join(kinds.KINDS)}")
    model = kinds.model(kind)
    own = {key: value for key, value in own.items() if key not in _PASSED_OVER or key in model.model_fields}
    if model.device_keys and (device := arguments.chosen_device(conf, *model.device_keys)):
        own = {**own, "deviceID": device}
    if not own.get("strict", True):
        own = {key: value for key, value in own.items() if key in model.model_fields}
    try:
        return model.model_validate(own)
    except ValidationError as e:
        raise refusal(e) from e


def _refuse_pf_as_master(own: Json, conf: Config) -> None:
    """Refuse a configuration that means a macvlan here, and a VF or PF to hustcat's sriov-cni."""
    beside, name, vlan = sorted(own.keys() & _BESIDE_A_PF), own.get("master"), own.get("vlan")
    in_vlan = f"name a VLAN's interface as master: ip link add link {name} name vlan{vlan} type vlan id {vlan}"
    may_be_child = beside == ["vlan"] and own.get("kind") != "sriov"
    if may_be_child and {"master", "mode"} <= own.keys() and own.get("strict", True):
        raise UnsupportedField(f"vlan {json.dumps(vlan)} beside mode is a VF's; remove vlan, and {in_vlan}")
    if "master" not in own or own.get("kind", "sriov") != "sriov" or not (beside or "kind" in own) or "mode" in own:
        return
    keys = " and ".join(beside) or "kind 'sriov'"
    remedy = f"write pf {name!r} in place of master"
    if device := arguments.chosen_device(conf, "deviceID"):
        remedy = f"remove master, because deviceID {device!r} names the VF"
    elif may_be_child:
        remedy += f" for a VF; for a macvlan or ipvlan remove vlan, and {in_vlan}"
    if "l2enable" in own:
        remedy += ", and in place of l2enable leave out ipam"
    raise InvalidConfig(
        f"master {name!r} beside {keys}: a master is for macvlan, ipvlan and ipoib, and a VF belongs to a PF; {remedy}"
    )


def _numbers(conf: Config, args: Mapping[str, str]) -> Json:
    """Return the numbers that a pod may request: ``vf`` and ``vlan``, also in CNI_ARGS as in the first sriov-cni.
    The MTU is in args.cni, as in the plugin tuning.  Raises InvalidConfig."""
    found: Json = {}
    mtu = arguments.args_cni(conf).get("mtu")
    if mtu is not None:
        if type(mtu) is not int:
            raise InvalidConfig(f"args.cni.mtu {json.dumps(mtu)} is not a whole number; set it in bytes, as in 1400")
        found["mtu"] = mtu
    for key in ("vf", "vlan"):
        value = arguments.requested(conf, args, key, key.upper())
        if value is not None:
            try:
                found[key] = written.number(f"{value}")
            except ValueError as e:
                raise InvalidConfig(f"requested {key} {value!r} is not a number; write digits") from e
    return found


def _mac(conf: Config, args: Mapping[str, str], attach: Common) -> str:
    """Return the MAC that the pod requests, else the configuration's; empty for none.  Raises InvalidConfig."""
    mac: str = getattr(attach, "mac", None) or ""
    if (text := arguments.requested(conf, args, "mac", "MAC")) is not None:
        try:
            mac = unicast_mac(str(text))
        except ValueError as e:
            raise InvalidConfig(f"requested mac {text!r} {e}") from e
    if mac and attach.no_mac:
        raise InvalidConfig(f"mac {mac!r}: {attach.no_mac}")
    return mac


def _guid(conf: Config, args: Mapping[str, str], attach: Common) -> str:
    """Return the GUID that the pod requests, by either key of ib-sriov-cni, else the configuration's; empty for none.
    Raises InvalidConfig."""
    for key, arg in (("infinibandGUID", ""), ("guid", "GUID")):
        text = arguments.requested(conf, args, key, arg)
        if text is None:
            continue
        try:
            guid = port_guid(str(text))
        except ValueError as e:
            raise InvalidConfig(f"requested {key} {text!r} {e}") from e
        if attach.no_guid:
            raise InvalidConfig(f"requested {key} {text!r}: {attach.no_guid}")
        return guid
    return getattr(attach, "guid", None) or ""


def refusal(error: ValidationError, section: str = "") -> CniError:
    """Return pydantic's errors as one CNI error: the first is the message, the others its details."""
    found = [_finding(section, e) for e in error.errors(include_url=False, include_context=False)]
    # Wrong values first, because an unknown key matters less.
    return combine(sorted(found, key=lambda finding: finding.code, reverse=True))


def _finding(section: str, error: Any) -> CniError:
    path = section
    for step in error["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    value = json.dumps(error["input"], default=str)
    if error["type"] == "extra_forbidden":
        return UnsupportedField(f"{path} {value} is an unknown key; correct it, remove it, or set strict to false")
    text = str(error["msg"]).removeprefix("Value error, ")
    if not path:  # an error of several keys, which the text names
        return InvalidConfig(text)
    return InvalidConfig(f"{path} {value}: {text[:1].lower()}{text[1:]}")
