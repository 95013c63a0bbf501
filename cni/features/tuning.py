"""The sysctls that a configuration requests: by name, with the keys of the reference plugin tuning, or with
``multiRail``.

The sysctls of the interface itself (``ipv4/conf/<name>/...``) end with it, and when it moves to another namespace.  The
others belong to the namespace.  The record has their former values, which undo restores with the last attachment that
set them.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.kernel import sysctl
from base.protocol.errors import CheckFailed, InvalidConfig, IoFailure
from base.protocol.spec import Json
from base.state import journal, trust
from base.state.journal import Entry
from base.state.pod import Pod
from base.state.record import Record

if TYPE_CHECKING:
    from cni.models import Common

# The list of the plugin tuning, so a node's administrator forbids a sysctl once, for tuning and for us.
_ALLOWED: Final = Path("/etc/cni/tuning/allowlist.conf")
_IFNAME: Final = "IFNAME"

# The sysctls of a rail's interface (Documentation/networking/ip-sysctl.rst).  For IPv4 the kernel uses the greater of
# these and conf/all's, so 2 is the only value of rp_filter that is never strict.  IPv6 answers only for the interface's
# own addresses anyway; but routers on the rail could add another default route, and addresses without a rule.
_OF_A_RAIL: Final = {
    "ipv4/conf/IFNAME/arp_ignore": "1",
    "ipv4/conf/IFNAME/arp_announce": "2",
    "ipv4/conf/IFNAME/rp_filter": "2",
    "ipv6/conf/IFNAME/accept_ra": "0",
}


def status(attach: "Common") -> None:
    """Raise InvalidConfig for contradicting sysctls, for one that is not on the node's list, and for an unsafe list.

    A list is unsafe if another user than root could have written it.  Raises IoFailure if it cannot be read.
    """
    _wanted(attach, _IFNAME)
    try:
        if (text := trust.read_trusted(str(_ALLOWED))) is None:
            return
        lines = text.decode().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise IoFailure(f"{_ALLOWED} cannot be read: {e}") from e
    for key in attach.sysctl:
        if not any(_matches(line.strip(), sysctl.name(sysctl.path(key))) for line in lines if line.strip()):
            raise InvalidConfig(f"sysctl {key!r} is not allowed on this node; remove it, or add it to {_ALLOWED}")


def claim(attach: "Common", entry: Entry, record: Record, pod: Pod) -> Record:
    """Write the record with the sysctls to disk: path -> ``value`` and, if the sysctl is the namespace's, its value
    ``before``.

    Before any change, raises InvalidConfig for sysctls that contradict each other, that cannot be set, or that another
    attachment has set to another value; IoFailure.
    """
    values = _wanted(attach, record.key.ifname)
    with journal.lock_namespace(entry.state_dir, record.identity):
        others = journal.beside(entry.state_dir, record)
        now = _now(values, pod, record.key.ifname)
        settings = {
            path: {"value": value, "before": _before(path, value, now[path], others)} for path, value in values.items()
        }
        record = replace(record, sysctl=settings)
        entry.save(record)
    return record


def read_back(pod: Pod, settings: Json) -> Json:
    """Return the settings with the kernel's spelling of each value (16 for "0x10").  Raises OSError."""
    now = sysctl.read_all(pod.fd, settings)
    return {path: {**setting, "value": now[path]} for path, setting in settings.items()}


def undo(entry: Entry, record: Record, pod: Pod) -> Record:
    """Restore the namespace's sysctls, except those that another attachment also set, or that were
    changed since.  Returns the record without the namespace's sysctls."""
    ours = {path: s for path, s in record.sysctl.items() if s["before"] is not None}
    if not ours:
        return record
    with journal.lock_namespace(entry.state_dir, record.identity):
        others = journal.beside(entry.state_dir, record)
        for path in ours.keys() - {path for other in others for path in other.sysctl}:
            # A value that the kernel refuses (a congestion control that only the host may choose) is not restored.  It
            # ends with the namespace, and a pod that cannot be deleted would be worse.
            with suppress(OSError):
                if not record.complete or sysctl.read(pod.fd, path) == ours[path]["value"]:
                    sysctl.write(pod.fd, {path: ours[path]["before"]})
        # Our claim ends here, under the lock, because the record may stay: else each of two concurrent DELs would leave
        # the values to the other.  If the disk is full, the claim ends with the record.
        record = replace(record, sysctl={path: s for path, s in record.sysctl.items() if path not in ours})
        with suppress(IoFailure):
            entry.save(record)
    return record


