"""host-local's files of attachments whose leases are here: hpn ipam export wrote them, or hpn ipam import read them.

Each is removed when its lease here ends, because a DEL that comes to hpn-ipam never comes to host-local.

    <network>/exported         JSON: host-local's directory, and for each address the attachment
    <network>/exported.lock    while a command reads and writes the other
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from base.protocol.errors import CniError, IoFailure
from base.protocol.result import Address
from base.protocol.spec import Json, Key
from base.state import durable
from base.state.locks import passing, take
from ipam.stores import LOCK_TIMEOUT

FILE: Final = "exported"

T = TypeVar("T")


def record(directory: Path, to: Path, keys: Mapping[Address, Key], write: Callable[[], T]) -> T:
    """Record the files, then call ``write``, which writes them; no command removes one before it is written.

    Raises IoFailure, TryAgain, and what ``write`` raises.
    """
    files = {f"{address}": [key.container_id, key.ifname] for address, key in keys.items()}
    with _alone(directory):
        durable.write(directory / FILE, {"directory": f"{to}", "files": files})
        return write()


def remove(directory: Path, ended: Callable[[Mapping[str, Key]], Mapping[str, Key]]) -> list[str]:
    """Remove each file whose attachment holds that address no more; return messages for an operator.

    ``ended`` returns those of these addresses that their attachments do not hold.  A file that host-local has written
    meanwhile stays.  A failure is a message, and the next call tries again.
    """
    try:
        with _alone(directory):
            if body := durable.read(directory / FILE):  # else another command removed the last
                _end(directory, body, ended)
    except (CniError, OSError, KeyError, TypeError, ValueError, AttributeError) as e:
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


def _end(directory: Path, body: Json, ended: Callable[[Mapping[str, Key]], Mapping[str, Key]]) -> None:
    files = {address: Key(container_id, ifname) for address, (container_id, ifname) in body["files"].items()}
    if gone := ended(files):
        _remove(Path(body["directory"]), gone)
        _write(directory, body, gone)


def _remove(to: Path, ended: Mapping[str, Key]) -> None:
    if not to.is_dir():
        return
    fd = os.open(to / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        take(fd, f"{to}/lock", LOCK_TIMEOUT)
        for address, key in ended.items():
            with suppress(FileNotFoundError):
                if (to / address).read_text().split() == [key.container_id, key.ifname]:
                    (to / address).unlink()
    finally:
        os.close(fd)


def _write(directory: Path, body: Json, ended: Mapping[str, Key]) -> None:
    if left := {address: key for address, key in body["files"].items() if address not in ended}:
        durable.write(directory / FILE, {**body, "files": left})
    else:
        durable.remove(directory / FILE)
