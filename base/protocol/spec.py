"""One CNI request and its reply: environment, verbs, versions (CNI SPEC 1.1.0).  Pure; standard library only."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from base.protocol.errors import BadEnvironment, DecodeFailure, IncompatibleVersion, InvalidConfig, TryAgain
from base.protocol.spelling import normalize, refuse_duplicates

VERSIONS: Final = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
NEWEST: Final = VERSIONS[-1]
# The newest version that every runtime in use accepts (docs/user/install.md).
WIDELY_TAKEN: Final = "1.0.0"

# Verb -> the specification's version that introduced it, and its required variables.  CNI_PATH leads to delegates.  The
# specification requires it for GC only, and so do we: a runtime without delegates must not be refused for it.
VERBS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ADD": ("0.1.0", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
    "DEL": ("0.1.0", ("CNI_CONTAINERID", "CNI_IFNAME")),
    "CHECK": ("0.4.0", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
    "GC": ("1.1.0", ("CNI_PATH",)),
    "STATUS": ("1.1.0", ()),
    "VERSION": ("0.1.0", ()),
}

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
# "<containerID>:<ifname>.json.tmp" must fit NAME_MAX (255).
_ID_MAX: Final = 220
# The specification's main branch and libcni use the first name, its tag spec-v1.1.0 the second; the first takes
# precedence.
VALID_ATTACHMENTS: Final = ("cni.dev/valid-attachments", "cni.dev/attachments")

# Set for every program that hpn starts as a delegate.  The main plugin refuses to run if it is set.
DELEGATED: Final = "HPN_DELEGATED"
# Set by the launcher for a request that its agent had taken when it was killed.
AGENT_ENDED: Final = "HPN_AGENT_ENDED"

Json = dict[str, Any]
# A decoded configuration.  It must not be changed: the next request may share the object (``cached``).
Config = Mapping[str, Any]
T = TypeVar("T")
P = ParamSpec("P")

# Cached configurations.  If the runtime puts a VF's address into the configuration, each VF has its own.
_REMEMBERED: Final = 256
_TAKING_AWAY: Final = ("DEL", "GC")
# The most bytes of an altname (ALTIFNAMSIZ).
ALTNAME: Final = 127
# Files beside those of the interfaces, in net/ipv4/conf of /proc/sys and, with the module bonding, in /sys/class/net.
_FILES: Final = ("all", "default", "bonding_masters")
# Bytes.  A longer configuration contains lists, and does not repeat.
_LONG: Final = 1 << 12


@dataclass(frozen=True)
class Key:
    """An attachment's key within its network, by the specification."""

    container_id: str
    ifname: str

    def __str__(self) -> str:
        # Neither part contains a colon, so this is unambiguous.  State files use it as their name.
        return f"{self.container_id}:{self.ifname}"

    def of(self, pod: str, network: str) -> str:
        """The attachment's name in a message for people, with the pod's name and twelve digits of the container id."""
        container = f"container {self.container_id[:12]}"
        return f"{self.ifname} of {f'{pod}, ' if pod else ''}{container}, network {network}"


class Kept(ExitStack):
    """What the requests of one command for several attachments keep open from one to the next: ``thing``, by its name.
    A user closes it before keeping another thing, before a long wait, and before taking another lock."""

    name: str = ""
    thing: Any = None

    def __exit__(self, *failure: Any) -> bool | None:
        self.name, self.thing = "", None
        return super().__exit__(*failure)


