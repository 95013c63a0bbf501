"""Convert a configuration from other plugins' spelling to docs/user/reference.md's.  Pure; standard library only.

Go's plugins accept a key in any case, null for a missing value, and an empty string for a default.  Configurations
written for them may contain these.  Only this module converts them, and no model handles them.  It does not change
unknown keys, members of maps (``sysctl``, ``capabilities``), or objects that are not hpn's (``prevResult``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from base.protocol.errors import InvalidConfig


@dataclass(frozen=True)
class Shape:
    """An object's keys.

    - ``keys``: key -> the shape of the object below it, or of the objects in the list below it; None for anything else.
    - ``below``: the keys with a shape, and their shapes.
    - ``folded``: key in lower case -> key.
    - ``empty``: the keys for which an empty string means the default.
    - ``null``: the keys for which null is a value.
    """

    keys: Mapping[str, "Shape | None"]
    below: tuple[tuple[str, "Shape"], ...]
    folded: Mapping[str, str]
    empty: frozenset[str]
    null: frozenset[str]


def _shape(keys: str, empty: str = "", null: str = "", **below: Shape) -> Shape:
    all_keys = {key: below.get(key) for key in (*keys.split(), *empty.split(), *null.split(), *below)}
    folded = {key.lower(): key for key in all_keys}
    return Shape(all_keys, tuple(below.items()), folded, frozenset(empty.split()), frozenset(null.split()))


_RANGE_KEYS: Final = "subnet exclude reserved eui64 embedIPv4 node"
_RANGE_EMPTY: Final = "rangeStart rangeEnd gateway"
RANGE: Final = _shape(_RANGE_KEYS, _RANGE_EMPTY, "gateway")
RAIL: Final = _shape(f"{_RANGE_KEYS} pf master pciAddress numaNode", _RANGE_EMPTY, "gateway", ranges=RANGE)
ROUTE: Final = _shape("dst mtu advmss priority table scope", "gw")
CLUSTER: Final = _shape("backend blockSize sticky")
IPAM: Final = _shape(
    f"{_RANGE_KEYS} align releaseCooldown sticky probe overlaps",
    f"{_RANGE_EMPTY} type dataDir resolvConf",
    "gateway",
    ranges=RANGE,
    rails=RAIL,
    routes=ROUTE,
    cluster=CLUSTER,
)
NETWORK: Final = _shape(
    "cniVersion name type prevResult capabilities cniVersions disableCheck disableGC loadOnlyInlinedPlugins "
    "claims kind rails mtu dad dadTime sysctl multiRail stateDir strict linkInContainer bcqueuelen umcast "
    "device hwaddr kernelpath useInterfaceNetwork pf vf guid pfOnly vlan vlanQoS vlanProto min_tx_rate max_tx_rate "
    "ibKubernetesEnabled pkey rdmaIsolation vfioPciMode l2enable",
    "master mode mac deviceID pciBusID spoofchk trust link_state logFile logLevel logFormat rps irqAffinity",
    ipam=IPAM,
    rdma=_shape("mode required name gidTimeout"),
    policyRouting=_shape("table"),
    dns=_shape("nameservers domain search options"),
    runtimeConfig=_shape("ips mac infinibandGUID deviceID CNIDeviceInfoFile", ipRanges=RANGE),
    args=_shape("", cni=_shape("ips mac mtu vf vlan guid infinibandGUID sticky")),
)


def refuse_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object made of its members (json's object_pairs_hook).  Raises InvalidConfig if a key is repeated."""
    found = dict(members)
    if len(found) < len(members):
        places = {name: at for at, (name, _) in enumerate(members)}  # the last position of each name
        key = next(name for at, (name, _) in enumerate(members) if places[name] != at)
        values = " and ".join([json.dumps(value)[:100] for name, value in members if name == key][:3])
        raise InvalidConfig(f"key {json.dumps(key)} is given twice in one object, as {values}; remove one")
    return found


def normalize(conf: dict[str, Any], *, strictly: bool = True) -> dict[str, Any]:
    """The configuration in our spelling, without members that only stand for a default.  With ``strictly``, it raises
    InvalidConfig for a key in two spellings; otherwise the last one counts."""
    return conf if _is_normal(conf, NETWORK) else _normalize(conf, NETWORK, strictly, "")


def _is_normal(value: Any, shape: Shape) -> bool:
    """Whether it is in our spelling already, as most are.  This takes a quarter of the time of ``_normalize``."""
    if isinstance(value, dict):
        values = value.values()
        return (
            value.keys() <= shape.keys.keys()
            and None not in values
            and "" not in values
            and all(_is_normal(value[key], below) for key, below in shape.below if key in value)
        )
    return not isinstance(value, list) or all(_is_normal(item, shape) for item in value)


def _normalize(conf: Mapping[str, Any], shape: Shape, strictly: bool, path: str) -> dict[str, Any]:  # noqa: FBT001
    found, spelled = dict[str, Any](), dict[str, str]()
    for spelling, value in conf.items():
        key = spelling if spelling in shape.keys else shape.folded.get(spelling.lower(), spelling)
        if strictly and spelled.setdefault(key, spelling) != spelling:
            raise InvalidConfig(f"{path}{spelled[key]} and {path}{spelling} are one key in two spellings; remove one")
        found.pop(key, None)
        if key in shape.keys:
            if (value is None and key not in shape.null) or (value == "" and key in shape.empty):
                continue
            if below := shape.keys[key]:
                value = _below(value, below, strictly, f"{path}{key}")  # noqa: PLW2901
        found[key] = value
    return found


def _below(value: Any, shape: Shape, strictly: bool, path: str) -> Any:  # noqa: FBT001
    if isinstance(value, dict):
        return _normalize(value, shape, strictly, f"{path}.")
    if isinstance(value, list):
        return [_below(item, shape, strictly, f"{path}[{i}]") for i, item in enumerate(value)]
    return value
