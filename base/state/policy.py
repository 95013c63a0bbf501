"""The node administrator's decisions, which no configuration can change: /etc/hpn/policy.json.

    {"allowedPaths": {"logFile": ["/var/log/hpn"],
                      "resolvConf": ["/etc/resolv.conf", "/run/systemd/resolve"],
                      "CNIDeviceInfoFile": ["/run/k8s.cni.cncf.io/devinfo"]},
     "allowedNames": {"master": ["rail*"]},
     "podMayChoose": ["mac", "ips", "mtu"],
     "memlockMost": 17179869184,
     "backends": {"etcd": {"endpoints": ["https://10.0.0.1:2379"]}, "nodeName": "node1"}}

The author of a NetworkAttachmentDefinition chooses a configuration's keys, and root opens the files that they name.  An
entry of ``allowedPaths`` allows itself and everything below it.  Paths are compared as text, so nothing outside is even
inspected.  permitted.py explains ``allowedNames`` and ``podMayChoose``.  ``memlockMost`` bounds the locked memory
that hpn node lets containers have.  ``backends`` holds the addresses and
credentials of the backends that a cluster's nodes share.  ADD and STATUS read the file; other commands read it only if
a key of the configuration requires it.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.kernel import files
from base.protocol.errors import InvalidConfig
from base.state import trust

# A test's fixture changes it.  There is no option for it: a caller who could set it could as well name the paths.
FILE = "/etc/hpn/policy.json"
DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "logFile": ("/var/log/hpn",),
    "resolvConf": ("/etc/resolv.conf", "/run/systemd/resolve"),
    "CNIDeviceInfoFile": ("/var/run/k8s.cni.cncf.io/devinfo", "/run/k8s.cni.cncf.io/devinfo"),
}
# Paths that may be anywhere, unless the file restricts them.
UNBOUNDED: Final = ("dataDir",)
# Read without effect: an earlier version's key.
FORMER: Final = "stateDir"
_PATHS: Final = "allowedPaths"
NAMES: Final = "allowedNames"
CHOICES: Final = "podMayChoose"
MEMLOCK: Final = "memlockMost"
_BACKENDS: Final = "backends"
BACKENDS: Final = ("kubernetes", "etcd")  # the kinds of backends
_NODE_NAME: Final = "nodeName"


@dataclass(frozen=True)
class Place:
    """An allowed path: the administrator's ``entry``, and the ``names`` that lead from there to the file."""

    path: str
    entry: str
    names: tuple[str, ...]

    def read(self, limit: int) -> bytes:
        """All of the file.  Raises OSError, also if it is not a regular file, or is longer than ``limit`` bytes."""
        if not self.names:  # the entry is the file: links in its path are the administrator's
            return files.read(self.path, limit)
        with files.open_directory(self.entry, self.names[:-1]) as folder:
            return files.read(self.names[-1], limit, folder)

    def open_for_append(self) -> int:
        """A descriptor for one write at the file's end.  A missing file is made, with mode 600.  Raises OSError."""
        with self.folder() as (folder, name):
            return _open_or_create(folder, name, os.O_WRONLY | os.O_APPEND)

    @contextmanager
    def folder(self) -> Iterator[tuple[int, str]]:
        """The file's directory as a descriptor, and the file's name in it.  A missing entry is made.  Raises
        OSError."""
        above, names = (self.entry, self.names) if self.names else os.path.split(self.entry.rstrip("/"))
        *between, name = [names] if isinstance(names, str) else names
        Path(above).mkdir(0o700, parents=True, exist_ok=True)
        with files.open_directory(above, between) as folder:
            yield folder, name


def place(label: str, path: str, allowed: Sequence[str]) -> Place:
    """The path as one of the ``allowed``.  Raises InvalidConfig, with ``label`` as the configuration's key for it."""
    names = _names(path)
    if ".." in names:
        raise InvalidConfig(f"{label} {path!r} contains '..'; write the path without it")
    for entry in allowed:
        above = _names(entry)
        if names[: len(above)] == above:
            return Place(path, entry, tuple(names[len(above) :]))
    where, key = " or ".join(allowed) or "any directory", label.rpartition(".")[2]
    raise InvalidConfig(
        f"{label} {path!r} is not below {where}, where this node allows it; use that, remove {label}, or have the "
        f"node's administrator add a directory to {_PATHS}.{key} in {FILE}"
    )


def allowed_paths(key: str) -> tuple[str, ...]:
    """The paths that configurations may name under a key of DEFAULTS.  Raises InvalidConfig if the policy file is
    broken."""
    paths = listed_paths(document(), key)
    return DEFAULTS[key] if paths is None else paths


