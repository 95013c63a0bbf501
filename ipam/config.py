"""The IPAM part of a network configuration, from decoded JSON to a pool.

    runtimeConfig.ipRanges, ipam.ranges                  [[{range}, ...], ...]: sets of ranges
    ipam.subnet, rangeStart, rangeEnd, gateway, exclude  one range, a set by itself
    ipam.routes, ipam.resolvConf                         passed on in the result
    strict                                               false: unknown keys in ipam are tolerated

    ipam.rails, ipam.align                               sets of ranges for each of several devices
    ipam.releaseCooldown, ipam.sticky                    what of an address that was released
    ipam.probe                                           how long to ask the link whether others have an address

The keys and the order of the sets (runtimeConfig's, subnet's, ranges') are host-local's; ``exclude``, ``reserved``,
``eui64``, ``"gateway": null``, ``rails``, ``align``, ``releaseCooldown``, ``sticky`` and ``probe`` are ours.  ipam.type
and ipam.dataDir are for others to read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from cni.protocol import arguments, spec
from cni.protocol.errors import BadEnvironment, CniError, InvalidConfig, UnsupportedField, combine
from cni.protocol.result import Address, Network, Route
from cni.protocol.spec import Config, Json
from ipam import resolv_conf
from ipam.pool import Pool, Rail, Range, RangeSet, rails_of, range_sets
from ipam.ranges import Span, default_gateway, whole

# Seconds to listen for who has an address: by default, at least, at most.
PROBE, PROBE_LEAST, PROBE_MOST = 0.3, 0.03, 10.0


def load(conf: Config, args: Mapping[str, str]) -> Pool:
    """The pool that a configuration and its CNI_ARGS describe.

    Raises InvalidConfig, UnsupportedField, BadEnvironment; the message is the first problem, details the rest.
    """
    runtime = conf.get("runtimeConfig")
    if isinstance(runtime, dict):  # the rest of it is each attachment's own
        runtime = {"ipRanges": runtime.get("ipRanges")}
    # A node's attachments have one configuration between them.
    shared: Json = {"runtimeConfig": runtime, **{key: conf[key] for key in ("ipam", "strict") if key in conf}}
    parsed, rails, sets = _parsed(json.dumps(shared))
    return Pool(
        sets,
        _requested(conf, args),
        tuple(route.route() for route in parsed.ipam.routes or ()),
        resolv_conf.dns(parsed.ipam.resolv_conf) if parsed.ipam.resolv_conf else {},
        parsed.ipam.release_cooldown or 0,
        parsed.ipam.sticky or 0,
        _sticky_name(conf, args) if parsed.ipam.sticky else "",
        rails,
        bool(parsed.ipam.align),
        parsed.ipam.probe or 0.0,
    )


def _address(value: object) -> Address:
    text = str(value)  # of a number too: ip_address takes every one below 2**32 for an IPv4 address
    with suppress(ValueError):
        address = ip_address(text)
        if "%" not in text:  # a scope is an interface's, and no address's
            return address
    raise ValueError("not an IP address; write it in full, as in 10.0.0.5 or fd00::5")


def _subnet(value: object) -> Network:
    text, _, length = str(value).partition("/")
    address = _address(text)
    try:
        subnet = ip_network((text, int(length)), strict=False)
    except ValueError:
        raise ValueError("not a subnet; write address/length, as in 10.0.0.0/24 or fd00::/64") from None
    if subnet.network_address != address:
        raise ValueError(f"host bits are set; write {subnet}")
    return subnet


def _excluded(value: object) -> Span:
    text = str(value)
    if "/" in text:
        return whole(_subnet(text))
    first, dash, last = text.partition("-")
    low, high = _address(first), _address(last if dash else first)
    if low.version != high.version or int(low) > int(high):
        raise ValueError("not a range; write lowest-highest, as in 10.0.0.5-10.0.0.9")
    return Span.of(low, high)


def _name(value: object) -> str:
    if not isinstance(value, str) or (why := spec.bad_ifname(value)):
        raise ValueError(f"cannot name an interface: {why if isinstance(value, str) else 'not a string'}")
    return value


def _pci_address(value: object) -> str:
    if not _PCI_ADDRESS.fullmatch(str(value)):
        raise ValueError("not a PCI address; write it as lspci -D does, 0000:3b:00.2")
    return str(value).lower()


_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]", re.IGNORECASE)
_Name = Annotated[str, PlainValidator(_name)]
_PciAddress = Annotated[str, PlainValidator(_pci_address)]


def _listening(value: object) -> float:
    """Seconds; numbers and no text that looks like one."""
    if isinstance(value, bool):
        return PROBE if value else 0.0
    if not isinstance(value, int | float) or not (value == 0 or PROBE_LEAST <= value <= PROBE_MOST):
        raise ValueError(f"neither true, false, nor {PROBE_LEAST:g} to {PROBE_MOST:g} seconds to listen")
    return float(value)


_Address = Annotated[IPv4Address | IPv6Address, PlainValidator(_address)]
_Subnet = Annotated[IPv4Network | IPv6Network, PlainValidator(_subnet)]
_Excluded = Annotated[Span, PlainValidator(_excluded)]
_Seconds = Annotated[int, Field(strict=True, ge=0, le=10 * 366 * 86400)]
_Listening = Annotated[float, PlainValidator(_listening)]
_U32 = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


class _Section(BaseModel):
    """An object of ours: an unknown key is refused, lest a misspelled one be ignored in silence."""

    # Built once, as part of the whole.
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _tolerate(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        context: Json = info.context or {}
        strict = context.get("strict", True)
        return {k: v for k, v in data.items() if k in known or (strict and not k.startswith("cni.dev/"))}


class _Bounds(_Section):
    range_start: _Address | None = None
    range_end: _Address | None = None
    gateway: _Address | None = None
    exclude: list[_Excluded] | None = None
    reserved: list[_Excluded] | None = None
    eui64: Annotated[bool, Field(strict=True)] | None = None

    def range(self, key: str, subnet: Network) -> Range:
        given = "gateway" in self.model_fields_set
        gateway = self.gateway if given else default_gateway(subnet)
        spans = tuple(self.exclude or ()), tuple(self.reserved or ())
        return Range(key, subnet, self.range_start, self.range_end, gateway, *spans, bool(self.eui64))


class _Range(_Bounds):
    subnet: _Subnet


class _Sets(_Bounds):
    """A range in place, and sets of ranges."""

    subnet: _Subnet | None = None
    ranges: list[list[_Range]] | None = None

    def written(self, key: str) -> Iterator[tuple[str, list[Range]]]:
        """The ranges of every set, under its key."""
        if self.subnet is not None:
            yield key, [self.range(key, self.subnet)]
        elif stray := self.model_fields_set & _Bounds.model_fields.keys():
            names = ", ".join(sorted(to_camel(name) for name in stray))
            raise InvalidConfig(
                f"{key}.{names}: of no effect without {key}.subnet; set that, or move it into {key}.ranges"
            )
        yield from _listed(f"{key}.ranges", self.ranges or [])


class _Rail(_Sets):
    pf: _Name | None = None
    master: _Name | None = None
    pci_address: _PciAddress | None = None
    numa_node: Annotated[int, Field(strict=True, ge=0)] | None = None

    def device(self) -> dict[str, str | int | None]:
        """What the rail may be known by."""
        return {"pf": self.pf, "master": self.master, "pciAddress": self.pci_address, "numaNode": self.numa_node}


class _Route(_Section):
    dst: _Subnet
    gw: _Address | None = None
    mtu: _U32 | None = None
    advmss: _U32 | None = None
    priority: _U32 | None = None
    table: _U32 | None = None
    scope: _U32 | None = None

    def route(self) -> Route:
        return Route(self.dst, self.gw, self.mtu, self.advmss, self.priority, self.table, self.scope)


class _Ipam(_Sets):
    type: Any = None
    data_dir: Any = None
    rails: list[_Rail] | None = None
    align: Annotated[bool, Field(strict=True)] | None = None
    routes: list[_Route] | None = None
    resolv_conf: str | None = None
    release_cooldown: _Seconds | None = None
    sticky: _Seconds | None = None
    probe: _Listening | None = None


class _Runtime(BaseModel):
    model_config = ConfigDict(defer_build=True)

    ip_ranges: list[list[_Range]] | None = Field(None, alias="ipRanges")


class Conf(BaseModel):
    """What of a configuration is ours."""

    model_config = ConfigDict(defer_build=True)

    ipam: _Ipam
    runtime: _Runtime | None = Field(None, alias="runtimeConfig")


@lru_cache(64)
def _parsed(text: str) -> tuple[Conf, tuple[Rail, ...], tuple[RangeSet, ...]]:
    conf = _parse(json.loads(text))
    rails = _rails(conf)
    return conf, rails, tuple(s for rail in rails for s in rail.sets) or range_sets(list(_written(conf)))


def _parse(conf: Json) -> Conf:
    strict = conf.get("strict", True)
    if not isinstance(strict, bool):
        raise InvalidConfig(f"strict {json.dumps(strict)} is neither true nor false")
    try:
        return Conf.model_validate(conf, context={"strict": strict})
    except ValidationError as e:
        raise combine([_problem(error) for error in e.errors(include_url=False)]) from e


def _problem(error: ErrorDetails) -> CniError:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    value = json.dumps(error["input"])
    match error["type"]:
        case "extra_forbidden":
            return UnsupportedField(f'{key} {value}: unknown key; correct or remove it, or set "strict": false')
        case "missing":
            return InvalidConfig(f"{key} is missing; a value is required")
        case "value_error":
            return InvalidConfig(f"{key} {value}: {error['ctx']['error']}")
        case _:
            return InvalidConfig(f"{key} {value}: {error['msg']}")


def _written(conf: Conf) -> Iterator[tuple[str, list[Range]]]:
    """The ranges of every set, under its key, in the order the sets are served."""
    ipam, runtime = conf.ipam, conf.runtime
    yield from _listed("runtimeConfig.ipRanges", (runtime and runtime.ip_ranges) or [])
    yield from ipam.written("ipam")


def _listed(key: str, sets: list[list[_Range]]) -> Iterator[tuple[str, list[Range]]]:
    for i, items in enumerate(sets):
        yield f"{key}[{i}]", [item.range(f"{key}[{i}][{j}]", item.subnet) for j, item in enumerate(items)]


def _rails(conf: Conf) -> tuple[Rail, ...]:
    """An attachment gets what its rail has, and nothing that stands elsewhere."""
    ipam, runtime = conf.ipam, conf.runtime
    if ipam.rails is None:
        if ipam.align:
            raise InvalidConfig("ipam.align true: of no effect without ipam.rails; set those, or remove it")
        return ()
    given = [ipam.subnet, ipam.ranges, runtime and runtime.ip_ranges]
    names = ["ipam.subnet", "ipam.ranges", "runtimeConfig.ipRanges"]
    if mixed := [name for name, value in zip(names, given, strict=True) if value]:
        raise InvalidConfig(f"{', '.join(mixed)} beside ipam.rails, which have ranges of their own; remove one of them")
    if not ipam.rails:
        raise InvalidConfig("ipam.rails [] has no rail; add one or remove it")
    keys = {f"ipam.rails[{i}]": rail for i, rail in enumerate(ipam.rails)}
    written = [(key, rail.device(), list(rail.written(key))) for key, rail in keys.items()]
    return rails_of(written, align=bool(ipam.align))


def _requested(conf: Config, args: Mapping[str, str]) -> tuple[Address, ...]:
    """The addresses asked for, each once; the prefix length is the subnet's to say, as with host-local."""
    wrong: type[CniError] = InvalidConfig
    where, asked = "ips of runtimeConfig or args.cni", arguments.requested(conf, {}, "ips", "IP")
    if asked is None:
        wrong, where, asked = BadEnvironment, "CNI_ARGS: IP", args.get("IP", "")
    items = [str(item) for item in asked] if isinstance(asked, list) else str(asked).split(",")
    addresses = dict[Address, None]()
    for item in filter(None, (part.strip() for text in items for part in text.split(","))):
        try:
            addresses[_address(item.partition("/")[0])] = None
        except ValueError as e:
            raise wrong(f"{where} {item!r}: {e}") from e
    return tuple(addresses)


def _sticky_name(conf: Config, args: Mapping[str, str]) -> str:
    """Whose the address is, where the attachment says so; else it is the pod's."""
    name = arguments.requested(conf, args, "sticky", "STICKY") or ""
    if not isinstance(name, str):
        raise InvalidConfig(f"sticky {name!r} names nobody; give a string")
    return name
