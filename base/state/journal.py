"""What an attachment changed, on disk before it is changed.  DEL, CHECK, GC and recovery read only this.

    /run/hpn/attachments/<network>/<containerID>:<ifname>.json    a Record (record.py), in durable.py's format
    /run/hpn/attachments/<network>/<containerID>:<ifname>.error   its last error (last_error.py)
    /run/hpn/locks/attachment-<n>                                 a byte for each key (locks.py); n is below 64
    /run/hpn/quarantine/<network>/...                             unreadable records
    /run/hpn/refused/<network>/...                                for people: records that IPAM did not release

A record is written before the first change ("complete": false) and again after the last one.  It is removed only when
the undo of all its changes is confirmed.  Out of scope: how to undo.
"""

import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.spec import Json, Key
from base.state import durable, locks, remembered
from base.state.locks import Lock, Mode
from base.state.pod import Identity
from base.state.record import LOST, Record, legible, netns_in

# Seconds: the longest wait of a command for another one on the same attachment.
LOCK_TIMEOUT = locks.OWN
# Files for one kind of lock.  An older version takes the whole file for a name, so their number must not change.
_LOCKS = 64
# The mode of a record's file after note_found: setting it takes two microseconds.
_FOUND: Final = stat.S_ISVTX | stat.S_IRUSR | stat.S_IWUSR

_PARENT: Final = re.compile(rb'"parent":(\d+)')
_DEVICE: Final = re.compile(rb'"device":("[^"]*")')

# Inode, time of the last write, time of the last change; None without a file.
Version = tuple[int, int, int] | None


@dataclass(frozen=True)
class Entry:
    """One attachment's place in the journal.  An entry from ``lock`` holds the attachment's lock."""

    state_dir: Path
    network: str
    key: Key

    @property
    def path(self) -> Path:
        """The record's file."""
        return Path(self._file)

    @property
    def _file(self) -> str:
        return f"{_folder(self.state_dir, self.network)}/{self.key}.json"

    @property
    def error_file(self) -> str:
        """The file of the attachment's last error (base/state/last_error.py)."""
        return f"{_folder(self.state_dir, self.network)}/{self.key}.error"

    def load(self) -> Record | None:
        """The record; None if there is none.

        Raises RecordUnreadable once for an unreadable record, and moves it to quarantine/.  A record of kind LOST takes
        its place.  The attachment's changes are unknown, so it must not count as clean.  But it must not block a pod
        for ever either.
        """
        try:
            try:
                body = durable.read(self._file)
                record = None if body is None else Record.from_json(body)
            except (TypeError, KeyError, ValueError) as e:
                raise RecordUnreadable(f"{self.path} lacks members of a record: {e!r}") from e
            return self._own(record)
        except RecordUnreadable as e:
            aside = durable.replace_unreadable(self.path, self.state_dir / "quarantine" / self.network, self._stand_in)
            e.add_note(f"kept in {aside}; search by hand for anything else that it described")
            raise

    def _own(self, record: Record | None) -> Record | None:
        """The record, if it is this attachment's.  Raises RecordUnreadable."""
        if record and (record.network, record.key) != (self.network, self.key):
            raise RecordUnreadable(f"{self.path} is the record of another attachment, {record.network}/{record.key}")
        return record

    def _stand_in(self, aside: Path) -> Json:
        """A record of kind LOST, with the legible parts of the damaged one."""
        netns, identity, is_the_hosts = legible(f"{aside}", self.key)
        why = f"its record could not be read and is kept in {aside}"
        link = {"is_the_hosts": is_the_hosts}
        return Record(self.network, self.key, netns, identity, kind=LOST, link=link, config={}, trouble=why).to_json()

    def version(self) -> Version:
        """A value that distinguishes this record from every other one written in its place; None if there is none."""
        return version_of(self._file)

    def save(self, record: Record) -> None:
        """Put the record on disk.  Raises IoFailure; then nothing may be changed."""
        durable.write(self._file, record.to_json())

    def note_found(self, *, is_there: bool = True) -> None:
        """Note that DEL found the interface where ADD put it, and is about to remove it; or that it did not.  If this
        DEL is killed, the next one does not conclude that the pod hid the interface."""
        with suppress(FileNotFoundError):
            os.chmod(self._file, _FOUND if is_there else 0o600)  # noqa: PTH101  # making a Path takes longer

    @property
    def was_found(self) -> bool:
        """Whether ``note_found`` was called since the record was written."""
        with suppress(FileNotFoundError):
            return stat.S_IMODE(os.stat(self._file).st_mode) == _FOUND
        return False

    def forget(self) -> None:
        """Remove the record, after everything is undone.  Raises IoFailure."""
        self._forget_error()
        durable.remove(self._file)

    def _forget_error(self) -> None:
        for file in (f"{self.error_file}.tmp", self.error_file):
            with suppress(OSError):  # mostly there is none, and a stray one does no harm
                os.unlink(file)

    def keep_for_people(self, record: Record) -> Path:
        """Move the record to refused/, where only people read it; return its path there.  Raises IoFailure."""
        self.save(record)
        self._forget_error()
        return durable.set_aside(self.path, self.state_dir / "refused" / self.network)


