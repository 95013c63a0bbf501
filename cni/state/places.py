"""Where an attachment's state is, for a DEL that is not told.

A configuration may name a ``stateDir`` of its own, and Multus takes that away from a DEL's where it has the
configuration from a file.  So ADD notes it at a fixed place, under a name that is made of network, container id and
interface name.  A note is a link to the state directory, there before the record and gone after it:

    /run/hpn/elsewhere/<digest>  ->  <stateDir>

A default ``stateDir`` needs no note.
"""

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from cni.protocol.errors import IoFailure
from cni.protocol.location import STATE_DIR
from cni.protocol.spec import Key
from cni.state import durable

ELSEWHERE = f"{STATE_DIR}/elsewhere"


def note(state_dir: Path, network: str, key: Key) -> None:
    """Before the record is written.  Raises IoFailure."""
    if f"{state_dir}" == STATE_DIR:
        return
    path = _path(network, key)
    try:
        durable.with_directory(path, lambda: _link(path, state_dir))
    except OSError as e:
        raise IoFailure(f"noting stateDir {state_dir} in {path}: {e.strerror}; it must be writable") from e


def state_dir_of(network: str, key: Key) -> Path | None:
    """The state directory that ADD noted; None where it had none of its own."""
    try:
        return Path(os.readlink(_path(network, key)))
    except OSError:
        return None


def forget(state_dir: Path, network: str, key: Key) -> None:
    """After the record was removed."""
    if f"{state_dir}" != STATE_DIR:
        # A note that stays names a directory without that record, and DEL finds nothing there.
        path = _path(network, key)
        with suppress(OSError):
            if os.readlink(path) == f"{state_dir}":
                os.unlink(path)


def state_dirs() -> set[Path]:
    """The state directories that any attachment noted."""
    found = set[Path]()
    with suppress(OSError):
        for name in os.listdir(ELSEWHERE):
            with suppress(OSError):
                found.add(Path(os.readlink(f"{ELSEWHERE}/{name}")))
    return found


def _link(path: str, target: Path) -> None:
    link = Path(path)
    try:
        link.symlink_to(target)
    except FileExistsError:
        # Of an ADD that was killed before its record, or of another stateDir that the configuration had.
        link.unlink()
        link.symlink_to(target)


def _path(network: str, key: Key) -> str:
    return f"{ELSEWHERE}/{blake2b(f'{network}/{key}'.encode(), digest_size=12).hexdigest()}"