def check(record: Record, pod: Pod) -> None:
    """Raise CheckFailed unless every sysctl has the value that ADD left."""
    try:
        now = sysctl.read_all(pod.fd, record.sysctl)
    except OSError as e:
        path = sysctl.path_of(str(e.filename))
        raise CheckFailed(f"sysctl {sysctl.name(path)} cannot be read any more: {e.strerror}") from e
    for path, setting in record.sysctl.items():
        if now[path] != setting["value"]:
            raise CheckFailed(f"sysctl {sysctl.name(path)} is {now[path]!r}, ADD left {setting['value']!r}")


def _wanted(attach: "Common", ifname: str) -> dict[str, str]:
    """Return path -> value of all requested sysctls.  Raises InvalidConfig for two values of one."""
    named = _paths(attach.sysctl, ifname)
    if not attach.multiRail:
        return named
    # The kernel may lack IPv6.
    families = [name for name in ("ipv4", "ipv6") if os.path.exists(f"/proc/sys/net/{name}")]
    of_a_rail = {_of(ifname, path): value for path, value in _OF_A_RAIL.items() if path.startswith(tuple(families))}
    for path in named.keys() & of_a_rail.keys():
        if named[path].strip() != of_a_rail[path]:
            raise InvalidConfig(
                f"sysctl {sysctl.name(path)!r} {named[path]!r} conflicts with multiRail, which sets {of_a_rail[path]!r}"
                "; remove the sysctl, or remove multiRail and set the sysctls in docs/user/addresses.md"
            )
    return of_a_rail | named


def _paths(wanted: Mapping[str, str], ifname: str) -> dict[str, str]:
    """Return path -> value.  Raises InvalidConfig if two names mean the same sysctl."""
    found, names = dict[str, str](), dict[str, str]()
    for key, value in wanted.items():
        path = _of(ifname, sysctl.path(key))
        if path in found:
            raise InvalidConfig(f"sysctl {key!r} and {names[path]!r} are the same one; remove one of them")
        found[path], names[path] = value, key
    return found


def _of(ifname: str, path: str) -> str:
    return "/".join(ifname if part == _IFNAME else part for part in path.split("/"))


def _twin(path: str, ifname: str) -> str:
    """Return a path that has a sysctl of our interface before the interface exists.  Empty if the sysctl is not our
    interface's.

    The path is under ``default``, or for neighbours under ``lo``, because only the host has their defaults.
    """
    family, _, rest = path.partition("/")
    table, _, rest = rest.partition("/")
    name, _, entry = rest.partition("/")
    twin = {"conf": "default", "neigh": "lo"}.get(table, "")
    return f"{family}/{table}/{twin}/{entry}" if twin and name == ifname else ""


def _now(values: Mapping[str, str], pod: Pod, ifname: str) -> dict[str, str | None]:
    """Return the present value of each sysctl in the pod; None for the interface's own.  Raises InvalidConfig for a
    sysctl that cannot be set."""
    twins = {path: _twin(path, ifname) for path in values}
    asked = {twin or path: path for path, twin in twins.items()}
    try:
        now = sysctl.read_all(pod.fd, asked, writable=True)
    except OSError as e:
        path = asked.get(sysctl.path_of(str(e.filename)))
        if path is None:
            raise
        raise InvalidConfig(
            f"sysctl {sysctl.name(path)!r} {values[path]!r} cannot be set in the pod's namespace ({e.strerror}: "
            f"{e.filename}); correct it, or set it on the host"
        ) from e
    return {path: None if twin else now[path] for path, twin in twins.items()}


def _before(path: str, value: str, now: str | None, others: list[Record]) -> str | None:
    """Return the value from before any attachment set the sysctl; None for the interface's own.  Raises InvalidConfig
    if another attachment set another value."""
    if now is None:
        return None
    for other in others:
        if path in other.sysctl:
            if value.split() != str(other.sysctl[path]["value"]).split():
                raise InvalidConfig(
                    f"sysctl {sysctl.name(path)!r} {value!r} conflicts with {other.title}, which set "
                    f"{other.sysctl[path]['value']!r} for the whole pod; make them the same"
                )
            return str(other.sysctl[path]["before"])
    return now


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error as e:
        raise InvalidConfig(f"{_ALLOWED}: {pattern!r} is not a regular expression ({e}); correct it") from e
