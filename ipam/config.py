"""Parse the IPAM part of a network configuration into a pool.

models.py has the keys of ``ipam``.  The key ``strict`` beside it is ours too: false tolerates unknown keys in ipam.
"""

import json
from collections.abc import Mapping
from functools import lru_cache

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from base.protocol import arguments
from base.protocol.errors import BadEnvironment, CniError, InvalidConfig, UnsupportedField, combine
from base.protocol.location import is_absolute
from base.protocol.result import Address
from base.protocol.spec import Config, Json
from base.state import node
from ipam.models import Conf, address_of, listed
from ipam.pool import Cluster, Pool, Rail, RangeSet, rails_of, range_sets

_RESOLV_CONF_MOST = 1 << 16  # bytes of a resolv.conf


def load(conf: Config, args: Mapping[str, str]) -> Pool:
    """The pool of a configuration and its CNI_ARGS.

    Raises InvalidConfig, UnsupportedField, BadEnvironment: the message is the first problem, the details are the rest.
    """
    runtime = conf.get("runtimeConfig")
    if isinstance(runtime, dict):  # the other keys differ between attachments
        runtime = {"ipRanges": runtime.get("ipRanges")}
    # All attachments of a node share this part, so it is parsed once.
    shared: Json = {"runtimeConfig": runtime, **{key: conf[key] for key in ("ipam", "strict") if key in conf}}
    parsed, rails, sets, cluster, aside = _parsed(json.dumps(shared))
    return Pool(
        sets,
        _requested(conf, args),
        tuple(route.route() for route in parsed.ipam.routes or ()),
        _dns(parsed.ipam.resolv_conf) if parsed.ipam.resolv_conf else {},
        parsed.ipam.release_cooldown or 0,
        parsed.ipam.sticky or 0,
        _sticky_name(conf, args) if parsed.ipam.sticky else "",
        rails,
        bool(parsed.ipam.align),
        parsed.ipam.probe or 0.0,
        cluster,
        aside,
    )


@lru_cache(64)
def _parsed(text: str) -> tuple[Conf, tuple[Rail, ...], tuple[RangeSet, ...], Cluster | None, Pool | None]:
    conf = _parse(json.loads(text))
    rails = _rails(conf)
    runtime = listed("runtimeConfig.ipRanges", (conf.runtime and conf.runtime.ip_ranges) or [])
    sets = tuple(s for rail in rails for s in rail.sets) or range_sets([*runtime, *conf.ipam.written("ipam")])
    if not (keys := conf.ipam.cluster):
        return conf, rails, sets, None, None
    cluster = Cluster(keys.store, keys.block_size, keys.sticky or "", bool(conf.ipam.overlaps))
    from ipam.cluster.rules import block_math  # noqa: PLC0415  # only where nodes share the pool

    pool, aside = Pool(sets, rails=rails, align=bool(conf.ipam.align)), None
    if cluster.sticky:
        if not conf.ipam.sticky:
            raise InvalidConfig("ipam.cluster.sticky: of no effect without ipam.sticky; set that too, in seconds")
        pool, aside = block_math.divided(pool, cluster.sticky)
    block_math.refuse(pool.sets, cluster.size)
    return conf, pool.rails, pool.sets, cluster, aside


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


def _rails(conf: Conf) -> tuple[Rail, ...]:
    """The rails.  With rails an attachment's addresses come from its rail, so refuse ranges elsewhere."""
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
    """The requested addresses without duplicates.  The subnet defines their prefix length, as in host-local."""
    wrong: type[CniError] = InvalidConfig
    where, asked = "ips of runtimeConfig or args.cni", arguments.requested(conf, {}, "ips", "IP")
    if asked is None:
        wrong, where, asked = BadEnvironment, "CNI_ARGS: IP", args.get("IP", "")
    items = [str(item) for item in asked] if isinstance(asked, list) else str(asked).split(",")
    addresses = dict[Address, None]()
    for item in filter(None, (part.strip() for text in items for part in text.split(","))):
        try:
            addresses[address_of(item.partition("/")[0])] = None
        except ValueError as e:
            raise wrong(f"{where} {item!r}: {e}") from e
    return tuple(addresses)


def _sticky_name(conf: Config, args: Mapping[str, str]) -> str:
    """The sticky name that the attachment requests; empty if none, and then the pod's name applies."""
    name = arguments.sticky_name(conf, args) or ""
    if not isinstance(name, str):
        raise InvalidConfig(f"sticky {name!r} is not a string; set a name")
    return name


def _dns(path: str) -> Json:
    """The ``dns`` of a result, from a resolv.conf(5).  Raises InvalidConfig, also if the node forbids the path."""
    label = "ipam.resolvConf"
    if not is_absolute(path):
        raise InvalidConfig(f"{label} {json.dumps(path)} must be an absolute path")
    place = node.place(label, path, node.allowed_paths("resolvConf"))
    try:
        lines = place.read(_RESOLV_CONF_MOST).decode().splitlines()
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise InvalidConfig(f"{label} {json.dumps(path)} cannot be read ({why}); correct or remove it") from e
    found: Json = {}
    for line in lines:
        match line.split():
            case ["nameserver", server, *_]:
                found.setdefault("nameservers", []).append(server)
            case ["domain", domain, *_]:
                found["domain"] = domain
            case ["search" | "options" as keyword, *words]:
                found.setdefault(keyword, []).extend(words)
            case _:
                pass  # a comment, or an option that a result cannot hold
    return found