@dataclass(frozen=True)
class Request:
    """A runtime's request to a plugin: its environment and its stdin, not parsed.

    - ``inside``: descriptors of CNI_NETNS and of a NETLINK_ROUTE socket in it, if a launcher opened them, because we
      may not see the path.  Their sender closes them.
    - ``abandoned``: whether the caller has stopped waiting for the reply; one in the same process cannot.
    - ``attached``: the attachments that the IPAM's GC must spare, even if the runtime's list lacks them.  Call it after
      reading the leases.
    - ``in_use``: for the IPAM's DEL: the pod may still use the addresses.
    - ``process``: the process that was started for this request; 0 if there is none, or if it is not visible.
    - ``is_last``: for the IPAM's ADD: if the interface is missing now, it will stay missing.
    - ``kept``: for the IPAM's ADD and DEL: what it may keep open for the command's next request; None for one alone.
    """

    environ: Mapping[str, str]
    stdin: bytes = b""
    inside: tuple[int, int] | None = None
    abandoned: Callable[[], bool] = bool
    attached: Callable[[], Collection[Key]] = tuple
    in_use: bool = False
    process: int = 0
    is_last: bool = False
    kept: Kept | None = None

    def var(self, name: str) -> str:
        """A variable's value; empty if it is not set."""
        return self.environ.get(name, "")

    @property
    def command(self) -> str:
        """CNI_COMMAND."""
        return self.var("CNI_COMMAND")

    @property
    def was_taken(self) -> bool:
        """Whether an agent had taken it, and was killed before its reply: the same caller still waits."""
        return bool(self.var(AGENT_ENDED))

    @property
    def netns(self) -> str:
        """CNI_NETNS: a path."""
        return self.var("CNI_NETNS")

    @property
    def key(self) -> Key:
        """The attachment's key, from CNI_CONTAINERID and CNI_IFNAME."""
        return Key(self.var("CNI_CONTAINERID"), self.var("CNI_IFNAME"))

    def but(self, *, stdin: bytes | None = None, **environ: str) -> "Request":
        """The same request with another stdin or other variables, for a delegate."""
        return replace(self, stdin=self.stdin if stdin is None else stdin, environ={**self.environ, **environ})

    def refuse_if_abandoned(self) -> None:
        """Raise TryAgain if the caller has stopped waiting for the reply.

        Call it under the lock that guards the command's changes.  A runtime that killed the caller may have sent
        another command since, and got its answer.
        """
        if self.abandoned():
            raise TryAgain(f"the caller no longer waits for this {self.command}, so it did not begin; repeat it")


@dataclass(frozen=True)
class Reply:
    """The answer: at most one JSON document for stdout, the exit code, and lines for stderr, which no program parses.
    ``code`` is the error document's code, 0 for success."""

    stdout: str = ""
    exit_code: int = 0
    log: tuple[str, ...] = field(default=())
    code: int = 0


Program = Callable[[Request], Reply]


def variables(block: bytes) -> dict[str, str]:
    """An environment block as a dictionary: NAME=VALUE strings, each ended by a zero byte (man 5 proc_pid_environ).  Of
    a repeated name, the first one counts, as in getenv."""
    pairs = os.fsdecode(block).split("\0")
    return dict(pair.split("=", 1) for pair in reversed(pairs) if "=" in pair)


def check_environment(request: Request) -> None:
    """Raise BadEnvironment if a variable is missing or invalid; the message names all missing ones.  The rules: SPEC
    1.1.0, "Parameters"; libcni's pkg/utils for the characters."""
    command = request.command
    if command not in VERBS:
        known = ", ".join(VERBS)
        raise BadEnvironment(f"CNI_COMMAND={command!r} is not a command; use one of {known}")
    missing = [name for name in VERBS[command][1] if not request.var(name)]
    if missing:
        raise BadEnvironment(f"{command} requires {', '.join(missing)}; set each to a value")
    required = VERBS[command][1]
    if "CNI_CONTAINERID" in required:
        container_id, ifname = request.var("CNI_CONTAINERID"), request.var("CNI_IFNAME")
        if not _NAME.fullmatch(container_id) or len(container_id) > _ID_MAX:
            raise BadEnvironment(
                f"CNI_CONTAINERID={container_id!r} is not a container id: "
                f"letters, digits, '_', '.', '-', first a letter or digit, at most {_ID_MAX}"
            )
        # libcni accepts some names that the kernel refuses, and so sends a DEL after the failed ADD.
        if why := (bad_ifname if command == "DEL" else bad_new_ifname)(ifname):
            raise BadEnvironment(f"CNI_IFNAME={ifname!r} cannot name an interface: {why}")


def bad_ifname(name: str, most: int = 15) -> str:
    """Why the kernel (dev_valid_name) or libcni would refuse an interface's name; empty if neither does.  With ``most``
    ALTNAME, why nothing can have it as a name or an altname."""
    if name in (".", ".."):
        return "'.' and '..' are directories"
    # The kernel replaces %d by a number, so the interface would get another name than requested.
    if any(c in "/:%" or c.isspace() or not c.isprintable() for c in name):
        return "no '/', ':', '%', white space or control characters"
    # After the characters, because a lone surrogate has no bytes.
    return "" if 1 <= len(os.fsencode(name)) <= most else f"1 to {most} bytes"