def version_of(file: str) -> Version:
    """The version of a state file at this path; None if there is none."""
    try:
        now = os.stat(file, follow_symlinks=False)
    except OSError:
        return None
    return now.st_ino, now.st_mtime_ns, now.st_ctime_ns


@contextmanager
def lock(state_dir: Path, network: str, key: Key, timeout: float | None = None) -> Iterator[Entry]:
    """Lock the attachment, and yield its entry.  Raises TryAgain if another process holds the lock for ``timeout``
    seconds (LOCK_TIMEOUT by default); IoFailure."""
    with locked(state_dir, "attachment", f"{network}/{key}", timeout):
        yield Entry(state_dir, network, key)


@contextmanager
def lock_all(entries: Iterable[Entry]) -> Iterator[None]:
    """Lock several attachments, in one order for all commands, so that no two wait for each other.  Raises what
    ``lock`` does."""
    names = {(one.state_dir, f"{one.network}/{one.key}") for one in entries}
    in_order = sorted(names, key=lambda name: (_lock_file(name[0], "attachment", name[1]), name[1]))
    with ExitStack() as held:
        for state_dir, name in in_order:
            held.enter_context(locked(state_dir, "attachment", name))
        yield


def lock_namespace(state_dir: Path, namespace: Identity) -> Lock:
    """Lock what a pod's attachments share.  Take this lock inside an attachment's lock, never around one.  Raises
    TryAgain, IoFailure."""
    return locked(state_dir, "namespace", f"{namespace.inode} {namespace.cookie}")


def at_work(state_dir: Path, network: str, key: Key) -> str:
    """The processes that hold the attachment's lock, for people; empty if there are none.  Takes no lock."""
    name = f"{network}/{key}"
    return locks.holder(_lock_file(state_dir, "attachment", name), locks.byte_of(name))


def locked(state_dir: Path, what: str, name: str, timeout: float | None = None, mode: Mode = Mode.ALONE) -> Lock:
    """Lock the name, among those of its kind ``what``.  Raises TryAgain after ``timeout``
    seconds (LOCK_TIMEOUT by default), IoFailure."""
    path, most = _lock_file(state_dir, what, name), LOCK_TIMEOUT if timeout is None else timeout
    try:
        return durable.with_directory(path, lambda: Lock(path, most, name, mode))
    except OSError as e:
        raise IoFailure(f"locking {path}: {e.strerror}; the state directory must be writable") from e


def _lock_file(state_dir: Path, what: str, name: str) -> str:
    return f"{state_dir}/locks/{what}-{zlib.crc32(name.encode()) % _LOCKS}"


def keys(state_dir: Path, network: str, among: Callable[[list[str]], list[str]] = sorted) -> list[Key]:
    """The network's attachments with a record, readable or not, or with an interrupted first write of one.  ``among``
    orders their names, or selects from them.  Raises IoFailure."""
    return keys_in(_folder(state_dir, network), among)


def keys_in(folder: str, among: Callable[[list[str]], list[str]] = sorted) -> list[Key]:
    """``keys`` of a folder with a file for each key, such as that of a network's records.  Raises IoFailure."""
    try:
        names = {name.removesuffix(".tmp") for name in os.listdir(folder)}
    except FileNotFoundError:
        return []
    except OSError as e:
        raise IoFailure(f"listing {folder}: {e.strerror}") from e
    chosen = among([name for name in names if _is_record(name)])
    return [Key(*name.removesuffix(".json").split(":", 1)) for name in chosen]


def entries(state_dir: Path, network: str) -> list[tuple[Entry, Version]]:
    """``keys`` as entries, not locked, each with its record's version.  Raises IoFailure."""
    found = [Entry(state_dir, network, key) for key in keys(state_dir, network)]
    return [(entry, entry.version()) for entry in found]


def begun(state_dir: Path) -> Iterator[Entry]:
    """The attachments of all networks that have only an interrupted first write of a record."""
    folder = f"{state_dir}/attachments"
    for network in _names(folder):
        names = set(_names(f"{folder}/{network}"))
        for name in sorted(names):
            whole = name.removesuffix(".tmp")
            if name != whole and whole.endswith(".json") and ":" in whole and whole not in names:
                yield Entry(state_dir, network, Key(*whole.removesuffix(".json").split(":", 1)))


