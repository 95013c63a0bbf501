"""``leases`` and its index together: lookups by key and address, the one commit of a change, the view for choices."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self
from zlib import crc32

from base.protocol.result import Address
from base.protocol.spec import Json, Key
from ipam.ranges import Span
from ipam.stores.files import codec
from ipam.stores.files.codec import BLANK, Unreadable
from ipam.stores.files.index import Index
from ipam.stores.files.lines import MOST_LINES, QUARANTINE, Lines, open_file
from ipam.stores.files.pages import IndexCorrupt
from ipam.stores.holdings import Holding, Kept, Lease, Lost

LEASES, INDEX = "leases", "index"


@dataclass(frozen=True)
class Stored:
    """A holding with its lines in the file."""

    lines: tuple[int, ...]
    body: Json
    checksum: int  # of all its lines

    @property
    def line(self) -> int:
        return self.lines[0]

    @property
    def is_plain(self) -> bool:
        """Whether it is a lease that keeps nothing back on release, the common case; saves decoding it."""
        return "containerID" in self.body and "cooldown" not in self.body and "sticky" not in self.body

    @cached_property
    def holding(self) -> Holding:
        return codec.decode(self.body)

    @property
    def lost(self) -> Lost | None:
        """The holding, if it is the remains of an unreadable lease."""
        found = None if self.is_plain else self.holding
        return found if isinstance(found, Lost) else None

    @cached_property
    def outline(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The key's digest, and the addresses as version and number."""
        return codec.outline(self.body)


class Table:
    """The open files of a network; the caller holds the lock.

    Messages for an operator go to ``log``.  A method that raises OSError or IoFailure has changed no lease, or the next
    rebuild of the index undoes the change.  After IndexCorrupt the caller must rebuild the index.
    """

    def __init__(self, directory: Path, log: list[str], *, mend: bool = True) -> None:
        """With ``mend``, move whatever is in a file's place and is not a regular file to quarantine.

        Raises OSError, IoFailure.
        """
        self.directory = directory
        self.log = log
        self.is_spoilt = False  # whether an error has left the index behind the leases; the next opener rebuilds it
        self._late = list[tuple[int, bytes]]()
        # Not Path's "/", which takes longer than opening the file.
        leases, aside = f"{directory}/{LEASES}", log if mend else None
        self.lines = Lines(leases, open_file(leases, aside))
        try:
            self.index = Index(open_file(f"{directory}/{INDEX}", aside))
        except BaseException:
            self.lines.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.index.close()

    @property
    def is_clean(self) -> bool:
        """Whether the index is clean.  If not, only ``repair`` may use this table."""
        return self.index.is_clean(os.fstat(self.lines.fd))

    @property
    def quarantine(self) -> Path:
        return self.directory / QUARANTINE

    def read(self, line: int) -> Stored:
        """The lease that begins at the line.  Raises Unreadable."""
        lines, bodies, whole = list[int](), list[Json](), b""
        at = line
        while at:
            data = self.lines.read(at)
            body = codec.from_line(data)
            if body is None or at in lines or body.get("of", line if at == line else 0) != line:
                raise Unreadable(f"line {at} is not part of a lease at {line}")
            lines.append(at)
            bodies.append(body)
            whole += data
            at = codec.link(body, "next", 0)
        return Stored(tuple(lines), bodies[0] if len(bodies) == 1 else codec.joined(bodies), crc32(whole))

    def find(self, digest: bytes) -> Stored | None:
        line = self.index.find(digest)
        return self.at(line) if line else None

    def head(self, line: int) -> int:
        """The first line of this line's lease; 0 if the line belongs to none."""
        try:
            head = codec.link(codec.from_line(self.lines.read(line)) or {}, "of", line)
        except Unreadable:
            return 0
        return head if 0 < head < self.index.lines and self.index.is_head(head) else 0

    def containing(self, text: bytes) -> Iterator[Stored]:
        """The leases with a line that contains the text.  Scans the file, because the index holds no text."""
        for line in self.lines.containing(text, self.index.lines):
            if head := self.head(line):
                yield self.at(head)

    def at(self, line: int) -> Stored:
        """The lease that begins at the line.  Raises IndexCorrupt if the index has another one there."""
        try:
            held = self.read(line)
        except Unreadable as e:
            raise IndexCorrupt(f"line {line} of {self.lines.path}: {e}") from e
        if held.checksum != self.index.checksum(line):
            raise IndexCorrupt(f"line {line} of {self.lines.path} is not the lease that the index has there")
        return held

    def put(self, old: Stored | None, new: Holding, last: Sequence[Address] = (), *, late: bool = False) -> None:
        """Commit the lease, in place of the old one if there is one.  Its addresses, then ``last``, become the ones
        allocated last.

        With ``late``, for a new lease, the caller syncs, without the lock; see ``take_back``.
        """
        before, digest = old.outline[1] if old else [], codec.digest_of(new)
        after = [(address.version, int(address)) for address in new.ips]
        line, checksum = self._write(old.line if old else 0, codec.encode(new), late=late)
        with self._indexing():
            if old is None:
                self.index.add(digest, line, checksum)
            else:
                self._free(old.lines[1:])
                self.index.replace(old.outline[0], digest, line, checksum)
            for version, number in set(before) - set(after):
                self.index.pages.free(version, number)
            for version, number in after:
                self.index.pages.hold(version, number, line)
            if not isinstance(new, Kept):
                self.index.last = (*new.ips, *last)
            self.mark_clean()

    @property
    def is_late(self) -> bool:
        """Whether a change still needs a sync."""
        return bool(self._late)

    def take_back(self) -> None:
        """Blank the lines of late changes after a failed sync; the caller holds the lock again.  Raises OSError."""
        self.index.mark_dirty()
        for line, data in self._late:
            if self.lines.read(line) == data:
                self.lines.write(line, BLANK)
        self.lines.sync()

    def drop(self, leases: Sequence[Stored], *, late: bool = False) -> None:
        """Free the leases, durably; with ``late`` the caller syncs, as for ``put``."""
        self.index.mark_dirty()
        for held in leases:
            self.lines.write(held.line, BLANK)
        # Another lease may reuse a continuation's line before the blank first line is on disk.
        if late and not any(held.lines[1:] for held in leases):
            self._late += [(held.line, BLANK) for held in leases]
        else:
            self.lines.sync()
        with self._indexing():
            for held in leases:
                digest, addresses = held.outline
                for version, number in addresses:
                    self.index.pages.free(version, number)
                self.index.remove(digest, held.line)
                self._free(held.lines[1:])
            self.mark_clean()

    def rehearse(self) -> None:
        """Write and sync like a change, without changing a lease.  Raises OSError."""
        (line,) = self._lines(1)
        self.index.mark_dirty()
        self.lines.write(line, BLANK)
        self.lines.sync()
        self.index.push(line)
        self.mark_clean()

    def mark_clean(self) -> None:
        if not self.is_spoilt:
            self.index.mark_clean(os.fstat(self.lines.fd))

    @contextmanager
    def _indexing(self) -> Iterator[None]:
        """After a commit: an error in here spoils only the index, which the next call rebuilds."""
        try:
            yield
        except (OSError, IndexCorrupt):
            self.is_spoilt = True

    def _write(self, line: int, body: Json, *, late: bool = False) -> tuple[int, int]:
        """Commit the lease at the line, or at a free line for 0; return line and checksum.  The index stays dirty."""
        self.index.written += 1
        body["n"] = self.index.written
        whole = codec.to_line_if_it_fits(body)
        parts = [body] if whole else codec.split(body)
        fresh = self._lines(len(parts) - bool(line))
        lines = [line, *fresh] if line else fresh
        old = self.lines.read(line) if line else BLANK
        stored = [whole] if whole else codec.to_lines(parts, lines)
        self.index.mark_dirty()
        try:
            if lines[1:]:
                for at, data in zip(lines[1:], stored[1:], strict=True):
                    self.lines.write(at, data)
                self.lines.sync()
            self.lines.write(lines[0], stored[0])
            if late:
                self._late.append((lines[0], stored[0]))
            else:
                self.lines.sync()
        except OSError:
            # The line may be on disk despite the error.
            with suppress(OSError):
                self.lines.write(lines[0], old)
                self.lines.sync()
            raise
        return lines[0], crc32(b"".join(stored))

    def _lines(self, count: int) -> list[int]:
        """Take ``count`` free lines.  Raises OSError if there is no room."""
        taken = list[int]()
        try:
            while len(taken) < count:
                if not self.index.free:
                    self._grow()
                taken.append(self.index.pop())
                if self.lines.read(taken[-1]).strip(b"\0 \n"):
                    raise IndexCorrupt(f"line {taken[-1]} of {self.lines.path} counts as free and is not")
        except OSError:
            # Growing has changed only the file's time.
            for line in reversed(taken):
                self.index.push(line)
            self.mark_clean()
            raise
        return taken

    def _grow(self) -> None:
        if self.index.lines >= MOST_LINES:
            raise OSError(0, f"it has {MOST_LINES} lines and can hold no more", str(self.lines.path))
        self.index.push_all(self.index.lines, self.lines.grow(self.index.lines))

    def _free(self, lines: Sequence[int]) -> None:
        # Not synced: a continuation that no lease names is free, whatever it holds.
        for line in lines:
            self.lines.write(line, BLANK)
            self.index.push(line)