def bad_new_ifname(name: str) -> str:
    """Why no interface can get this name: ``bad_ifname``'s reasons, and those that do not hold for an altname."""
    if name in _FILES:
        return f"{', '.join(map(repr, _FILES[:-1]))} and {_FILES[-1]!r} are the kernel's own files"
    if why := bad_ifname(name):
        return why
    # The kernel's isspace() reads bytes as Latin-1.
    return "no byte a0, as in 'à', which the kernel takes for white space" if b"\xa0" in os.fsencode(name) else ""


def cached(parse: Callable[Concatenate[bytes, P], T]) -> Callable[Concatenate[bytes, P], T]:
    """A decorator that caches ``parse``'s result for the latest stdins: a node's attachments share few configurations.
    A configuration with prevResult, or a long one with lists, does not repeat, and is not cached."""
    caching: Any = lru_cache(_REMEMBERED)(parse)  # Any: lru_cache's type loses the parameters

    def parsed(stdin: bytes, /, *args: P.args, **kwargs: P.kwargs) -> T:
        repeats = len(stdin) < _LONG and b'"prevResult"' not in stdin
        found: T = (caching if repeats else parse)(stdin, *args, **kwargs)
        return found

    return parsed


def configuration(request: Request) -> Config:
    """The request's configuration, decoded.  Raises DecodeFailure, InvalidConfig.  Ambiguous configurations are
    refused, except for DEL and GC: a pod must be deletable, whatever its network's configuration has become."""
    return decode(request.stdin, request.command not in _TAKING_AWAY)


@cached
def decode(stdin: bytes, strictly: bool = True) -> Config:  # noqa: FBT001, FBT002  # lru_cache's keys are positional
    """The configuration as a JSON object, in our spelling.  Raises DecodeFailure, InvalidConfig.  With ``strictly``, a
    repeated key is refused; otherwise the last one counts."""
    try:
        conf = json.loads(stdin, object_pairs_hook=refuse_duplicates if strictly else None)
        if isinstance(conf, dict):
            return normalize(conf, strictly=strictly)
    except (ValueError, RecursionError) as e:
        raise DecodeFailure(f"stdin is not JSON: {e}; send one network configuration object") from e
    raise DecodeFailure(f"stdin is a JSON {type(conf).__name__}; send one network configuration object")


def version_of(conf: Mapping[str, Any], command: str) -> str:
    """The version for the answer.  Raises IncompatibleVersion if it is not supported, or lacks the command.  DEL and GC
    accept an unsupported version: they use the record, and their success has no document."""
    version = conf.get("cniVersion") or "0.1.0"
    if version not in VERSIONS and command in _TAKING_AWAY:
        return NEWEST
    if version not in VERSIONS and not conf.get("cniVersion"):
        raise IncompatibleVersion(
            f'cniVersion is missing, which means 0.1.0, and that is not supported; set "cniVersion": "{WIDELY_TAKEN}" '
            "in the network's configuration",
            f"config is {json.dumps(version)}, plugin supports {json.dumps(VERSIONS)}",
        )
    if version not in VERSIONS:
        raise IncompatibleVersion(
            f"cniVersion {version!r} is not supported; set one of {', '.join(VERSIONS)}",
            f"config is {json.dumps(version)}, plugin supports {json.dumps(VERSIONS)}",
        )
    if version < VERBS[command][0]:
        raise IncompatibleVersion(
            f"cniVersion {version!r} has no {command}; set cniVersion {VERBS[command][0]} or newer"
        )
    return str(version)


def network_of(conf: Mapping[str, Any]) -> str:
    """The network's name, which can name a directory.  Raises InvalidConfig."""
    name = conf.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _ID_MAX:
        raise InvalidConfig(
            f"name {name!r} is not a network name: letters, digits, '_', '.', '-', first a letter or digit, "
            f"at most {_ID_MAX}"
        )
    return name


def valid_attachments(conf: Mapping[str, Any]) -> frozenset[Key] | None:
    """The attachments that GC must spare, by the runtime's list; None if it sent none.  Raises InvalidConfig."""
    key = next((k for k in VALID_ATTACHMENTS if conf.get(k) is not None), "")
    if not key:
        return None
    value = conf[key]
    members = [_attachment(item) for item in value] if isinstance(value, list) else [None]
    valid = frozenset(filter(None, members))
    # GC removes what is not in this list, so guess nothing.
    if None in members:
        raise InvalidConfig(f"{key} {value!r} is not a list of {{containerID, ifname}}")
    return valid


def _attachment(item: Any) -> Key | None:
    match item:
        case {"containerID": str(container_id), "ifname": str(ifname)}:
            return Key(container_id, ifname)
        case _:
            return None
