"""host-local's files of attachments whose leases are here: hpn ipam export wrote them, or hpn ipam import read them.

Each is removed when its lease here ends, because a DEL that comes to hpn-ipam never comes to host-local.

    <network>/exported         JSON: each file, and the attachment in it
    <network>/exported.lock    while a command reads and writes the other, and while the files are written
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError, IoFailure, RecordUnreadable
from base.protocol.result import Address
from base.protocol.spec import Key
from base.state import durable
from base.state.locks import passing, take
from ipam.stores import LOCK_TIMEOUT

FILE: Final = "exported"


@contextmanager
def recorded(directory: Path, to: Path, keys: Mapping[Address, Key]) -> Iterator[None]:
    """Record the files in host-local's directory ``to``, beside those of earlier exports, before the caller writes
    them.

    No file is removed meanwhile.  So the caller lets the store remove those of leases that have ended since it read
    them.  Raises IoFailure, TryAgain, RecordUnreadable.
    """
    with _alone(directory):
        files = {f"{to / str(address)}": [key.container_id, key.ifname] for address, key in keys.items()}
        if files:  # no DEL would remove a record of none
            durable.write(directory / FILE, {"files": _recorded(directory) | files})
        yield


def remove(directory: Path, ended: Callable[[Mapping[str, Key]], Collection[str]]) -> list[str]:
    """Remove each file whose attachment holds that address no more; return messages for an operator.

    ``ended`` returns those of these files, each named by its address, that are to go.  A file that host-local has
    written meanwhile stays.  A failure is a message, and the next call tries again.
    """
    try:
        with _alone(directory):
            if files := _recorded(directory):  # else another command removed the last
                _end(directory, files, ended)
    except (CniError, OSError, ValueError) as e:  # a name has a zero byte
        return [f"{directory / FILE}: files of host-local could not be removed: {getattr(e, 'msg', e)}"]
    return []


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Exclude other commands, because many pods may end at once.  Raises TryAgain, IoFailure."""
    path = f"{directory}/{FILE}.lock"
    try:
        with passing(path, LOCK_TIMEOUT):
            yield
    except OSError as e:
        raise IoFailure(f"{e.filename or path}: {e.strerror}") from e


def _recorded(directory: Path) -> dict[str, list[str]]:
    """Return the attachment in each file that the record names; empty without a record.  Earlier versions recorded one
    directory, and names in it.  Raises RecordUnreadable, IoFailure."""
    path = directory / FILE
    body = durable.read(path) or {"files": {}}
    try:
        files = {f"{Path(body.get('directory', ''), name)}": [*of] for name, of in body["files"].items()}
        for of in files.values():
            Key(*of)
        is_odd = any(not isinstance(part, str) for of in files.values() for part in of)
    except (KeyError, TypeError, AttributeError) as e:
        raise RecordUnreadable(f"{path} is not a record of exported files ({type(e).__name__}); remove it") from e
    if is_odd:
        raise RecordUnreadable(f"{path} is not a record of exported files (a key is not text); remove it")
    return files


def _end(
    directory: Path, files: Mapping[str, list[str]], ended: Callable[[Mapping[str, Key]], Collection[str]]
) -> None:
    gone = {Path(name): files[name] for name in ended({name: Key(*of) for name, of in files.items()})}
    if not gone:
        return
    for to in {path.parent for path in gone}:
        _remove(to, {path: of for path, of in gone.items() if path.parent == to})
    if left := {name: of for name, of in files.items() if Path(name) not in gone}:
        durable.write(directory / FILE, {"files": left})
    else:
        durable.remove(directory / FILE)


def _remove(to: Path, ended: Mapping[Path, list[str]]) -> None:
    if not to.is_dir():
        return
    fd = os.open(to / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        take(fd, f"{to}/lock", LOCK_TIMEOUT)
        for path, of in ended.items():
            with suppress(FileNotFoundError):
                if path.read_text().split() == of:
                    path.unlink()
    finally:
        os.close(fd)
