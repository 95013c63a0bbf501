"""The leases of one network as files, with one lock around every use.

    <network>/
      lock            flock
      leases          authoritative: a line of JSON per attachment, with all its addresses (lines.py, codec.py)
      index           of leases; rebuilt whenever it may be wrong (index.py, repair.py)
      ranges          the ranges of the latest ADD, for people
      quarantine/     unreadable lines of leases

A call reads and writes one line and a few entries of the index, for any number of leases, and syncs once.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from base.protocol.errors import CheckFailed, CniError, InvalidConfig, IoFailure, RecordUnreadable, combine
from base.protocol.result import Address, Ip
from base.protocol.spec import Kept, Key
from base.state import durable, syncs
from base.state.locks import Lock
from ipam.ranges import Span, elsewhere
from ipam.stores import LOCK_TIMEOUT, Book, Choose, Gone, KeepBack, Owner, Ranges, none_gone
from ipam.stores.files import ranges as ranges_file
from ipam.stores.files import releases
from ipam.stores.files.codec import digest
from ipam.stores.files.index import HEADER
from ipam.stores.files.pages import IndexCorrupt
from ipam.stores.files.releases import Rule, find_stale
from ipam.stores.files.repair import repair
from ipam.stores.files.table import INDEX, LEASES, Table, TableBook
from ipam.stores.holdings import Contents, Lease, Lost

T = TypeVar("T")

# The most leases that GC releases per lock, while others wait.
BATCH = 256
# host-local has files of leases here (exported.py).
EXPORTED = "exported"
# The characters of host-local's file names for addresses; each of our names has another one too.
_OF_ADDRESSES = "0123456789abcdefABCDEF.:"


class FileStore:
    """The leases in one directory.  Messages for an operator go to ``log``; ``gone`` finds dead namespaces.  With
    ``kept``, the files stay open and locked for the store's next user there, until one of them fails.

    Every method raises IoFailure, and TryAgain while others keep the store busy.
    """

    def __init__(
        self,
        directory: Path,
        log: list[str],
        gone: Gone = none_gone,
        timeout: float = LOCK_TIMEOUT,
        kept: Kept | None = None,
    ) -> None:
        self._directory = directory
        self._kept = kept
        self._log = log
        self._gone = gone
        self._timeout = timeout

    @property
    def directory(self) -> str:
        return f"{self._directory}"

    def reserve(self, owner: Owner, choose: Choose, ranges: Ranges = (), parents: Sequence[str] = ()) -> tuple[Ip, ...]:
        """Hold exactly the addresses that ``choose`` returns for the owner; durable on return.

        ``choose`` sees the earlier addresses of the owner's sticky name as the owner's own.  The store records
        ``ranges``, from which it chooses, for people.  ``parents`` has the parent of each; those of other parents stay.

        An exception of ``choose`` passes through, and nothing has changed.  Raises RecordUnreadable if the owner's
        lease cannot be read.
        """

        def work(table: Table) -> tuple[Ip, ...]:
            held = table.find(digest(owner.key))
            if held is None and owner.terms.sticky:
                held = releases.find_held(table, owner.terms.sticky, self._gone)
            old = held.holding if held else None
            if isinstance(old, Lost):
                raise self._unreadable(owner.key, old, "held until it is deleted: delete the attachment, then add it")
            ips = choose(TableBook(table, old.ips if old else (), owner.key))
            now = time.strftime("%FT%TZ", time.gmtime())
            new = Lease(owner, tuple(ip.address for ip in ips), durable.boot_id(), now)
            if ranges:
                ranges_file.record(table, ranges, parents)
            if new != old:
                # With rails or parents an ADD uses some sets only; the search of each other one continues where it was.
                some = any(parents) or len(ranges) > len(ips)
                rest = elsewhere(table.index.last, ranges, new.ips) if some else ()
                table.put(held, new, rest, late=held is None)
            else:
                table.lines.sync()  # the process that wrote the lease may have been killed before its sync
            return ips

        return self._with_table(work, make=True)

    def decline(
        self, key: Key, taken: Mapping[Address, str], seconds: int, keep_back: KeepBack
    ) -> Mapping[Address, str]:
        """Remove from the key the addresses that other hosts use (with their MACs), like a decline in DHCP.  Reserve
        those that ``keep_back`` picks for so many seconds.

        Return all addresses that are kept back for this reason, with the MACs.
        """
        return self._with_table(lambda t: releases.decline(t, t.find(digest(key)), taken, seconds, keep_back))

    def release_conflicts(self) -> int:
        """Free the addresses that are kept back because other hosts use them; return their number."""

        def work(table: Table) -> int:
            found = releases.conflicts(table)
            table.drop([held for held, _ in found])
            return sum(len(one.ips) for _, one in found)

        return self._with_table(work) if self._is_there() else 0

    def release(self, key: Key, *, unused: bool = False, in_use: bool = False) -> None:
        """Free what the key holds, if anything.

        ``unused`` addresses do not cool down.  Addresses that may be ``in_use`` are kept back until the next boot, or
        until a ``collect`` with ``probing``.

        Raises RecordUnreadable once, after the release, if the lease could not be read.
        """

        def work(table: Table) -> None:
            held = table.find(digest(key))
            if held is None:
                return
            releases.release(table, [held], unused=unused, in_use=in_use)
            if lost := held.lost:
                what = "kept back, because they may be in use" if in_use else "released"
                raise self._unreadable(key, lost, f"{what}; repeat the call, it will succeed")

        if self._is_there():
            try:
                self._with_table(work)
            finally:
                self._end_exports()

    def check(self, key: Key) -> tuple[Address, ...]:
        """The addresses that the key holds.  Raises CheckFailed if there are none, or if its lease is unreadable."""
        held = self._with_table(lambda table: table.find(digest(key))) if self._is_there() else None
        if held is None:
            raise CheckFailed(
                f"{self._title(key)}, holds no address in {self._directory}; delete the attachment and add it"
            )
        if isinstance(lost := held.holding, Lost):
            raise CheckFailed(self._unreadable(key, lost, "delete the attachment and add it").msg)
        return held.holding.ips

    def collect(
        self,
        valid: frozenset[Key] | None,
        attached: Callable[[], Collection[Key]] = tuple,
        *,
        probing: bool = False,
    ) -> int:
        """Free the leases of all keys that are not in ``valid``; return their number.  If ``valid`` is None, free the
        leases of an older boot and those of namespaces that are gone.

        With a list, spare the keys of ``attached`` too.  It is called after the leases were read, because an attachment
        has a record before it has a lease.  Also free addresses that were kept back for long enough; with ``probing``
        (every address is probed before use) those that may still be in use.

        Continues after errors and raises them as one at the end.
        """
        if not self._is_there():
            return 0
        # Find stale leases without the lock, so that others need not wait, and check them again under it.
        if self._kept:
            self._kept.close()
            self._kept = None
        self._with_table(lambda _: None)  # rebuilds the index if necessary
        try:
            rule, lines = find_stale(f"{self._directory}/{LEASES}", Rule.of(valid, probing=probing), self._gone)
        except OSError as e:
            raise _refusal(self._directory, e) from e
        rule = rule.sparing(attached())
        stale, problems, freed = list(lines.items()), list[CniError](), 0
        for start in range(0, len(stale), BATCH):
            try:
                freed += self._collect(stale[start : start + BATCH], rule, problems)
            except CniError as e:
                problems.append(e)
        self._end_exports()
        if problems:
            raise combine(problems)
        return freed

    def adopt(self, leases: Sequence[Lease], *, dry_run: bool = False) -> list[str]:
        """Hold leases that another IPAM gave, all or none; ignore a lease that is here already.

        Return a description of each collision, with leases here or among the new ones.  If there is any, nothing has
        changed.
        """
        from ipam.stores.files import administration  # noqa: PLC0415  # for hpn ipam import only

        if dry_run and not self._is_there():
            return list(administration.given_twice(leases))
        durable.directory(self._directory)
        return self._with_table(lambda table: administration.adopt(table, leases, dry_run=dry_run))

    def rehearse(self, choose: Choose) -> None:
        """Check that ``reserve`` would serve a new owner: the store is writable and ``choose`` does not raise."""

        def work(table: Table) -> None:
            choose(TableBook(table, ()))
            table.rehearse()
            if kept := len(os.listdir(table.quarantine)) if table.quarantine.is_dir() else 0:
                self._log.append(f"{table.quarantine} has {kept} files of unreadable leases; check and remove them")

        self._with_table(work, make=True)

    def look(self, look: Callable[[Book], T]) -> T:
        """Return what ``look`` returns.  While it runs, nothing in the store changes.  Its exceptions pass through."""
        return self._with_table(lambda table: look(TableBook(table, ())), make=True)

    def sets(self) -> tuple[tuple[Span, ...], ...]:
        """The ranges of each set at the latest ADD; empty if unknown."""
        return tuple(tuple(map(ranges_file.parsed, one.spans)) for one in ranges_file.read(self._directory))

    def contents(self) -> Contents:
        """All that the network holds, read without a lock; if that fails, ``Contents.problem`` gives the reason."""
        from ipam.stores.files import administration  # noqa: PLC0415  # for people only

        try:
            return administration.contents(self._directory, self._gone)
        except OSError as e:
            raise IoFailure(f"reading {e.filename or self._directory}: {e.strerror}; it is for root") from e

    def verify(self) -> list[str]:
        """Describe each inconsistency of the store; change nothing."""
        from ipam.stores.files import administration  # noqa: PLC0415  # for hpn ipam verify only

        with self._table(mend=False) as table:
            return [*administration.problems(table), *administration.quarantined(self._directory)]

    def _end_exports(self) -> None:
        """Remove host-local's files of leases that have ended (exported.py)."""
        if not os.path.exists(f"{self._directory}/{EXPORTED}"):
            return
        from ipam.stores.files import exported  # noqa: PLC0415  # after an export or import only

        def ended(files: Mapping[str, Key]) -> list[str]:
            def work(table: Table) -> list[str]:
                known = {key: held.holding.ips for key in {*files.values()} if (held := table.find(digest(key)))}
                return [path for path, key in files.items() if Path(path).name not in map(str, known.get(key, ()))]

            return self._with_table(work)

        self._log += exported.remove(self._directory, ended)

    def _lock(self) -> Lock:
        return Lock(f"{self._directory}/lock", self._timeout)

    def _first_lock(self) -> Lock:
        """``_lock`` for allocating: creates a new network's directory, and refuses one with host-local's leases."""
        try:
            lock = durable.with_directory(f"{self._directory}/lock", self._lock)
        except InvalidConfig:
            self._refuse_host_locals()  # host-local's directory has mode 755, which the lock refuses
            raise
        try:
            self._refuse_host_locals()
        except BaseException:
            lock.release()
            raise
        return lock

    def _refuse_host_locals(self) -> None:
        """Raise InvalidConfig if host-local has allocated addresses here that were not imported."""
        try:
            there = os.listdir(self._directory)
        except FileNotFoundError:
            return
        if names := [name for name in there if not name.strip(_OF_ADDRESSES)]:
            from ipam.stores.files import administration  # noqa: PLC0415  # until the import only

            administration.refuse_host_locals(self._directory, names)

    def _sync(self, table: Table) -> None:
        try:
            syncs.data(table.lines.fd, table.lines.path)
        except OSError:
            with self._lock():
                table.take_back()
            raise

    def _collect(self, lines: Sequence[tuple[int, int]], rule: Rule, problems: list[CniError]) -> int:
        def work(table: Table) -> tuple[int, list[Lost]]:
            heads = [(line, was) for line, was in lines if line < table.index.lines and table.index.is_head(line)]
            same = [line for line, was in heads if hash(table.lines.read(line)) == was]
            stale = [held for held in map(table.at, same) if rule.applies(held.body)]
            releases.release(table, stale)
            return len(stale), [held.lost for held in stale if held.lost]

        count, lost = self._with_table(work)
        problems.extend(self._unreadable("an attachment", one, "released") for one in lost)
        return count

    def _unreadable(self, key: Key | str, lost: Lost, what: str) -> RecordUnreadable:
        names = ", ".join(map(str, lost.ips)) or "no address"
        title = self._title(key) if isinstance(key, Key) else key
        return RecordUnreadable(
            f"the lease of {title} could not be read and is kept in {self._directory}/{lost.kept}; {names} {what}"
        )

    def _title(self, key: Key) -> str:
        return key.of("", self._directory.name)

    def _is_there(self) -> bool:
        """Whether anything may be held.  A first ADD on a full disk leaves empty files, which hold nothing."""
        return _size(f"{self._directory}/{LEASES}") > 0 or _size(f"{self._directory}/{INDEX}") > HEADER

    def _with_table(self, work: Callable[[Table], T], *, make: bool = False) -> T:
        """Call ``work``; if the index or a line is damaged, once more with a rebuilt index."""
        try:
            with self._table(make=make) as table:
                return work(table)
        except IndexCorrupt as e:
            self._log.append(f"{e}; the index of {self._directory} was rebuilt")
        try:
            with self._table(make=make) as table:
                return work(table)
        except IndexCorrupt as e:
            raise IoFailure(f"{e}, also after a rebuild of the index; check the disk, then try again") from e

    @contextmanager
    def _table(self, *, make: bool = False, mend: bool = True) -> Iterator[Table]:
        """The open files of ``_files``, perhaps with changes of the users before."""
        kept = self._kept
        if kept is None:
            with self._files(make=make, mend=mend) as table:
                yield table
            return
        if kept.name != self.directory:
            kept.close()
            kept.thing, kept.name = kept.enter_context(self._files(make=make, mend=mend)), self.directory
        try:
            yield kept.thing
        except BaseException:
            kept.__exit__(*sys.exc_info())
            raise
        if kept.thing.is_spoilt:
            kept.close()

    @contextmanager
    def _files(self, *, make: bool, mend: bool) -> Iterator[Table]:
        """Lock and open the files; with ``mend`` the index is clean."""
        try:
            locked = self._first_lock if make else self._lock
            with locked() as lock, Table(self._directory, self._log, mend=mend) as table:
                if mend and not table.is_clean:
                    repair(table)
                try:
                    yield table
                except IndexCorrupt:
                    table.index.mark_suspect()
                    raise
                finally:
                    if table.is_late:
                        # The sync takes longer than all the rest, so others need not wait for it.  Their decisions may
                        # use lines that are not on disk yet: a sync covers the whole file, so theirs includes these.
                        lock.release()
                        self._sync(table)
        except OSError as e:
            raise _refusal(self._directory, e) from e


def _size(path: str) -> int:
    """The file's size; 0 if it is not there."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _refusal(directory: Path, e: OSError) -> IoFailure:
    """The file system's error as IoFailure, with the file's name."""
    if isinstance(e, IsADirectoryError) or e.errno == errno.ELOOP:
        what = "is a directory" if isinstance(e, IsADirectoryError) else "is a symbolic link"
        return IoFailure(f"{e.filename} {what} and should be a file; remove it, or move it away")
    file = e.filename2 or e.filename or directory / LEASES
    return IoFailure(f"{file}: {e.strerror}; {directory} must be writable and have room")
