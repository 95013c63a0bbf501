"""A state file is whole or absent: JSON with a checksum, replaced by rename, synced before it is believed.

    {"schema": 1, "sha256": "<of body, canonical>", "body": {...}}

A writer holds the lock of the file's directory or attachment, so one fixed temporary name per file is
enough and a crash leaves at most "<name>.tmp", which the next write replaces and ``remove`` removes.
Out of scope: locking, and what a body means.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cni.protocol.errors import IoFailure, RecordUnreadable
from cni.state import trust

SCHEMA = 1
_READ = 1 << 16
_MOST = 1 << 26
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

T = TypeVar("T")


@cache
def boot_id() -> str:
    """This boot's identity (man 4 random): what an older boot recorded says nothing about today's devices."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def directory(path: Path) -> Path:
    """The directory, made with its parents if need be, each for root alone and on disk.  Raises IoFailure, and
    InvalidConfig where others than root could put another in its place."""
    try:
        if not path.is_dir():
            directory(path.parent)
            trust.refuse_unless_safe(f"{path.parent}")
            path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(path.parent)
    except OSError as e:
        raise IoFailure(f"state directory {path}: {e.strerror}; it must be a writable directory") from e
    return path


def with_directory(file: str, opened: Callable[[], T]) -> T:
    """What ``opened`` returns; the file's directory is made where it finds none.  Raises OSError, IoFailure."""
    try:
        return opened()
    except (FileNotFoundError, NotADirectoryError):
        directory(Path(file).parent)
        return opened()


def probe(path: Path) -> None:
    """Write to the directory and take it back, as an ADD would.  Raises IoFailure, InvalidConfig."""
    trust.refuse_unless_ours(f"{directory(path)}")
    file = path / f"probe-{os.getpid()}"
    write(file, {})
    remove(file)


def write(path: Path | str, body: dict[str, Any]) -> None:
    """Replace the file, its directory made if need be; it is on disk when this returns.  Raises IoFailure, and then the
    old file stands."""
    # Text and not Path's operators, here and below: making a path takes as long as opening it.
    file, temporary = f"{path}", f"{path}.tmp"
    canonical = _canonical(body)
    document = f'{{"schema":{SCHEMA},"sha256":"{_digest(canonical)}","body":{canonical}}}\n'
    try:
        fd = with_directory(temporary, lambda: os.open(temporary, _NEW, 0o600))
        try:
            _write_all(fd, document.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, file)
        sync_directory(os.path.dirname(file))
    except OSError as e:
        # Not the file itself: if only the directory's sync failed, what it holds may be the new state or
        # the old, and either is whole.
        with suppress(OSError):
            os.unlink(temporary)
        raise IoFailure(f"writing {path}: {e.strerror}; the state directory must be writable and have room") from e


def read(path: Path | str) -> dict[str, Any] | None:
    """The file's body, None if there is no file.  Raises RecordUnreadable, IoFailure."""
    try:
        text = _read_all(path)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise IoFailure(f"reading {path}: {e.strerror}") from e
    try:
        document = json.loads(text)
        schema, body = document["schema"], document["body"]
        whole = document["sha256"] == _digest(_canonical(body))
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise RecordUnreadable(f"{path} is not a state file of ours ({len(text)} bytes: {type(e).__name__})") from e
    if schema != SCHEMA:
        raise RecordUnreadable(f"{path} has schema {schema!r}, this version reads {SCHEMA}; a newer version wrote it")
    if not whole or not isinstance(body, dict):
        raise RecordUnreadable(f"{path} was altered: its checksum does not match")
    return body


def remove(path: Path | str) -> None:
    """Remove the file and what an interrupted write left beside it; absent is fine.  Raises IoFailure."""
    file = f"{path}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(f"{file}.tmp")
        os.unlink(file)
        sync_directory(os.path.dirname(file))
    except FileNotFoundError:
        return
    except OSError as e:
        raise IoFailure(f"removing {path}: {e.strerror}; the state directory must be writable") from e


def set_aside(path: Path, to: Path) -> Path:
    """Move an unreadable file into directory ``to``, beside earlier ones of its name.  Raises IoFailure."""
    target = _free(path, to)
    try:
        os.replace(path, target)
        sync_directory(to)
        sync_directory(path.parent)
    except OSError as e:
        raise IoFailure(f"moving unreadable {path} to {target}: {e.strerror}") from e
    return target


def replace_unreadable(path: Path, to: Path, body: Callable[[Path], dict[str, Any]]) -> Path:
    """``set_aside``, with a file of ``body``'s in its place; ``body`` is told where the unreadable one is.  Raises
    IoFailure.  A regular file is never absent from its place in between."""
    target = _free(path, to)
    try:
        if path.is_file() and not path.is_symlink():
            os.link(path, target)
        else:
            os.replace(path, target)
        sync_directory(to)
    except OSError as e:
        raise IoFailure(f"moving unreadable {path} to {target}: {e.strerror}") from e
    write(path, body(target))
    return target


def _free(path: Path, to: Path) -> Path:
    directory(to)
    names = (to / f"{path.name}.{n}" for n in range(1_000_000))
    return next(target for target in names if not os.path.lexists(target))


# Made once: to make one takes as long as to encode a record.
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _digest(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read_all(path: Path | str) -> bytes:
    # Neither following a link nor waiting for the other end of a FIFO.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):
            raise RecordUnreadable(f"{path} is no regular file, and so no state file of ours") from e
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RecordUnreadable(f"{path} is no regular file, and so no state file of ours")
        data = b""
        while more := os.read(fd, _READ):
            data += more
            if len(data) > _MOST:
                raise RecordUnreadable(f"{path} is longer than {_MOST} bytes, and so no state file of ours")
            if len(more) < _READ:  # its end: a read of a file stops short nowhere else
                break
        return data
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def sync_directory(path: Path | str) -> None:
    """What was made, renamed or removed in it is on disk.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
