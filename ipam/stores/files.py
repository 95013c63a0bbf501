"""The leases of one network as files, with one lock around every use.

    <network>/
      lock                 flock
      leases/<key>.json    the truth: an attachment (containerID:ifname) and all its addresses
      addresses/<address>  -> ../leases/<key>.json, so that "who holds it" is one readlink, and ls -l tells
      index                the boot in which addresses/ was last left agreeing with leases/
      cursor               the addresses given last, where the next search begins
      quarantine/          leases that could not be read; what addresses/ says of their keys stays held

A change of leases/ is one rename or unlink, synced: before it nothing has happened, after it everything has.
``index`` is removed before a change and written again after it; where it is missing, or of another boot,
addresses/ is made to agree with leases/ before it is believed.  So the order of all other steps does not
matter, none of them is synced, and a call killed anywhere, or a power cut, loses nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from filelock import FileLock, Timeout

from cni import durable
from cni.errors import CheckFailed, CniError, IoFailure, RecordUnreadable, TryAgain, together
from cni.result import Address, Ip
from cni.spec import Key
from ipam.stores import Choose, Owner
from ipam.stores.documents import Documents, Lease
from ipam.stores.index import Index, IndexBook

# Seconds.  A change takes a few milliseconds, nearly all of them the disk's.
PATIENCE = 30.0
POLL = 0.005


class FileStore:
    """A stores.Store in one directory; ``log`` gets what an operator should look at."""

    def __init__(self, directory: Path, log: list[str], patience: float = PATIENCE) -> None:
        self._directory = directory
        self._documents = Documents(directory, log)
        self._index = Index(directory)
        self._cursor = directory / "cursor"
        self._patience = patience

    def reserve(self, owner: Owner, choose: Choose) -> tuple[Ip, ...]:
        self._make()
        with self._locked():
            self._agree()
            old = self._documents.read(owner.key)
            if lost := self._lost(owner.key, old):
                raise RecordUnreadable(
                    f"{owner.key} had a lease that could not be read and is kept in {self._documents.quarantine}; "
                    f"{', '.join(lost)} held until it is deleted: delete the attachment, then add it"
                )
            mine = tuple(a for a in _ips(old) if self._index.holder(a) in (str(owner.key), ""))
            ips = choose(IndexBook(self._index, mine, self._last()))
            new = Lease(owner, tuple(ip.address for ip in ips), durable.boot_id(), _now())
            if new != old or self._strange(new):
                self._replace(old, new)
            return ips

    def release(self, key: Key) -> None:
        if not self._directory.is_dir():
            return
        unreadable = False
        with self._locked(), self._change():
            try:
                held = _ips(self._documents.read(key))
            except RecordUnreadable:
                held, unreadable = (), True
            self._documents.remove(key)
            for address in held:
                self._index.drop(address, str(key))
            lost = self._lost(key, None)
            for name in lost:
                self._index.drop(name, str(key))
        if lost or unreadable:
            raise RecordUnreadable(
                f"the lease of {key} could not be read and is kept in {self._documents.quarantine}; "
                f"released {', '.join(lost) or 'nothing, as no address named it'}; repeat the call, it will succeed"
            )

    def check(self, key: Key) -> tuple[Address, ...]:
        if not self._directory.is_dir():
            raise CheckFailed(
                f"{key} holds no address: there is no {self._directory}; delete the attachment and add it"
            )
        with self._locked():
            self._agree()
            try:
                lease = self._documents.read(key)
            except RecordUnreadable as e:
                raise CheckFailed(e.msg) from e
            if lease is None:
                raise CheckFailed(f"{key} holds no address in {self._directory}; delete the attachment and add it")
            if strange := self._strange(lease):
                names = ", ".join(f"{a} of {self._index.holder(a) or 'nobody'}" for a in strange)
                raise CheckFailed(f"{key} has a lease, but the index makes {names}; remove {self._directory}/index")
            return lease.ips

    def collect(self, valid: frozenset[Key] | None) -> None:
        if not self._directory.is_dir():
            return
        problems = list[CniError]()
        with _disk(self._directory):
            keys = self._documents.attachments()
        # The lock is taken for each: others are not to wait while a whole node's leases go.
        works: list[Callable[[], None]] = [self._heal, *(partial(self._collect, key, valid) for key in keys)]
        for work in works:
            try:
                work()
            except CniError as e:
                problems.append(e)
        if problems:
            raise together(problems)

    def rehearse(self, choose: Choose) -> None:
        self._make()
        with self._locked():
            self._agree()
            choose(IndexBook(self._index, (), self._last()))
            # The one write that changes nothing.
            self._index.trust()

    def _collect(self, key: Key, valid: frozenset[Key] | None) -> None:
        if valid is None:
            with self._locked():
                lease = self._documents.read(key)
            stale = lease is not None and lease.boot != durable.boot_id()
        else:
            stale = key not in valid
        if stale:
            self.release(key)

    def _lost(self, key: Key, lease: Lease | None) -> list[str]:
        """What the key holds besides its lease's addresses, by one that could not be read."""
        if str(key) not in self._documents.set_aside():
            return []
        return sorted(set(self._index.held_by(str(key))) - {str(address) for address in _ips(lease)})

    def _strange(self, lease: Lease) -> list[Address]:
        """Those of a lease's addresses that the index does not give to its key."""
        return [a for a in lease.ips if self._index.holder(a) != str(lease.owner.key)]

    def _replace(self, old: Lease | None, new: Lease) -> None:
        key = new.owner.key
        with self._change():
            for address in new.ips:
                self._index.put(address, str(key))
            try:
                self._documents.write(new)
            except IoFailure:
                # The new lease may stand all the same, if it was the directory's sync that failed.
                if old is None:
                    with suppress(IoFailure):
                        self._documents.remove(key)
                raise
            for address in set(_ips(old)) - set(new.ips):
                self._index.drop(address, str(key))
        with suppress(OSError):
            # Only a hint: any content is right, so it is neither replaced whole nor synced, nor missed.
            self._cursor.write_text("".join(f"{address}\n" for address in new.ips))

    def _last(self) -> tuple[Address, ...]:
        try:
            return tuple(ip_address(line) for line in self._cursor.read_text().split())
        except (OSError, ValueError):
            return ()

    def _make(self) -> None:
        for directory in (self._directory, self._documents.directory, self._index.directory):
            durable.directory(directory)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self._directory / "lock")
        try:
            with _disk(self._directory), lock.acquire(timeout=self._patience, poll_interval=POLL):
                yield
        except Timeout as e:
            raise TryAgain(f"{lock.lock_file} was held by others for {self._patience:g} s; try again") from e

    @contextmanager
    def _change(self) -> Iterator[None]:
        """The index is not to be believed inside, and agrees with the leases again afterwards."""
        trusted = self._index.trusted
        self._index.distrust()
        try:
            yield
        except BaseException:
            trusted = False
            raise
        finally:
            # Where this fails, on a full disk say, the next call does it.
            with suppress(OSError, CniError):
                if trusted:
                    self._index.trust()
                else:
                    self._rebuild()

    def _agree(self) -> None:
        if not self._index.trusted:
            self._rebuild()

    def _heal(self) -> None:
        with self._locked():
            self._agree()

    def _rebuild(self) -> None:
        self._documents.clean()
        held = dict[str, str]()
        for key in self._documents.attachments():
            with suppress(RecordUnreadable):
                held |= {str(address): str(key) for address in _ips(self._documents.read(key))}
        self._index.rebuild(held, self._documents.set_aside())


@contextmanager
def _disk(directory: Path) -> Iterator[None]:
    """What the file system refuses is an IoFailure that names the file."""
    try:
        yield
    except Timeout:
        raise
    except OSError as e:
        file = e.filename2 or e.filename or directory
        raise IoFailure(f"{file}: {e.strerror}; {directory} must be writable and have room") from e


def _ips(lease: Lease | None) -> tuple[Address, ...]:
    return lease.ips if lease else ()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
