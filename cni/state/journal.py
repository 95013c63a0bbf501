"""What an attachment changed, on disk before it is changed.  DEL, CHECK, GC and recovery read only this.

    <stateDir>/attachments/<network>/<containerID>:<ifname>.json    a Record (cni/state/durable.py's format)
    <stateDir>/locks/attachment-<n>                                 flocks; n is the key's hash, so they never pile up
    <stateDir>/quarantine/<network>/...                             records that could not be read
    <stateDir>/refused/<network>/...                                records whose IPAM would not release, for people

A record is written once before the first change ("complete": false) and once after the last; it is removed
when everything it names has been confirmed undone, and not before.  Out of scope: how to undo.
"""

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cni.kernel import sysfs
from cni.protocol.errors import IoFailure, RecordUnreadable
from cni.protocol.spec import Json, Key
from cni.state import durable, places
from cni.state.locks import Lock
from cni.state.pod import Identity

LOCK_TIMEOUT = 10.0  # seconds; the longest an operation on one attachment may hold up another on it
_LOCKS = 64
# The mode of a record's file: to set it takes two microseconds.
_FOUND: Final = stat.S_ISVTX | stat.S_IRUSR | stat.S_IWUSR
# Members that most records lack, and what they are then.
_RARE = {"given": True, "refusals": 0, "trouble": ""}

# The kind of a record that stands for one which could not be read (cni/kinds/lost.py).
LOST = "lost"
_NETNS = re.compile(rb'"netns":"(/[^"\\\\]{1,4095})"')
_IDENTITY = re.compile(rb'"identity":({[^{}]{1,200}})')
_LEGIBLE = 1 << 20

# Inode, time of the last write, time of the last change.
Version = tuple[int, int, int] | None


@dataclass(frozen=True)
class Record:
    """One attachment.

    ``link`` belongs to the kind (cni/kinds), ``rxe`` is the name of its soft-RoCE device or empty, ``sysctl`` and
    ``rules`` are what it sets (parts/tuning.py) and adds (parts/routing.py) in the pod's namespace, ``config`` is
    stdin as ADD had it, for delegates, ``result`` what ADD answered, in the newest version's shape, ``gids`` where its
    addresses are in GID tables (parts/gids.py), and ``device_info`` the file that says so, and what it was
    (parts/device_info.py).  ``given`` is false where its IPAM plugin answered ADD with an error, ``refusals`` counts
    how often the plugin would not release, and ``trouble`` is the last reason, for people.
    """

    network: str
    key: Key
    netns: str
    identity: Identity
    kind: str
    link: Json
    config: Json
    args: str = ""
    pod: str = ""
    rxe: str = ""
    sysctl: Json = field(default_factory=dict)
    rules: list[Json] = field(default_factory=list)
    boot: str = field(default_factory=durable.boot_id)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    complete: bool = False
    result: Json = field(default_factory=dict)
    gids: list[Json] = field(default_factory=list)
    device_info: Json = field(default_factory=dict)
    given: bool = True
    refusals: int = 0
    trouble: str = ""

    @property
    def whose(self) -> str:
        """Whose attachment it is, in a message for people."""
        return self.key.of(self.pod, self.network)

    @property
    def rdma_devs(self) -> list[str]:
        """The RDMA devices by which its addresses are reached."""
        return [self.rxe] if self.rxe else list(self.link.get("rdma_devs", ()))

    @property
    def of_this_boot(self) -> bool:
        """Whether devices and namespaces it names can still be the same ones."""
        return self.boot == durable.boot_id()

    def to_json(self) -> Json:
        body = {**vars(self), "key": vars(self.key), "identity": vars(self.identity)}
        # Most records have no trouble, and then an older version can read them.
        return {name: value for name, value in body.items() if name not in _RARE or value != _RARE[name]}

    @property
    def device(self) -> str:
        """The bus address of the device it has; empty if that is no more, whatever is at the address now."""
        address = str(self.link.get("device", ""))
        there = address and self.of_this_boot and sysfs.incarnation(address) == self.link.get("incarnation")
        return address if there else ""

    @classmethod
    def from_json(cls, body: Json) -> "Record":
        return cls(**{**body, "key": Key(**body["key"]), "identity": Identity.from_json(body["identity"])})


