"""What a DeviceClass and a claim ask for in their opaque parameters of this driver; pure.

    parameters: {apiVersion: hpn-cni.io/v1, kind: Attachment, interface: net1, mtu: 9000}

A class may set every key.  A claim, which any user may write, sets only the keys that its class leaves open
(``allow``).  docs/user/claims.md has the table.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from base.protocol import memlock, spec, written
from base.protocol.spec import Json
from node.dra import DRIVER

VERSION: Final = f"{DRIVER}/v1"
KIND: Final = "Attachment"
MULTUS, CHAIN, NONE = ATTACH = ("multus", "chain", "none")
_LONGEST: Final = 10 << 10  # bytes of one configuration, as in the API server (resource/v1, OpaqueParametersMaxLength)
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)
_CLASS: Final = "FromClass"
_OPEN: Final = ("interface",)  # what a class leaves open that does not mention ``allow``


class Refused(Exception):
    """A claim cannot be prepared; kubelet shows the message in the pod's events."""


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "is not text"


def _interface(value: Any) -> str:
    return _text(value) or ((why := spec.bad_new_ifname(value)) and f"cannot name an interface: {why}")


def _ips(value: Any) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        return 'is not a list of addresses, ["10.0.0.5/24"]'
    for one in value:
        try:
            written.host(one)
        except ValueError:
            return f"holds {one!r}, which is not an address; write it as in 10.0.0.5/24 or fd00::5/64"
    return ""


def _mac(value: Any) -> str:
    if not isinstance(value, str) or not _MAC.fullmatch(value):
        return "is not a MAC address; write aa:bb:cc:dd:ee:ff"
    if int(value[:2], 16) & 1:
        return "is a multicast MAC; the first byte must be even"
    return "" if int(value.replace(":", ""), 16) else "is the zero MAC, which no interface may have"


def _object(value: Any) -> str:
    return "" if isinstance(value, dict) else "is not an object"


def _anything(_: Any) -> str:
    return ""


def _attach(value: Any) -> str:
    return "" if value in ATTACH else f"is not one of {', '.join(ATTACH)}"


def _allow(value: Any) -> str:
    good = isinstance(value, list) and all(one in OF_CLAIM for one in value)
    return "" if good else f"is not a list of {', '.join(OF_CLAIM)}"


# Each key, with the clause why a value is wrong.  Those without a check of their own are ADD's, which checks them.
OF_CLAIM: Final[Mapping[str, Callable[[Any], str]]] = {
    "interface": _interface,
    "ips": _ips,
    "mac": _mac,
    "sticky": _text,
    "rps": _text,
}
KEYS: Final = {
    **OF_CLAIM,
    **dict.fromkeys(("vlan", "trust", "mtu", "rdma", "policyRouting", "multiRail", "sysctl"), _anything),
    "network": _text,
    "config": _object,
    "ipam": _object,
    "memlock": memlock.why_refused,
    "attach": _attach,
    "allow": _allow,
}
# Keys of a configuration for ADD.  Under Multus, the NetworkAttachmentDefinition has them.
OF_NETWORK: Final = tuple(key for key in KEYS if key not in ("interface", "ips", "mac", "memlock", "attach", "allow"))


def merged(configs: Sequence[Json], request: str, namespace: str) -> Json:
    """The keys for the devices of a request, from the ``config`` of an allocation: the classes', then the claim's.

    ``request`` may name an alternative, "rails/first".  ``namespace`` is the claim's.  Raises Refused.
    """
    ours = [one for one in configs if _is_for(one, request)]
    of_class, of_claim = dict[str, Any](), dict[str, Any]()
    for one in ours:
        is_class = one.get("source") == _CLASS
        _add(of_class if is_class else of_claim, _checked(one["opaque"].get("parameters"), is_class=is_class))
    allowed = of_class.get("allow", _OPEN)
    for key, value in of_claim.items():
        if key not in allowed:
            remedy = f"remove it, or have an administrator add it to allow, which has {_listed(allowed)}"
            raise Refused(f"{key} {_shown(value)}: the DeviceClass does not let a claim set {key}; {remedy}")
    if sticky := of_claim.get("sticky"):
        of_claim["sticky"] = _in_namespace(sticky, namespace)
    return {**of_class, **of_claim}


def _in_namespace(sticky: str, namespace: str) -> str:
    """A claim's sticky name with its namespace, as pods' names have it.  Raises Refused for another namespace's."""
    if "/" not in sticky:
        return f"{namespace}/{sticky}"
    if sticky.partition("/")[0] != namespace:
        raise Refused(
            f"sticky {_shown(sticky)}: a claim of namespace {namespace} has no other namespace's name; remove it"
        )
    return sticky


def _is_for(config: Json, request: str) -> bool:
    """Whether an entry is this driver's, and for the request: for all, for it, or for its alternatives."""
    opaque, requests = config.get("opaque"), config.get("requests") or (request,)
    named = request in requests or request.partition("/")[0] in requests
    return isinstance(opaque, dict) and opaque.get("driver") == DRIVER and named


def _add(to: Json, more: Json) -> None:
    for key, value in more.items():
        if key in to and to[key] != value:
            raise Refused(f"{key} is given twice, as {_shown(to[key])} and as {_shown(value)}; remove one")
        to[key] = value


def _checked(parameters: Any, *, is_class: bool) -> Json:
    """The keys of one configuration, without apiVersion and kind.  Raises Refused."""
    if not isinstance(parameters, dict):
        raise Refused(f"parameters {_shown(parameters)} is not an object with apiVersion {VERSION} and kind {KIND}")
    if len(json.dumps(parameters)) > _LONGEST:
        raise Refused(f"parameters has more than {_LONGEST} bytes; name a network of the node in place of its keys")
    found = dict(parameters)
    for key, value in (("apiVersion", VERSION), ("kind", KIND)):
        if (given := found.pop(key, None)) != value:
            raise Refused(f"{key} {_shown(given)} is unknown; the parameters of {DRIVER} have {key} {value}")
    for key, value in found.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            raise Refused(f"{key} is an unknown key; {f'did you mean {near[0]}?' if near else f'remove {key}'}")
        if not is_class and key not in OF_CLAIM:
            raise Refused(f"{key} {_shown(value)}: only a DeviceClass may set {key}, and not a claim; remove {key}")
        if why := KEYS[key](value):
            raise Refused(f"{key} {_shown(value)} {why}")
    return found


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "no key"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
