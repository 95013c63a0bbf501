"""Parse the IPAM part of a network configuration into a pool.

models.py has the keys of ``ipam``.  The key ``strict`` beside it is ours too: false tolerates unknown keys in ipam.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from base.protocol import arguments
from base.protocol.errors import CniError, InvalidConfig, UnsupportedField, combine
from base.protocol.location import is_absolute
from base.protocol.spec import Config, Json
from base.state import policy
from ipam.models import Conf, IpamKeys, Item, Parent, listed
from ipam.pool import Cluster, Pool, Prefix, Rail, Range, RangeSet, rails_of, range_sets

_RESOLV_CONF_MOST = 1 << 16  # bytes of a resolv.conf

# For each subnet of the parent that a configuration names, the key that names it.
Named = Mapping[Parent, str]
# Finds these subnets on this node.
Find = Callable[[Config, Named], Mapping[Parent, Prefix]]


def load(conf: Config, args: Mapping[str, str], find: Find | None = None) -> Pool:
    """The pool of a configuration and its CNI_ARGS, on this node.  Without ``find``, what differs between nodes is left
    out: ranges of the parent's subnets, and of some nodes.

    Raises InvalidConfig, UnsupportedField, BadEnvironment: the message is the first problem, the details are the rest.
    """
    runtime = conf.get("runtimeConfig")
    if isinstance(runtime, dict):  # the other keys differ between attachments
        runtime = {"ipRanges": runtime.get("ipRanges")}
    # All attachments of a node share this part, so it is parsed once.
    shared: Json = {"runtimeConfig": runtime, **{key: conf[key] for key in ("ipam", "strict") if key in conf}}
    text = json.dumps(shared)
    node = os.uname().nodename.lower() if find else ""
    parsed = _parsed(text, node)
    if find and parsed.named:
        parsed = _parsed(text, node, tuple(find(conf, parsed.named).items()))
    ipam = parsed.conf.ipam
    return Pool(
        parsed.sets,
        # Without prefix lengths: the subnet defines them, as in host-local.
        arguments.requested_ips(conf, args),
        tuple(route.route() for route in ipam.routes or ()),
        _dns(ipam.resolv_conf) if ipam.resolv_conf else {},
        ipam.release_cooldown or 0,
        ipam.sticky or 0,
        _sticky_name(conf, args) if ipam.sticky else "",
        parsed.rails,
        bool(ipam.align),
        ipam.probe or 0.0,
        parsed.cluster,
        parsed.aside,
    )


@dataclass(frozen=True)
class _Parsed:
    """The part of a pool that attachments share, and the subnets of the parent that it names."""

    conf: Conf
    named: Named
    rails: tuple[Rail, ...]
    sets: tuple[RangeSet, ...]
    cluster: Cluster | None = None
    aside: Pool | None = None


@lru_cache(64)
def _parsed(text: str, node: str, found: tuple[tuple[Parent, Prefix], ...] = ()) -> _Parsed:
    conf, prefixes = _parse(json.loads(text)), dict(found)
    runtime = listed("runtimeConfig.ipRanges", (conf.runtime and conf.runtime.ip_ranges) or [])
    rails = _rails(conf)
    written = [] if rails else [*runtime, *conf.ipam.written("ipam")]
    of_some = [key for _, items in written for key, bounds, _ in items if bounds.node]
    _refuse_alone(written)
    of_all: tuple[RangeSet, ...] = ()
    if of_some:
        if every := _placed(conf.ipam, written, {}):
            of_all = range_sets(every)  # those of different nodes must not overlap either
        written = _of_node(written, node)
    _refuse_beside(written)
    named = {at: f"{key}.subnet" for _, items in written for key, _, at in items if isinstance(at, Parent)}
    if not (sets := tuple(s for rail in rails for s in rail.sets)):
        placed = _placed(conf.ipam, written, prefixes)
        sets = range_sets(placed, of_all) if placed or not (named or of_some) else ()
    if not (keys := conf.ipam.cluster):
        return _Parsed(conf, named, rails, sets)
    if of_some:
        raise InvalidConfig(f"{of_some[0]}.node with ipam.cluster, in which all nodes have all ranges; remove one")
    for key, bounds, place in (item for _, items in written for item in items):
        if isinstance(place, Parent) and not bounds.derivation:
            raise InvalidConfig(
                f"{key}.subnet {place} with ipam.cluster, but each node has a subnet of its own; remove one of them"
            )
    cluster = Cluster(keys.backend, keys.block_size, keys.sticky or "", bool(conf.ipam.overlaps))
    from ipam.cluster.rules import block_math  # noqa: PLC0415  # only where nodes share the pool

    pool, aside = Pool(sets, rails=rails, align=bool(conf.ipam.align)), None
    if cluster.sticky:
        if not conf.ipam.sticky:
            raise InvalidConfig("ipam.cluster.sticky: of no effect without ipam.sticky; set that too, in seconds")
        pool, aside = block_math.divided(pool, cluster.sticky)
    block_math.refuse(pool.sets, cluster.size)
    return _Parsed(conf, named, pool.rails, pool.sets, cluster, aside)


def _of_node(written: Sequence[tuple[str, Sequence[Item]]], node: str) -> list[tuple[str, list[Item]]]:
    """The sets without the ranges of other nodes.  Raises InvalidConfig if a set has none for this one."""
    found = [(key, [item for item in items if (item[1].node or node).lower() == node]) for key, items in written]
    for (key, rest), (_, items) in zip(found, written, strict=True):
        if node and items and not rest:
            names = ", ".join(f"{bounds.node}" for _, bounds, _ in items)
            raise InvalidConfig(f'{key} has no range for node {node}, only for {names}; add one with "node": "{node}"')
    return [(key, rest) for key, rest in found if rest]


def _placed(
    ipam: IpamKeys, written: Sequence[tuple[str, Sequence[Item]]], prefixes: Mapping[Parent, Prefix]
) -> list[tuple[str, list[Range]]]:
    """The ranges of each set, without those, and without sets of only those, whose subnet is not known."""
    found = list[tuple[str, list[Range]]]()
    hops = [route.gw for route in ipam.routes or () if route.gw is not None]
    for key, items in written:
        known = ((one, bounds, prefixes.get(at) if isinstance(at, Parent) else at) for one, bounds, at in items)
        ranges = [bounds.range(one, place, hops) for one, bounds, place in known if place]
        if ranges or not items:
            found.append((key, ranges))
    return found


def _refuse_alone(written: Sequence[tuple[str, Sequence[Item]]]) -> None:
    """Raise InvalidConfig if an address cannot have an IPv4 address in it, because no set provides one."""
    if any(place.version == 4 for _, items in written for _, _, place in items):
        return
    for key in (key for _, items in written for key, bounds, _ in items if bounds.embed_ipv4):
        raise InvalidConfig(
            f"{key}.embedIPv4 true: no range set has IPv4 addresses, so this ADD has none; add one, such as "
            '[{"subnet": "10.56.0.0/16"}]'
        )


def _refuse_beside(written: Sequence[tuple[str, Sequence[Item]]]) -> None:
    """Raise InvalidConfig if a set of this node has a derived address, and another range."""
    for key, items in written:
        name = next((bounds.derivation for _, bounds, _ in items if bounds.derivation), "")
        if name and items[1:]:
            raise InvalidConfig(
                f"{key} has {len(items)} ranges on this node, one with {name}; a set provides one address; make each "
                "range a set"
            )


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
    by_rail = {key: list(rail.written(key)) for key, rail in keys.items()}
    for key, place in ((key, at) for sets in by_rail.values() for _, items in sets for key, _, at in items):
        if isinstance(place, Parent):
            raise InvalidConfig(
                f"{key}.subnet {place} in ipam.rails, but the parent is the rail; set ipam.ranges without rails"
            )
    if mixed := [key for sets in by_rail.values() for _, items in sets for key, bounds, _ in items if bounds.node]:
        raise InvalidConfig(f"{mixed[0]}.node in ipam.rails; write a network for each rail, with ranges for each node")
    for sets in by_rail.values():
        _refuse_alone(sets)
        _refuse_beside(sets)
    written = [(key, keys[key].device(), _placed(ipam, sets, {})) for key, sets in by_rail.items()]
    return rails_of(written, align=bool(ipam.align))


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
    place = policy.place(label, path, policy.allowed_paths("resolvConf"))
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