@dataclass(frozen=True)
class Entry:
    """One attachment's place in the journal; its lock is held while this exists."""

    state_dir: Path
    network: str
    key: Key

    @property
    def path(self) -> Path:
        return Path(self._file)

    @property
    def _file(self) -> str:
        return f"{_folder(self.state_dir, self.network)}/{self.key}.json"

    def load(self) -> Record | None:
        """The record, or None.  One that cannot be read is kept in quarantine/, a record of kind LOST takes its place,
        and RecordUnreadable is raised, once: what the attachment changed is unknown, so nothing may be called clean,
        but it must not block a pod for ever."""
        try:
            try:
                body = durable.read(self._file)
                record = None if body is None else Record.from_json(body)
            except (TypeError, KeyError, ValueError) as e:
                raise RecordUnreadable(f"{self.path} lacks what a record has: {e!r}") from e
            return self._own(record)
        except RecordUnreadable as e:
            aside = durable.replace_unreadable(self.path, self.state_dir / "quarantine" / self.network, self._lost)
            e.add_note(f"kept in {aside}; what else it described must be looked for by hand")
            raise

    def _own(self, record: Record | None) -> Record | None:
        """The record, if it is of this attachment.  Raises RecordUnreadable."""
        if record and (record.network, record.key) != (self.network, self.key):
            raise RecordUnreadable(f"{self.path} is the record of another attachment, {record.network}/{record.key}")
        return record

    def _lost(self, aside: Path) -> Json:
        """A record in place of that one, with what can be read of it."""
        netns, identity = _legible(aside, self.key)
        why = f"its record could not be read and is kept in {aside}"
        return Record(self.network, self.key, netns, identity, kind=LOST, link={}, config={}, trouble=why).to_json()

    def version(self) -> Version:
        """What tells the record from any other that is written in its place; None if there is none."""
        try:
            now = os.stat(self._file, follow_symlinks=False)
        except OSError:
            return None
        return now.st_ino, now.st_mtime_ns, now.st_ctime_ns

    def save(self, record: Record) -> None:
        """Put the record on disk.  Raises IoFailure, and then nothing may be changed."""
        durable.write(self._file, record.to_json())

    def note_found(self) -> None:
        """The interface is where ADD put it and about to go; who comes after us, if we are killed, is to know that."""
        with suppress(FileNotFoundError):
            os.chmod(self._file, _FOUND)  # noqa: PTH101  # a Path takes longer to make

    @property
    def was_found(self) -> bool:
        """Whether ``note_found`` was called since the record was written."""
        with suppress(FileNotFoundError):
            return stat.S_IMODE(os.stat(self._file).st_mode) == _FOUND
        return False

    def forget(self) -> None:
        """Everything is undone.  Raises IoFailure."""
        durable.remove(self._file)
        places.forget(self.state_dir, self.network, self.key)

    def keep_for_people(self, record: Record) -> Path:
        """Move the record out of the way, to where only people look at it.  Raises IoFailure."""
        self.save(record)
        return durable.set_aside(self.path, self.state_dir / "refused" / self.network)


@contextmanager
def lock(state_dir: Path, network: str, key: Key, timeout: float | None = None) -> Iterator[Entry]:
    """The attachment's entry, alone.  Raises TryAgain if another process keeps it for so many seconds, LOCK_TIMEOUT if
    none are given; IoFailure."""
    with _lock(state_dir, "attachment", f"{network}/{key}", timeout):
        yield Entry(state_dir, network, key)


def lock_device(state_dir: Path, device: str) -> Lock:
    """Alone in deciding who gets a device; taken inside an attachment's lock, never around one.
    Raises TryAgain, IoFailure."""
    return _lock(state_dir, "device", device)


def lock_namespace(state_dir: Path, namespace: Identity) -> Lock:
    """Alone in deciding over what a pod's attachments share; taken inside an attachment's lock, never around one.
    Raises TryAgain, IoFailure."""
    return _lock(state_dir, "namespace", f"{namespace.inode} {namespace.cookie}")


def _lock(state_dir: Path, what: str, name: str, timeout: float | None = None) -> Lock:
    path = f"{state_dir}/locks/{what}-{zlib.crc32(name.encode()) % _LOCKS}"
    try:
        return durable.with_directory(path, lambda: Lock(path, LOCK_TIMEOUT if timeout is None else timeout))
    except OSError as e:
        raise IoFailure(f"locking {path}: {e.strerror}; the state directory must be writable") from e