@dataclass
class TableBook:
    """The view of the table for one choice (stores.Book)."""

    table: Table
    mine: tuple[Address, ...]
    key: Key | None = None

    @property
    def siblings(self) -> tuple[Address, ...]:
        # This scans the file; only networks with aligned addresses need it.
        if self.key is None:
            return ()
        # The quotes exclude longer names; inside a JSON string a quote follows a backslash.
        text = f'"containerID":{json.dumps(self.key.container_id)}'.encode()
        leases = [held.holding for held in self.table.containing(text) if isinstance(held.holding, Lease)]
        return tuple(ip for one in leases if one.owner.key != self.key for ip in one.ips)

    @property
    def last(self) -> tuple[Address, ...]:
        return self.table.index.last

    def holder(self, address: Address) -> str:
        line = self.table.index.pages.holder(address.version, int(address))
        if not line:
            return ""
        found = self.table.at(line).holding
        if isinstance(found, Lease):
            return found.owner.key.of(found.owner.pod, self.table.directory.name)
        if isinstance(found, Lost):
            return f"an unreadable lease ({found.kept})"
        if found.boot:
            pod = f" ({found.pod})" if found.pod else ""
            return f"the store, kept back until the next boot: its last pod{pod} may still use it"
        until = time.strftime("%F %TZ", time.gmtime(found.until))
        if found.mac:
            return f"another host on the link (MAC {found.mac}), found by a probe: kept back until {until}"
        purpose = f"for {found.sticky}" if found.sticky else "after its release"
        return f"the store, kept back {purpose} until {until}"

    def first_free(self, span: Span) -> Address | None:
        return self.table.index.pages.first_free(span)

    def count(self, span: Span) -> int:
        return self.table.index.pages.count_held(span)
