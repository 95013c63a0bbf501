"""stdin's JSON -> NetConf.  Pure: nothing here asks the kernel or the disk.

A key we do not know is refused, so that "mtuu" is an error and not a slow pod; keys that runtimes add are
passed over.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from netaddr import EUI, mac_unix_expanded
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cni import spec
from cni.errors import CniError, InvalidConfig, UnsupportedField, together
from cni.location import STATE_DIR, Location, is_absolute, location
from cni.result import Result
from cni.spec import Json

# What runtimes put into a plugin's configuration: the specification's own keys, libcni's, and Multus' two.
_RUNTIME_KEYS: Final = frozenset({
    "cniVersion", "name", "type", "prevResult", "runtimeConfig", "args", "capabilities", "cniVersions",
    "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "deviceID", "pciBusID",
})  # fmt: skip


_MAC: Final = re.compile(r"[0-9a-f]{2}([:-]?[0-9a-f]{2}){5}|([0-9a-f]{4}\.){2}[0-9a-f]{4}", re.IGNORECASE)


def unicast_mac(text: str) -> str:
    """The MAC as aa:bb:cc:dd:ee:ff.  Raises ValueError where no interface may have it."""
    # EUI takes much more for one: eleven digits, a number, a line with its end.
    if not _MAC.fullmatch(text):
        raise ValueError("is not a MAC address; write aa:bb:cc:dd:ee:ff")
    mac = EUI(text, version=48, dialect=mac_unix_expanded)
    if mac.value == 0:
        raise ValueError("is the zero MAC, which no interface may have")
    if mac.words[0] & 1:
        raise ValueError("is a multicast MAC; the first byte must be even")
    return str(mac)


def _absolute(path: str) -> str:
    if not is_absolute(path):
        raise ValueError("must be an absolute path")
    return path


def _no_or_unicast_mac(text: str) -> str:
    return unicast_mac(text) if text else ""


def _interface(name: str) -> str:
    if name and (why := spec.bad_ifname(name)):
        raise ValueError(f"cannot name an interface: {why}")
    return name


class Common(BaseModel):
    """What every kind of attachment takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    mtu: Annotated[int, Field(ge=0, le=65535)] = 0
    ipam: dict[str, Any] | None = None
    dns: dict[str, Any] = {}
    dad: Literal["optimistic", "wait", "off"] = "optimistic"
    stateDir: Annotated[str, AfterValidator(_absolute)] = STATE_DIR  # noqa: N815
    strict: bool = True


class Child(Common):
    """A link made over a master: what macvlan and ipvlan share."""

    master: Annotated[str, AfterValidator(_interface)] = ""
    linkInContainer: bool = False  # noqa: N815


class Macvlan(Child):
    """https://www.cni.dev/plugins/current/main/macvlan/"""

    kind: Literal["macvlan"] = "macvlan"
    mode: Literal["bridge", "private", "vepa", "passthru"] = "bridge"
    mac: Annotated[str, AfterValidator(_no_or_unicast_mac)] | None = None
    bcqueuelen: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0


class Ipvlan(Child):
    """https://www.cni.dev/plugins/current/main/ipvlan/"""

    kind: Literal["ipvlan"]
    mode: Literal["l2", "l3", "l3s"] = "l2"


MODELS: Final[Mapping[str, type[Macvlan | Ipvlan]]] = {"macvlan": Macvlan, "ipvlan": Ipvlan}


@dataclass(frozen=True)
class NetConf:
    """One attachment's configuration, valid as far as can be told without asking the kernel."""

    where: Location
    attach: Macvlan | Ipvlan
    mac: str
    pod: str
    previous: Result | None
    dns: Json = field(default_factory=dict)


def load(conf: Json, cni_args: str) -> NetConf:
    """Parse and check everything.  Raises InvalidConfig, UnsupportedField, BadEnvironment."""
    args = spec.cni_args(cni_args)
    own = {k: v for k, v in conf.items() if k not in _RUNTIME_KEYS and not k.startswith("cni.dev/")}
    attach = _model(own, conf)
    mac = spec.requested(conf, args, "mac", "MAC")
    if mac is not None:
        mac = _requested_mac(mac)
    elif isinstance(attach, Macvlan):
        mac = attach.mac
    if mac and (isinstance(attach, Ipvlan) or attach.mode == "passthru"):
        raise InvalidConfig(
            f"mac {mac!r}: {attach.kind} in mode {attach.mode} has its master's MAC; remove mac or use mode bridge"
        )
    namespace, name = args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME")
    return NetConf(
        where=location(conf),
        attach=attach,
        mac=mac or "",
        pod=f"{namespace}/{name}" if namespace and name else "",
        previous=previous_result(conf),
        dns=attach.dns,
    )


def previous_result(conf: Json) -> Result | None:
    """The chain's result so far; None where we are first.  Raises InvalidConfig."""
    if conf.get("prevResult") is None:
        return None
    try:
        return Result.from_json(conf["prevResult"])
    except ValueError as e:
        raise InvalidConfig(f"prevResult: {e}") from e


def _model(own: Json, conf: Json) -> Macvlan | Ipvlan:
    kind = own.get("kind", "macvlan")
    if not isinstance(kind, str) or kind not in MODELS:
        raise InvalidConfig(f"kind {kind!r} is not one of {', '.join(MODELS)}")
    if "kind" not in own and "master" not in own and (device := conf.get("deviceID")):
        raise InvalidConfig(
            f"deviceID {device!r} names a device, which kind macvlan does not use; "
            "set master (or kind) for an interface over a master"
        )
    try:
        return MODELS[kind].model_validate(own if own.get("strict", True) else _known(own, MODELS[kind]))
    except ValidationError as e:
        raise refusal(e) from e


def _known(own: Json, model: type[BaseModel]) -> Json:
    return {k: v for k, v in own.items() if k in model.model_fields}


def _requested_mac(text: object) -> str:
    try:
        return unicast_mac(str(text))
    except ValueError as e:
        raise InvalidConfig(f"requested mac {text!r} {e}") from e


def refusal(error: ValidationError, section: str = "") -> CniError:
    """pydantic's findings as one CNI error: the first is the message, the others its details."""
    found = [_finding(section, e) for e in error.errors(include_url=False, include_context=False)]
    # A wrong value first: an unknown key may only be a remark beside it.
    return together(sorted(found, key=lambda finding: finding.code, reverse=True))


def _finding(section: str, error: Any) -> CniError:
    path = section
    for step in error["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    value = json.dumps(error["input"], default=str)
    if error["type"] == "extra_forbidden":
        return UnsupportedField(f"{path} {value} is not a key we know; correct it, remove it, or set strict to false")
    text = str(error["msg"]).removeprefix("Value error, ")
    return InvalidConfig(f"{path} {value}: {text[:1].lower()}{text[1:]}")
