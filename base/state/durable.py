"""State files that are whole or absent: JSON with a checksum, replaced by rename, and synced before the caller
continues.

    {"schema": 1, "sha256": "<of body, canonical>", "body": {...}}

A writer holds the lock of the file's directory or attachment, so one fixed temporary name per file is enough.  A crash
leaves at most "<name>.tmp", which the next write replaces and ``remove`` removes.  Out of scope: locking, and the
meaning of a body.
"""

import errno
import hashlib
import json
import os
import stat
from _thread import get_native_id
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from base.protocol.errors import SHORT, IoFailure, RecordUnreadable
from base.state import trust

SCHEMA = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST = 1 << 26
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK

T = TypeVar("T")


@cache
def boot_id() -> str:
    """This boot's id (man 4 random).  A record of an earlier boot proves nothing about this boot's devices.  Raises
    IoFailure."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError as e:
        raise IoFailure(
            f"{BOOT_ID} cannot be read: {e.strerror}; no whole procfs is mounted on /proc, or something hides it; "
            "run: mount -t proc proc /proc"
        ) from e


def directory(path: Path) -> Path:
    """Make the directory and its missing parents, each with mode 700 and synced; return the directory.  Raises
    IoFailure, and InvalidConfig if others than root could replace the directory."""
    try:
        if not path.is_dir():
            directory(path.parent)
            trust.refuse_unless_safe(f"{path.parent}")
            path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(path.parent)
    except OSError as e:
        raise IoFailure(f"state directory {path}: {e.strerror}; it must be a writable directory") from e
    return path


def make_private(path: Path) -> None:
    """Give a directory that another program made the mode of ours.  Raises IoFailure, and InvalidConfig if others than
    root could replace the directory."""
    try:
        trust.refuse_unless_safe(f"{path}")
        path.chmod(0o700)
    except OSError as e:
        raise IoFailure(f"chmod 700 {path}: {e.strerror}") from e


def with_directory(file: str, attempt: Callable[[], T]) -> T:
    """The result of ``attempt``.  If the file's directory is missing, make it and call ``attempt`` again.  Raises what
    ``attempt`` and ``directory`` raise."""
    try:
        return attempt()
    except (FileNotFoundError, NotADirectoryError):
        directory(Path(file).parent)
        return attempt()


def probe(path: Path) -> None:
    """Write a file into the directory as an ADD would, and remove it.  Raises IoFailure, InvalidConfig."""
    trust.refuse_unless_ours(f"{directory(path)}")
    # The name must differ from a concurrent probe's: by a thread of this process, or by one with the same number in
    # another PID namespace.
    try:
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        processes = 0
    file = path / f"probe-{processes}-{get_native_id()}"
    write(file, {})
    remove(file)


def write(path: Path | str, body: dict[str, Any], *, makes: bool = True) -> None:
    """Replace the file; with ``makes`` also make a missing directory.  On return, the file is on disk.  Raises
    IoFailure; then the old file stands."""
    # Text, not Path's operators, here and below: making a Path takes as long as opening the file.
    file, temporary = f"{path}", f"{path}.tmp"
    text = canonical(body)
    document = f'{{"schema":{SCHEMA},"sha256":"{_digest(text)}","body":{text}}}\n'
    try:
        new = partial(os.open, temporary, _NEW, 0o600)
        fd = with_directory(temporary, new) if makes else new()
        try:
            data = document.encode()
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, file)
        sync_directory(os.path.dirname(file))
    except OSError as e:
        # The file itself stays: if only the directory's sync failed, it is the new one or the old one, and both are
        # whole.
        with suppress(OSError):
            os.unlink(temporary)
        raise IoFailure(f"writing {path}: {e.strerror}; the state directory must be writable and have room") from e


def read(path: Path | str) -> dict[str, Any] | None:
    """The file's body; None if there is no file.  Raises RecordUnreadable, IoFailure."""
    text = contents(path)
    return None if text is None else parsed(text, path)


def contents(path: Path | str) -> bytes | None:
    """The file's bytes, for a caller that may have parsed the same bytes before; None if there is no file.  Raises
    RecordUnreadable, IoFailure."""
    try:
        return _read_all(path)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise IoFailure(f"reading {path}: {e.strerror}") from e


def is_lost(failure: IoFailure | RecordUnreadable) -> bool:
    """Whether a later attempt finds no more than this one: because of the disk, or a label of SELinux.  A shortage of
    descriptors or memory ends."""
    return not (isinstance(failure.__cause__, OSError) and failure.__cause__.errno in SHORT)


def parsed(text: bytes, path: Path | str) -> dict[str, Any]:
    """The body of a state file with these bytes.  Raises RecordUnreadable, with ``path`` for people."""
    try:
        document = json.loads(text)
        schema, body = document["schema"], document["body"]
        # Encoding the body again takes twice as long as all the rest, and ``write`` has it as its bytes are.
        written = text.partition(b'"body":')[2][:-2].decode()
        whole = document["sha256"] == _digest(written) or document["sha256"] == _digest(canonical(body))
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise RecordUnreadable(f"{path} is not a state file of hpn ({len(text)} bytes: {type(e).__name__})") from e
    if schema != SCHEMA:
        raise RecordUnreadable(f"{path} has schema {schema!r}, this version reads {SCHEMA}; a newer version wrote it")
    if not whole or not isinstance(body, dict):
        raise RecordUnreadable(f"{path} was altered: its checksum does not match")
    return body


def remove(path: Path | str) -> None:
    """Remove the file, if it exists, and the leftover of an interrupted write beside it.  Raises IoFailure."""
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


def set_aside(path: Path, to: Path, *, keeps: bool = False) -> Path:
    """Move an unreadable file into the directory ``to``, beside earlier ones of its name; return its new path.  With
    ``keeps``, it has its old path too.  Raises IoFailure."""
    directory(to)
    names = (to / f"{path.name}.{n}" for n in range(1_000_000))
    target = next(target for target in names if not os.path.lexists(target))
    try:
        if keeps:
            os.link(path, target)
        else:
            os.replace(path, target)
        sync_directory(to)
        if not keeps:
            sync_directory(path.parent)
    except OSError as e:
        raise IoFailure(f"moving unreadable {path} to {target}: {e.strerror}") from e
    return target


def replace_unreadable(path: Path, to: Path, body: Callable[[Path], dict[str, Any]]) -> Path:
    """Replace an unreadable file: move it as ``set_aside`` does, and write a new one; return the unreadable one's new
    path.

    ``body`` gets that path, and returns the new file's body.  If the unreadable file is a regular one, its place is
    never empty.  Raises IoFailure.
    """
    target = set_aside(path, to, keeps=path.is_file() and not path.is_symlink())
    write(path, body(target))
    return target


# The one encoding of bodies: the checksum is over it, and a search in a file relies on it.  Made once, because making
# an encoder takes as long as encoding a record.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_all(path: Path | str) -> bytes:
    # Do not follow a link, and do not wait for the other end of a FIFO.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):
            raise RecordUnreadable(f"{path} is not a regular file, so it is not a state file of hpn") from e
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise RecordUnreadable(f"{path} is not a regular file, so it is not a state file of hpn")
        if found.st_size > _MOST:
            raise RecordUnreadable(f"{path} is longer than {_MOST} bytes, so it is not a state file of hpn")
        data = b""
        # A read of a regular file is short only at its end, and a state file is replaced, never appended to.
        while len(data) < found.st_size and (more := os.read(fd, found.st_size - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def sync_directory(path: Path | str) -> None:
    """Sync a directory: what was made, renamed or removed in it is then on disk.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
