"""What a pod may choose for itself, by the node's file (node.py).

    {"podMayChoose": ["mac", "ips", "mtu"]}

Multus fills args.cni from the pod's annotation (cni-args), whatever the network's configuration says.  So what stands
there is the word of the pod's author.  ADD and STATUS are judged before they begin.  DEL, GC and CHECK go by the
record: a pod must be deletable.
"""

import json
from collections.abc import Collection
from typing import Any, Final

from cni.protocol import arguments, spelling
from cni.protocol.errors import InvalidConfig
from cni.protocol.spec import Config, Request
from cni.state import node

# What we read from args.cni, and so what an administrator can let a pod choose.
CHOICES: Final = ("mac", "ips", "mtu", "vf", "vlan", "guid", "infinibandGUID", "sticky")
# Other plugins take these from there.
_BY_DEFAULT: Final = ("mac", "ips", "mtu")
# ib-kubernetes puts the GUID that it gives there, and knows by this key that it is to give one.
_IB_KUBERNETES: Final = "ibKubernetesEnabled"
_GUIDS: Final = ("guid", "infinibandGUID")
# Words of the specification and of libcni, which mean nothing there; and tuning's sysctls, which it reads there.
_OTHERS: Final = frozenset({
    "cniVersion", "name", "type", "prevResult", "capabilities", "cniVersions", "disableCheck", "disableGC",
    "loadOnlyInlinedPlugins", "runtimeConfig", "args", "sysctl",
})  # fmt: skip
_OF_RUNTIMES: Final = dict(spelling.NETWORK.below)["runtimeConfig"]
# All keys that mean something to us, by their names in lower case.
_KNOWN: Final = {
    key.lower(): key for key in {*CHOICES, *spelling.NETWORK.keys, *_OF_RUNTIMES.keys} if key not in _OTHERS
}
_REMEDY: Final = "remove it from args.cni, which Multus fills from the pod's annotation (cni-args)"


def refuse(request: Request, conf: Config, keys: Collection[str] = ()) -> None:
    """Raise InvalidConfig for what the pod chooses and this node leaves to others; of these keys, or of all."""
    listed = node.choices(CHOICES)
    for written, value in arguments.args_cni(conf).items():
        key = _KNOWN.get(written.lower(), "")
        if key and (not keys or key in keys) and arguments.is_given(value):
            _refuse_choice(key, value, request, conf, listed)


def _refuse_choice(key: str, value: Any, request: Request, conf: Config, listed: Collection[str] | None) -> None:
    if listed is None:
        listed = (*_BY_DEFAULT, *(_GUIDS if conf.get(_IB_KUBERNETES) is True else ()))
    if key in listed:
        return
    asked = f"args.cni.{key} {json.dumps(value)}"
    if key not in CHOICES:
        raise InvalidConfig(f"{asked}: no pod chooses {key}, only the network's configuration does; {_REMEDY}")
    who = "no pod choose"
    if key == "sticky":
        namespace = arguments.cni_args(request.var("CNI_ARGS")).get("K8S_POD_NAMESPACE", "")
        if not isinstance(value, str) or "/" not in value or value.partition("/")[0] == namespace:
            return
        who = f"a pod of namespace {namespace!r} choose no other namespace's"
    also = f", or set {_IB_KUBERNETES} in the configuration if ib-kubernetes gives it" if key in _GUIDS else ""
    raise InvalidConfig(
        f"{asked}: this node lets {who} {key}; {_REMEDY}{also}, or have the node's administrator add {key!r} to "
        f"{node.CHOICES} in {node.FILE}"
    )
