"""Rails: one ADD attaches all rails of a pod, which the network's configuration lists.

    {"type": "hpn", "kind": "macvlan", "rails": ["rail0", "rail1"], ...}
    {"type": "hpn", "kind": "sriov", "rails": ["example.com/rail0", "example.com/rail1"], ...}     the pod's resources

Each rail is an attachment with a record of its own, under the network's name and its own interface.  They are one
transaction (cni/transaction.py), and a chain with the request's key names them (base/state/chains.py).  So DEL, CHECK
and GC, which know only the request's interface, find them all.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from typing import Any, Final

from base.kernel import rtnl
from base.protocol import arguments, spec
from base.protocol.errors import AddressUnavailable, BadEnvironment, CheckFailed, CniError, InvalidConfig
from base.protocol.location import location
from base.protocol.result import Address, Result
from base.protocol.spec import Config, Json, Request
from base.state import chains, permitted
from base.state.chains import Chain, Member
from base.state.permitted import Permits
from cni import commands, config, given, several
from cni.config import previous_result
from cni.features import delegate
from cni.features.delegate import Programs
from cni.transaction import Asked
from cni.undo import Undo, after

# More than a node has; an attachment for each is in memory.
_MOST: Final = 64
_MEETING: Final = "send DEL first, or choose names that do not meet: the rails are numbered from CNI_IFNAME"
# The first interface where no pod names one, for STATUS.
_NAME: Final = "hpn0"
# The keys that name one interface or device.
_OF_ONE: Final = ("master", "pf", "device", "hwaddr", "kernelpath")
# The device that Multus adds for the network's resource, and its file.  It describes one device, and Multus would show
# it for each interface of the result.
_OF_MULTUS: Final = ("deviceID", "pciBusID")
_OF_MULTUS_AT_RUN_TIME: Final = ("deviceID", "CNIDeviceInfoFile")


def add(request: Request, conf: Config, log: list[str], programs: Programs) -> Result:
    """Attach all rails, or none.  The result has all interfaces, in the order of the rails.  Raises CniError,
    OSError."""
    ips = _requested_ips(conf, request)
    named = _named(request, conf, ips)
    members = tuple(member for member, _ in named)
    where, previous = location(conf), previous_result(conf)
    whole = Chain(where.state_dir, where.network, request.key)
    permits = permitted.read()
    asked = [_asked(one, title, request, programs, permits) for one, title in named]
    with whole.lock():
        request.refuse_if_abandoned()
        undo = Undo(request, programs, log)
        several.settle(whole, undo, "its rails are")
        several.refuse_standing(members, request, _MEETING)
        results = several.attach(whole, members, asked, undo)
        try:
            _refuse_unused(ips, results)
        except CniError as failure:
            with after(failure, "and could not undo it all, DEL has to"):
                undo.members_of_chain(whole, members)
            raise
    return _joined(results, previous)


def _refuse_unused(ips: Sequence[Address], results: Sequence[Result]) -> None:
    """Raise AddressUnavailable for a requested address that no rail got, because it is of a rail that the pod lacks."""
    used = {ip.address.ip for result in results for ip in result.ips}
    for one in ips:
        if one not in used:
            raise AddressUnavailable(f"requested address {one}: none of the pod's rails has its range; request another")


def _asked(member: Member, title: str, request: Request, programs: Programs, permits: Permits) -> Asked:
    one = member.request(request)
    try:
        conf = spec.configuration(one)
        wanted = replace(commands.allowed(one, conf, programs, permits), rail_of=request.key.ifname)
        return Asked(wanted, conf, one, title)
    except CniError as e:
        e.add_note(f"for {title}")
        raise


def _joined(results: Sequence[Result], previous: Result | None) -> Result:
    """One result of all rails, after the previous plugin's.  They may have the same routes."""
    own = reduce(lambda before, one: one.after(before), results)
    own = replace(own, routes=tuple(dict.fromkeys(own.routes)))
    return own.after(previous) if previous else own


