"""What a configuration may name, and what a pod may choose for itself, by the policy file (policy.py).

    {"podMayChoose": ["mac", "ips", "mtu"],
     "allowedNames": {"master": ["rail*"], "kind": ["macvlan", "sriov"]},
     "allowedPaths": {"logFile": [], "dataDir": ["/var/lib/tenants"]}}

Multus fills args.cni from the pod's annotation (cni-args), whatever the network's configuration contains.  So args.cni
is the pod author's input.  ADD and STATUS check it before they begin.  DEL, GC and CHECK use the record: a pod must be
deletable.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from base.kernel import files
from base.protocol import arguments, spelling
from base.protocol.errors import InvalidConfig
from base.protocol.location import IPAM_DIR, PROGRAM_DIR, STATE_DIR, is_absolute
from base.protocol.spec import Config, Request
from base.state import policy

# The keys of args.cni that hpn reads, so an administrator can let a pod choose them.
CHOICES: Final = ("mac", "ips", "mtu", "vf", "vlan", "guid", "infinibandGUID", "sticky")
# Other plugins accept these in args.cni.
_BY_DEFAULT: Final = ("mac", "ips", "mtu")
# ib-kubernetes writes its GUID there.  This key requests one from it.
_IB_KUBERNETES: Final = "ibKubernetesEnabled"
_GUIDS: Final = ("guid", "infinibandGUID")
# Keys of the specification and of libcni, without a meaning in args.cni; and tuning's sysctls, which tuning reads
# there.
_OTHERS: Final = frozenset({
    "cniVersion", "name", "type", "prevResult", "capabilities", "cniVersions", "disableCheck", "disableGC",
    "loadOnlyInlinedPlugins", "runtimeConfig", "args", "sysctl",
})  # fmt: skip
_OF_RUNTIMES: Final = dict(spelling.NETWORK.below)["runtimeConfig"]
# All keys with a meaning for hpn: name in lower case -> name.
_KNOWN: Final = {
    key.lower(): key for key in {*CHOICES, *spelling.NETWORK.keys, *_OF_RUNTIMES.keys} if key not in _OTHERS
}
_REMEDY: Final = "remove it from args.cni, which Multus fills from the pod's annotation (cni-args)"
# The lists of names.  A device's name is its interface, its MAC, its path or its bus address.
LISTS: Final = ("name", "kind", "master", "pf", "device")
# The list that decides about a value, its key in the configuration, and the value; an empty master is the default's.
Named = tuple[str, str, str]
_OF_A_STATE_DIR: Final = (
    "attachments",
    "locks",
    "quarantine",
    "refused",
    "node",
    "rdma",
    "chains",
    "claims",
)


@dataclass(frozen=True)
class Permits:
    """The policy file's decisions; without the file, only pods' choices are restricted.

    - ``choices``: the keys that a pod may choose; None for the default.
    - ``names``: the patterns of names, by list.
    - ``places``: the directories that may hold leases, by key.
    - ``remarks``: lines about keys without effect, for the log.
    - ``fit``: the directories for leases that were found free of other files; all rails of a pod have the same.
    """

    choices: tuple[str, ...] | None
    names: Mapping[str, tuple[str, ...]]
    places: Mapping[str, tuple[str, ...]]
    remarks: tuple[str, ...] = ()
    fit: set[str] = field(default_factory=set, compare=False)

    def refuse_choices(self, request: Request, conf: Config, keys: Collection[str] = ()) -> None:
        """Raise InvalidConfig for a choice of the pod that this node does not allow; of these keys, or of all."""
        for written, value in arguments.args_cni(conf).items():
            key = _KNOWN.get(written.casefold(), "")
            if key and (not keys or key in keys) and arguments.is_given(value):
                _refuse_choice(key, value, request, conf, self.choices)

    def refuse_names(self, request: Request, conf: Config, named: Collection[Named], *, has_leases: bool) -> None:
        """Raise InvalidConfig for a name or a directory that this node does not allow, or a directory with another
        purpose.  ``has_leases``: hpn-ipam allocates the addresses."""
        if self.names:
            for one in (("name", "name", str(conf.get("name"))), *named):
                _refuse_name(*one, self.names.get(one[0]))
        self.refuse_places(request, conf, has_leases=has_leases)

    def refuse_places(self, request: Request, conf: Config, *, has_leases: bool) -> None:
        """``refuse_names`` for directories only."""
        refuse_former(conf)
        ipam = conf.get("ipam")
        path = ipam.get("dataDir") if has_leases and isinstance(ipam, dict) else None
        if isinstance(path, str) and is_absolute(path):
            folder = f"{path}/{conf.get('name')}"
            if folder not in self.fit:
                _refuse_another_purpose(path, folder, request.var("HPN_PROGRAM_DIR"))
                self.fit.add(folder)
            if "dataDir" in self.places:
                policy.place("ipam.dataDir", path, self.places["dataDir"])


def refuse_former(conf: Config) -> None:
    """Raise InvalidConfig for a key of an earlier version.  DEL, GC and CHECK ignore it."""
    if policy.FORMER in conf:
        raise InvalidConfig(
            f"{policy.FORMER} {json.dumps(conf[policy.FORMER])} is a key of an earlier version; remove "
            f"{policy.FORMER}, and name its directory ipam as ipam.dataDir while pods have addresses from there"
        )


def read(file: str = "") -> Permits:
    """Read the policy file, or another in its place.  Raises InvalidConfig if it is broken."""
    document = policy.document(file)
    keys = (*policy.DEFAULTS, *policy.UNBOUNDED)
    places = {key: paths for key in keys if (paths := policy.listed_paths(document, key)) is not None}
    names = document.get(policy.NAMES, {})
    if not isinstance(names, dict):
        raise policy.broken(f"{policy.NAMES} {names!r} is not an object of lists of names")
    patterns = {key: _list(f"{policy.NAMES}.{key}", listed) for key, listed in names.items()}
    _refuse_unknown(policy.NAMES, patterns, LISTS)
    choices = _list(policy.CHOICES, document[policy.CHOICES]) if policy.CHOICES in document else None
    _refuse_unknown(policy.CHOICES, choices or (), CHOICES)
    return Permits(choices, patterns, places, policy.remarks(document))


def _list(key: str, listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise policy.broken(f"{key} {listed!r} is not a list of names")
    return tuple(listed)


def _refuse_unknown(key: str, found: Collection[str], known: Collection[str]) -> None:
    if unknown := [one for one in found if one not in known]:
        raise policy.broken(f"{key}: {unknown[0]!r} is not one of {', '.join(known)}")


def _refuse_choice(key: str, value: Any, request: Request, conf: Config, listed: Collection[str] | None) -> None:
    if listed is None:
        listed = (*_BY_DEFAULT, *(_GUIDS if conf.get(_IB_KUBERNETES) is True else ()))
    if key in listed:
        return
    asked = f"args.cni.{key} {json.dumps(value)}"
    if key not in CHOICES:
        raise InvalidConfig(f"{asked}: a pod may not choose {key}, only the network's configuration may; {_REMEDY}")
    who = "no pod choose"
    if key == "sticky":
        namespace = arguments.cni_args(request.var("CNI_ARGS")).get("K8S_POD_NAMESPACE", "")
        if not isinstance(value, str) or "/" not in value or value.partition("/")[0] == namespace:
            return
        who = f"a pod of namespace {namespace!r} choose no other namespace's"
    also = f", or set {_IB_KUBERNETES} in the configuration if ib-kubernetes gives it" if key in _GUIDS else ""
    raise InvalidConfig(
        f"{asked}: this node lets {who} {key}; {_REMEDY}{also}, or have the node's administrator add {key!r} to "
        f"{policy.CHOICES} in {policy.FILE}"
    )


def _refuse_name(listed: str, key: str, value: str, patterns: Collection[str] | None) -> None:
    if patterns is None:
        return
    from fnmatch import fnmatchcase  # noqa: PLC0415  # few nodes have such a list

    if not any(fnmatchcase(value, pattern) for pattern in patterns):
        what = f"{key} {value!r}" if value else f"{key} is not set, so it is the default route's, which"
        raise InvalidConfig(
            f"{what} is none of those that this node allows ({', '.join(patterns) or 'none'}); choose one of them, or "
            f"have the node's administrator add it to {policy.NAMES}.{listed} in {policy.FILE}"
        )


def _refuse_another_purpose(path: str, folder: str, program: str) -> None:
    """Raise InvalidConfig if hpn keeps other files where it would make the folder: it could take them for leases."""
    real, leases, others = (
        os.path.realpath(folder),
        _real(IPAM_DIR),
        (_real(program or PROGRAM_DIR), *_parts(STATE_DIR)),
    )
    above = os.path.dirname(real)
    place = next((other for other in others if files.is_within(real, other)), "")
    if files.is_within(real, leases) and above != leases:
        place = leases
    while not place and above != "/":
        place = above if os.path.exists(f"{above}/leases") and os.path.exists(f"{above}/index") else ""
        above = os.path.dirname(above)
    if place:
        raise InvalidConfig(f"ipam.dataDir {path!r}: hpn keeps other files in {place}; name another directory")


# The administrator decides where these lead, once.
_real = lru_cache(16)(os.path.realpath)


@lru_cache(4)
def _parts(state_dir: str) -> tuple[str, ...]:
    return tuple(f"{_real(state_dir)}/{name}" for name in _OF_A_STATE_DIR)