def peek(state_dir: Path, network: str, key: Key) -> Record | None:
    """An attachment's record, read without a lock; None if there is none, or if it is unreadable."""
    return next((record for _, record in _read(f"{_folder(state_dir, network)}/{key}.json")), None)


def files(state_dir: Path, container_id: str = "*") -> Iterator[tuple[Path, Record | None]]:
    """The path and the record of every record of all networks; None for an unreadable one.  ``container_id`` selects
    one container's.  They are read without a lock, so they are no basis for an undo."""
    for path in _paths(f"{state_dir}/attachments", container_id):
        yield from _read(path)


def refused(state_dir: Path) -> Iterator[tuple[Path, Record | None]]:
    """The same for the records that ``keep_for_people`` moved away."""
    folder = f"{state_dir}/refused"
    for network in _names(folder):
        for name in _names(f"{folder}/{network}"):
            yield from _read(f"{folder}/{network}/{name}")


def _read(file: str) -> Iterator[tuple[Path, Record | None]]:
    """The file's path and record; nothing if there is no file."""
    try:
        if (contents := durable.contents(file)) is not None:
            yield Path(file), decoded(file, contents)
    except (IoFailure, RecordUnreadable):
        yield Path(file), None


def decoded(file: str, contents: bytes) -> Record | None:
    """The record of a file with these bytes; None if it is unreadable, or another attachment's."""
    try:
        path, record = Path(file), Record.from_json(durable.parsed(contents, file))
    except (RecordUnreadable, TypeError, KeyError, ValueError):
        return None
    return record if path.name.startswith(f"{record.key}.json") and path.parent.name == record.network else None


@dataclass(eq=False, slots=True)
class Text:
    """A record as the bytes of its file, with the values of each member "device", as JSON, and of each "parent"."""

    body: bytes
    devices: Sequence[bytes]
    parents: Sequence[bytes]

    @property
    def netns(self) -> str:
        """The path of its pod's namespace; empty if that is unreadable."""
        return netns_in(self.body)


def texts(state_dir: Path, lost: list[str] | None = None) -> Iterator[tuple[str, Text]]:
    """The file and the text of every record of all networks, for ``decoded``, which takes ten times as long.  A text
    that was not changed since an earlier call is the same object.

    Files that cannot be read are added to ``lost``.  Raises IoFailure for a shortage: a record that cannot be read now
    may be that of the device in question.
    """
    folder = f"{state_dir}/attachments"
    for network in _names(folder):
        for file, text in remembered.files(f"{folder}/{network}", _text):
            if isinstance(text, Text):
                yield file, text
            elif isinstance(text, IoFailure) and durable.is_lost(text):
                if lost is not None:
                    lost.append(file)
            elif not isinstance(text, RecordUnreadable):
                raise text


def _text(file: str) -> Text | None:
    """The record with that file; None if it is another file, or has just gone."""
    body = durable.contents(file) if _is_record(file.rpartition("/")[2]) else None
    return None if body is None else Text(body, _DEVICE.findall(body), _PARENT.findall(body))


def _is_record(name: str) -> bool:
    return name.endswith(".json") and ":" in name


def _paths(folder: str, container_id: str = "*") -> Iterator[str]:
    # Not by glob: it takes longer than everything else that a command does for a pod's other attachments.
    beginning = "" if container_id == "*" else f"{container_id}:"
    for network in _names(folder):
        for name in _names(f"{folder}/{network}"):
            if name.startswith(beginning) and _is_record(name):
                yield f"{folder}/{network}/{name}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def records(state_dir: Path, container_id: str = "*") -> Iterator[Record]:
    """``files``, without the paths and without unreadable records."""
    return (record for _, record in files(state_dir, container_id) if record)


def beside(state_dir: Path, ours: Record) -> list[Record]:
    """The other attachments in the namespace of ``ours``.  Only the same container's are read: a runtime makes a
    namespace for one container."""
    return [
        record
        for record in records(state_dir, ours.key.container_id)
        if (record.network, record.key) != (ours.network, ours.key)
        and record.of_this_boot
        and record.identity == ours.identity
    ]


def naming(state_dir: Path, value: str | int, member: str = "", lost: list[str] | None = None) -> Iterator[Record]:
    """The records that hold the value, in a member of that name if one is given, and perhaps some others; ``lost`` as
    in ``texts``.  The caller must check each record itself."""
    text = ((f'"{member}":' if member else "") + durable.canonical(value)).encode()
    return (r for file, one in texts(state_dir, lost) if text in one.body and (r := decoded(file, one.body)))


def _folder(state_dir: Path, network: str) -> str:
    return f"{state_dir}/attachments/{network}"