def keys(state_dir: Path, network: str) -> list[Key]:
    """Every attachment of the network that has a record, readable or not, or an interrupted first write of one."""
    try:
        names = {name.removesuffix(".tmp") for name in os.listdir(_folder(state_dir, network))}
    except FileNotFoundError:
        return []
    except OSError as e:
        raise IoFailure(f"listing {_folder(state_dir, network)}: {e.strerror}") from e
    return [Key(*n.removesuffix(".json").split(":", 1)) for n in sorted(names) if n.endswith(".json") and ":" in n]


def entries(state_dir: Path, network: str) -> list[tuple[Entry, Version]]:
    """``keys``, each with the version of its record.  Raises IoFailure."""
    found = [Entry(state_dir, network, key) for key in keys(state_dir, network)]
    return [(entry, entry.version()) for entry in found]


def peek(state_dir: Path, network: str, key: Key) -> Record | None:
    """An attachment's record as it is at this moment, without a lock; None if there is none that can be read."""
    return next((record for _, record in _read(Path(f"{_folder(state_dir, network)}/{key}.json"))), None)


def files(state_dir: Path, container_id: str = "*") -> Iterator[tuple[Path, Record | None]]:
    """Every record of every network, or those of one container, None where it cannot be read; without a lock: a look
    at what is there, nothing to undo by."""
    for path in _paths(f"{state_dir}/attachments", container_id):
        yield from _read(path)


def refused(state_dir: Path) -> Iterator[tuple[Path, Record | None]]:
    """The same of the records that are kept for people because their IPAM would not release."""
    folder = f"{state_dir}/refused"
    for network in _names(folder):
        for name in _names(f"{folder}/{network}"):
            yield from _read(Path(f"{folder}/{network}/{name}"))


def _read(path: Path) -> Iterator[tuple[Path, Record | None]]:
    try:
        body = durable.read(path)
        if body is not None:  # it went meanwhile
            record = Record.from_json(body)
            is_its_own = path.name.startswith(f"{record.key}.json") and path.parent.name == record.network
            yield path, record if is_its_own else None
    except (IoFailure, RecordUnreadable, TypeError, KeyError, ValueError):
        yield path, None


def _paths(folder: str, container_id: str) -> Iterator[Path]:
    # Not by glob, which takes longer than all else that is done for a pod's other attachments.
    for network in _names(folder):
        for name in _names(f"{folder}/{network}"):
            if name.endswith(".json") and container_id in ("*", name.partition(":")[0]) and ":" in name:
                yield Path(f"{folder}/{network}/{name}")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def records(state_dir: Path, container_id: str = "*") -> Iterator[Record]:
    """``files``, but for those that cannot be read."""
    return (record for _, record in files(state_dir, container_id) if record)


def beside(state_dir: Path, ours: Record) -> list[Record]:
    """The other attachments in that one's namespace: of the same container, which is what a runtime makes one for."""
    return [
        record
        for record in records(state_dir, ours.key.container_id)
        if (record.network, record.key) != (ours.network, ours.key)
        and record.of_this_boot
        and record.identity == ours.identity
    ]


def devices(state_dir: Path) -> dict[str, Record]:
    """The devices that attachments have: bus address -> record.  The journal is the only place that says whose a
    device is, so that nothing can contradict it."""
    return {device: r for r in records(state_dir) if (device := r.device)}


def owner(state_dir: Path, device: str) -> Record | None:
    """Whose the device is, by its bus address or the host's name for it; nobody's for the empty one."""
    owned = devices(state_dir).values() if device else ()
    return next((r for r in owned if device in (r.link["device"], r.link.get("netdev"))), None)


def _legible(damaged: Path, key: Key) -> tuple[str, Identity]:
    """The namespace of a record that cannot be read, by path and identity: something to look by, and no proof.  Nothing
    where the record may be another attachment's."""
    try:
        fd = os.open(damaged, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(fd, _LEGIBLE)
        finally:
            os.close(fd)
        netns, identity = _NETNS.search(text), _IDENTITY.search(text)
        if netns and identity and f'"container_id":"{key.container_id}","ifname":"{key.ifname}"'.encode() in text:
            return os.fsdecode(netns[1]), Identity.from_json(json.loads(identity[1]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "", Identity(0, 0)


def _folder(state_dir: Path, network: str) -> str:
    return f"{state_dir}/attachments/{network}"
