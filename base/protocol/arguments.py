"""One attachment's requests beside its network's configuration: CNI_ARGS, args.cni and runtimeConfig (CNI's
CONVENTIONS.md).  Pure; standard library only."""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from base.protocol import written
from base.protocol.errors import BadEnvironment, CniError, InvalidConfig

_ARGS: Final = frozenset({
    "IgnoreUnknown", "IP", "GATEWAY", "MAC", "VF", "VLAN", "GUID", "STICKY",
    "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID",
})  # fmt: skip
_POD: Final = "K8S_POD_"
# The length and the digits of a generated suffix.
_GENERATED: Final = 5
_OF_NAMES: Final = frozenset("2456789")


def cni_args(text: str) -> dict[str, str]:
    """CNI_ARGS ("K=V;K=V") as a dictionary.  Raises BadEnvironment.

    Of a repeated key, the last one counts; this is normal: Multus sends its own keys twice.  The pod's identity may not
    differ.  An unknown key is refused, unless IgnoreUnknown is 1 or true, as in libcni's LoadArgs.
    """
    pairs = dict[str, str]()
    for pair in filter(None, text.split(";")):
        name, equals, value = pair.partition("=")
        if not name or not equals or "=" in value:
            raise BadEnvironment(f"CNI_ARGS: {pair!r} is not KEY=VALUE; separate pairs by ';'")
        if name.startswith(_POD) and pairs.get(name, value) != value:
            raise BadEnvironment(
                f"CNI_ARGS: {name} is both {pairs[name]!r} and {value!r}; the runtime must send one pod"
            )
        pairs[name] = value
    unknown = sorted(pairs.keys() - _ARGS)
    if unknown and pairs.get("IgnoreUnknown", "").lower() not in ("1", "true"):
        raise BadEnvironment(
            f"CNI_ARGS: unknown {', '.join(f'{k}={pairs[k]!r}' for k in unknown)}; remove, or add IgnoreUnknown=1"
        )
    return pairs


def pod_name(args: Mapping[str, str]) -> str:
    """The pod's name in CNI_ARGS: "namespace/name"; only the name, as from podman; or empty."""
    name, namespace = args.get("K8S_POD_NAME", ""), args.get("K8S_POD_NAMESPACE", "")
    return f"{namespace}/{name}" if name and namespace else name


def is_ordinal(pod: str) -> bool:
    """Whether the pod's name can be a StatefulSet's, which ends with a dash and a number.

    A controller that generates names appends five of the characters ``bcdfghjklmnpqrstvwxz2456789``
    (k8s.io/apimachinery/pkg/util/rand): in one of 854 names digits only.  No StatefulSet has as many pods.
    """
    number = pod.rpartition("-")[2]
    if number == pod or not (number.isascii() and number.isdecimal()) or (number[0] == "0" and number != "0"):
        return False
    return not (len(number) == _GENERATED and _OF_NAMES.issuperset(number))


def requested(conf: Mapping[str, Any], args: Mapping[str, str], key: str, arg: str) -> Any:
    """The attachment's request: ``key`` in runtimeConfig, else in args.cni, else ``arg`` in CNI_ARGS, else None.  This
    is the order of CONVENTIONS.md: a more specific place hides the others.  Raises InvalidConfig."""
    for source in (_object(conf, "runtimeConfig"), args_cni(conf)):
        if is_given(source.get(key)):
            return source[key]
    return args.get(arg) or None


def requested_ips(conf: Mapping[str, Any], args: Mapping[str, str]) -> tuple[IPv4Address | IPv6Address, ...]:
    """The addresses that the attachment requests, without duplicates and prefix lengths.  Raises InvalidConfig,
    BadEnvironment."""
    wrong: type[CniError] = InvalidConfig
    where, asked = "ips of runtimeConfig or args.cni", requested(conf, {}, "ips", "IP")
    if asked is None:
        wrong, where, asked = BadEnvironment, "CNI_ARGS: IP", args.get("IP", "")
    items = [str(item) for item in asked] if isinstance(asked, list) else [str(asked)]
    addresses = dict[IPv4Address | IPv6Address, None]()
    for item in filter(None, (part for text in items for part in text.split(","))):
        try:
            addresses[written.host(item)] = None
        except ValueError:
            raise wrong(f"{where} {item!r}: not an IP address; write it as in 10.0.0.5 or fd00::5/64") from None
    return tuple(addresses)


def is_given(value: Any) -> bool:
    """Whether the value requests anything.  A zero does: there are a VF 0 and a VLAN 0."""
    return value not in (None, "", [], {})


def chosen_device(conf: Mapping[str, Any], *keys: str) -> Any:
    """The device that the runtime chose for the pod; None for none.

    It is in runtimeConfig, else in the first of these keys that is set, where Multus puts it.  args.cni does not count:
    the pod's author writes it.  Raises InvalidConfig.
    """
    chosen = _object(conf, "runtimeConfig").get("deviceID")
    return chosen or next((conf[key] for key in keys if conf.get(key)), None)


def sticky_name(conf: Mapping[str, Any], args: Mapping[str, str]) -> Any:
    """The sticky name that the attachment requests, else None.  Raises InvalidConfig.  The pod's author writes
    args.cni, so a name without a namespace there belongs to the pod's own namespace."""
    name, namespace = requested(conf, args, "sticky", "STICKY"), args.get("K8S_POD_NAMESPACE", "")
    by_pod = not is_given(_object(conf, "runtimeConfig").get("sticky")) and is_given(args_cni(conf).get("sticky"))
    return f"{namespace}/{name}" if by_pod and namespace and isinstance(name, str) and "/" not in name else name


def args_cni(conf: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration's args.cni (CONVENTIONS.md).  Raises InvalidConfig if it is not an object."""
    return _object(_object(conf, "args"), "cni", within="args.")


def _object(conf: Mapping[str, Any], key: str, within: str = "") -> Mapping[str, Any]:
    value = conf.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidConfig(f"{within}{key} {value!r} is not an object")
    return value