def check(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Raise CheckFailed unless each rail is attached as ADD left it, apart from changes that prevResult reports."""
    where = location(conf)
    whole = chains.find(where.state_dir, where.network, request.key)
    members = whole.load() if whole else ()
    if not members:
        raise CheckFailed(f"{request.key.of('', where.network)}: its rails are not attached; delete the pod")
    for member in members:
        body = {**member.config, "prevResult": conf.get("prevResult")}
        one = replace(member, config=body).request(request)
        commands.check(one, spec.configuration(one), log, programs)


def status(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Raise NotAvailable, or the IPAM plugin's error, if no ADD of one of the rails can be served now.  STATUS is of no
    pod, so it leaves out resources."""
    named = _named(request, conf, _requested_ips(conf, request))
    if not named:
        several.refuse_if_not_ready(location(conf))
        delegate.ask_if_it_can(location(conf).ipam, request, programs)
    for member, title in named:
        one = member.request(request)
        try:
            commands.status(one, spec.configuration(one), log, programs)
        except CniError as e:
            e.add_note(f"for {title}")
            raise


COMMANDS: Final = {"ADD": add, "CHECK": check, "STATUS": status}


def _named(request: Request, conf: Config, ips: Sequence[Address]) -> list[tuple[Member, str]]:
    """The attachments that the configuration asks for, with their names for people.  STATUS is of no pod, so it leaves
    out resources.  Raises InvalidConfig, BadEnvironment, LinkUnavailable, TryAgain."""
    listed = _listed(conf)
    runtime = {k: v for k, v in (conf.get("runtimeConfig") or {}).items() if k not in _OF_MULTUS_AT_RUN_TIME}
    common = {k: v for k, v in conf.items() if k not in (*_OF_MULTUS, "prevResult", "runtimeConfig")}
    if ips:
        runtime["ips"] = [*map(str, ips)]
    if runtime:
        common["runtimeConfig"] = runtime
    rails = list[tuple[str, Json]]()
    held = cache(lambda: given.held(request))  # once for all resources
    for one in listed:
        if "/" not in one:
            rails.append((one, config.of_rail(one, common)))
        elif request.command != "STATUS":
            rails += given.rails(one, held(), common)
    _refuse_twice(rails)
    _refuse_what_is_of_one(conf, request, len(rails))
    names = _names(request.var("CNI_IFNAME") or _NAME, [title for title, _ in rails])
    return [
        (Member(name, "", {**common, "rails": [title], **keys}), f"rail {title} as {name}")
        for name, (title, keys) in zip(names, rails, strict=True)
    ]


def _listed(conf: Config) -> list[str]:
    rails = conf["rails"]
    asked = f"rails {json.dumps(rails)}"
    if not isinstance(rails, list) or not rails or not all(isinstance(one, str) and one for one in rails):
        raise InvalidConfig(
            f'{asked} is not a list of interfaces or resources; list one for each rail, as in ["rail0", "rail1"]'
        )
    if len(rails) > _MOST:
        raise InvalidConfig(f"rails with {len(rails)} entries: a pod has at most {_MOST} rails; write several networks")
    return rails


def _refuse_twice(rails: Sequence[tuple[str, Json]]) -> None:
    """Raise InvalidConfig for two rails that are one interface or device, perhaps by its altname."""
    if len(rails) > _MOST:
        raise InvalidConfig(f"rails: kubelet gave the pod {len(rails)} devices, and a pod has at most {_MOST} rails")
    there = dict[str, str]()
    for title, keys in rails:
        ((key, name),) = keys.items()
        device = name if spec.bad_ifname(name, spec.ALTNAME) else rtnl.real_name(name)
        if device in there:
            raise InvalidConfig(
                f"rails: {there[device]!r} and {title!r} are the same {key}, {device!r}, and a pod gets one interface "
                "of it; remove one"
            )
        there[device] = title


def _refuse_what_is_of_one(conf: Config, request: Request, count: int) -> None:
    """Raise InvalidConfig for a key that names an interface, and for one that only one of ``count`` can have."""
    if named := next((key for key in _OF_ONE if conf.get(key)), None):
        raise InvalidConfig(f"{named} {json.dumps(conf[named])} beside rails, which name the interfaces; remove one")
    if conf.get("linkInContainer"):
        raise InvalidConfig("linkInContainer true beside rails, which are the host's interfaces; remove one")
    if count < 2:
        return
    args, several = arguments.cni_args(request.var("CNI_ARGS")), f"{count} interfaces"
    for key, arg in (("mac", "MAC"), ("guid", "GUID"), ("infinibandGUID", "")):
        value = arguments.requested(conf, args, key, arg) or conf.get(key)
        if arguments.is_given(value):
            raise InvalidConfig(f"{key} {json.dumps(value)} beside rails: {several} cannot have one {key}; remove it")
    for outer, key in (("rdma", "name"), ("policyRouting", "table")):
        value = _below(conf, outer).get(key)
        if value is not None:
            raise InvalidConfig(
                f"{outer}.{key} {json.dumps(value)} beside rails: {several} cannot have one; remove it, or write a "
                "network for each rail"
            )


def _requested_ips(conf: Config, request: Request) -> tuple[Address, ...]:
    """The addresses that the pod requests; our own IPAM plugin gives each to the rail that has its range.  Raises
    InvalidConfig if no range decides which rail an address is for."""
    asked = arguments.requested_ips(conf, arguments.cni_args(request.var("CNI_ARGS")))
    if asked and "rails" not in _below(conf, "ipam"):
        raise InvalidConfig(
            f"ips {', '.join(map(str, asked))} beside rails: no range decides which rail an address is for; write "
            "ipam.rails, with a range for each rail, or remove it"
        )
    return asked


def _below(conf: Config, key: str) -> Mapping[str, Any]:
    value = conf.get(key)
    return value if isinstance(value, dict) else {}


def _names(ifname: str, rails: Sequence[str]) -> Iterator[str]:
    """The rails' interfaces in the pod: CNI_IFNAME, and those that count on from its number.  Raises BadEnvironment."""
    base, number = re.fullmatch(r"(.*?)([0-9]*)", ifname, re.DOTALL).groups()  # type: ignore[union-attr]
    for at, rail in enumerate(rails):
        name = f"{base}{int(number or 0) + at}" if at else ifname
        if why := spec.bad_new_ifname(name):
            raise BadEnvironment(
                f"CNI_IFNAME={ifname}: {name!r}, of rail {rail}, {why}; choose a shorter name, such as hpn0"
            )
        yield name