def listed_paths(document: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """The file's paths under a key; None if the file lacks the key.  Raises InvalidConfig if it is broken."""
    listed = document.get(_PATHS, {})
    if not isinstance(listed, dict):
        raise broken(f"{_PATHS} {listed!r} is not an object of lists of paths")
    if unknown := sorted(listed.keys() - {*DEFAULTS, *UNBOUNDED, FORMER}):
        raise broken(f"{_PATHS}.{unknown[0]} is not one of {', '.join((*DEFAULTS, *UNBOUNDED))}")
    if key not in listed:
        return None
    entries = listed[key]
    if not isinstance(entries, list | tuple) or not all(map(_is_path, entries)):
        raise broken(f"{_PATHS}.{key} {entries!r} is not a list of absolute paths without '..'")
    return tuple(entries)


def remarks(document: Mapping[str, Any]) -> tuple[str, ...]:
    """A line for the log, if the file has a key of an earlier version."""
    is_former = FORMER in document.get(_PATHS, {})
    return (f"the policy file {FILE}: {_PATHS}.{FORMER} has no effect any more; remove it",) if is_former else ()


def backend(kind: str) -> tuple[Mapping[str, Any], str]:
    """The file's settings for a backend of this kind, and the node's name in it; empty if missing.
    Raises InvalidConfig if the policy file is broken."""
    backends = document().get(_BACKENDS, {})
    if not isinstance(backends, dict):
        raise broken(f"{_BACKENDS} {backends!r} is not an object of backends")
    if unknown := sorted(backends.keys() - {*BACKENDS, _NODE_NAME}):
        raise broken(f"{_BACKENDS}.{unknown[0]} is not one of {', '.join(BACKENDS)}, {_NODE_NAME}")
    about, name = backends.get(kind, {}), backends.get(_NODE_NAME, "")
    if not isinstance(about, dict):
        raise broken(f"{_BACKENDS}.{kind} {about!r} is not an object")
    if not isinstance(name, str) or (_NODE_NAME in backends and not name):
        raise broken(f"{_BACKENDS}.{_NODE_NAME} {name!r} is not a node's name")
    return about, name


def memlock_most() -> int | str:
    """The largest limit of locked memory that hpn node sets; without the key, every limit is allowed.  Raises
    InvalidConfig if the policy file is broken."""
    from base.protocol import memlock  # noqa: PLC0415  # no CNI command asks

    most: int | str = document().get(MEMLOCK, memlock.UNLIMITED)
    if why := memlock.why_refused(most):
        raise broken(f"{MEMLOCK} {json.dumps(most)} {why}")
    return most


def document(file: str = "") -> dict[str, Any]:
    """The policy file, or another file in its place, with known keys only; empty if there is none.  Raises
    InvalidConfig if it is broken."""
    try:
        text = trust.read_trusted(file or FILE)
        found = {} if text is None else json.loads(text)
    except OSError as e:
        raise broken(f"it cannot be read ({e.strerror})") from e
    except (ValueError, RecursionError) as e:
        raise broken(f"it is not JSON ({e})") from e
    if not isinstance(found, dict):
        raise broken("it is not a JSON object")
    known = (_PATHS, NAMES, CHOICES, MEMLOCK, _BACKENDS)
    if unknown := sorted(found.keys() - {*known}):
        raise broken(f"{unknown[0]} is not a known key; known keys are {', '.join(known)}")
    return found


def broken(why: str) -> InvalidConfig:
    """The error for an unusable policy file."""
    return InvalidConfig(f"the policy file {FILE}: {why}; correct it, or remove it for the defaults")


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _is_path(entry: Any) -> bool:
    return isinstance(entry, str) and entry.startswith("/") and "\0" not in entry and ".." not in _names(entry)


def _open_or_create(folder: int, name: str, flags: int) -> int:
    while True:
        try:
            fd = files.open_regular(name, flags, folder)
        except FileNotFoundError:
            try:
                return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            except FileExistsError:  # another command made it meanwhile
                continue
        if why := _not_ours(os.fstat(fd)):
            os.close(fd)
            raise why
        return fd


def _not_ours(found: os.stat_result) -> OSError | None:
    """Why the file may not be ours.  A user who can write to the directory can make a file of this name, or rename one
    to it."""
    if found.st_nlink > 1:
        return OSError(errno.EINVAL, "it is a file with several names")
    if not trust.is_trusted(found.st_uid):
        return OSError(errno.EPERM, f"it belongs to user {found.st_uid}, who could read and change it")
    return None
