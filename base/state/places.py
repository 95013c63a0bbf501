"""Notes of attachments' state directories, for a DEL whose configuration does not name one.

A configuration may name its own ``stateDir``.  If Multus reads the configuration from a file, it omits the key for DEL.
So ADD notes the directory in a fixed place, as a link with a name made of network, container id and interface name:

    /run/hpn/elsewhere/<digest>  ->  <stateDir>

A note is made before the record, and removed after it.  A default ``stateDir`` needs none.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from base.protocol.errors import IoFailure
from base.protocol.location import STATE_DIR, path_of
from base.protocol.spec import Key
from base.state import durable

ELSEWHERE = f"{STATE_DIR}/elsewhere"
# For all attachments, whatever their stateDir: the locks of devices, and their numbers.
COMMON = STATE_DIR


def note(state_dir: Path, network: str, key: Key) -> None:
    """Note the attachment's state directory, before its record is written.  Raises IoFailure."""
    if f"{state_dir}" == STATE_DIR:
        return
    path = _path(network, key)
    try:
        durable.with_directory(path, lambda: _link(path, state_dir))
    except OSError as e:
        raise IoFailure(f"noting stateDir {state_dir} in {path}: {e.strerror}; {ELSEWHERE} must be writable") from e


def state_dir_of(network: str, key: Key) -> Path | None:
    """The state directory that ADD noted; None if it noted none."""
    try:
        return Path(os.readlink(_path(network, key)))
    except OSError:
        return None


def forget(state_dir: Path, network: str, key: Key) -> None:
    """Remove the attachment's note, after its record was removed."""
    if f"{state_dir}" != STATE_DIR:
        # A failure is harmless: the note then leads DEL to a directory without that record.
        path = _path(network, key)
        with suppress(OSError):
            if os.readlink(path) == f"{state_dir}":
                os.unlink(path)


def state_dirs() -> list[Path]:
    """The default state directory, then those of all notes."""
    return [path_of(COMMON), *map(Path, _noted())]


def state_dirs_with(state_dir: Path) -> list[Path]:
    """The same, plus this one, which may not be noted yet."""
    return [path_of(one) for one in dict.fromkeys((COMMON, f"{state_dir}", *_noted()))]


def distinct_state_dirs() -> list[Path]:
    """``state_dirs``, each directory once even if several paths lead to it, without noted ones that are gone."""
    default, *others = state_dirs()
    found = {default.resolve(): None}
    for one in others:
        with suppress(OSError):
            found[one.resolve(strict=True)] = None
    return list(found)


def targets(folder: str, names: Iterable[str]) -> list[str]:
    """The state directories that notes name, each once and in order.  ``names`` are the entries of the notes' folder.
    An entry that has vanished, or that is not a note, is passed over."""
    found = set[str]()
    for name in names:
        with suppress(OSError):
            found.add(os.readlink(f"{folder}/{name}"))
    return sorted(found)


def _noted() -> list[str]:
    with suppress(OSError):
        return targets(ELSEWHERE, os.listdir(ELSEWHERE))
    return []


def _link(path: str, target: Path) -> None:
    link = Path(path)
    try:
        link.symlink_to(target)
    except FileExistsError:
        # An ADD that was killed before its record left it, or the configuration had another stateDir then.
        link.unlink()
        link.symlink_to(target)


def _path(network: str, key: Key) -> str:
    return f"{ELSEWHERE}/{blake2b(f'{network}/{key}'.encode(), digest_size=12).hexdigest()}"
