"""``leases`` and its index as one thing: who has a lease, who has an address, and the one commit of a change."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self
from zlib import crc32

from cni.protocol.result import Address
from cni.protocol.spec import Json
from ipam.stores.files.blocks import Rotten
from ipam.stores.files.codec import (
    BLANK,
    Unreadable,
    decode,
    digest_of,
    encode,
    joined,
    link,
    outline,
    seal,
    sealed,
    split,
    unseal,
)  # fmt: skip
from ipam.stores.files.index import Index
from ipam.stores.files.slots import QUARANTINE, SLOTS, Slots, file, truly
from ipam.stores.holdings import Holding, Kept, Lost

LEASES, INDEX = "leases", "index"


@dataclass(frozen=True)
class Held:
    """A lease where it is: its lines and what they say."""

    lines: tuple[int, ...]
    body: Json
    seal: int  # a checksum of all of them

    @property
    def slot(self) -> int:
        return self.lines[0]

    @property
    def is_plain(self) -> bool:
        """Whether it is a lease of which nothing is to be kept back: nearly every one, and needs no ``holding``."""
        return "containerID" in self.body and "cooldown" not in self.body and "sticky" not in self.body

    @cached_property
    def holding(self) -> Holding:
        return decode(self.body)

    @property
    def lost(self) -> Lost | None:
        """The holding, if it stands for a lease that could not be read."""
        found = None if self.is_plain else self.holding
        return found if isinstance(found, Lost) else None

    @cached_property
    def outline(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The digest of its key, and its addresses as version and number."""
        return outline(self.body)


class Table:
    """The open files of a network; the caller has the lock.

    ``log`` gets what an operator should look at.  Whatever raises OSError or IoFailure has changed no lease, or is
    undone by the next who makes the index anew.  So is what raises Rotten, after which the index must be made anew.
    """

    def __init__(self, directory: Path, log: list[str], *, mend: bool = True) -> None:
        """With ``mend`` what is there and is no file is set aside: at once, or by ``refuse_others``."""
        self.directory = directory
        self.log = log
        self._is_spoilt = False
        self._late = list[tuple[int, bytes]]()
        # Not Path's "/": opening takes less time than that.
        leases, self._aside = f"{directory}/{LEASES}", log if mend else None
        self.slots = Slots(leases, file(leases, self._aside))
        try:
            self.index = Index(file(f"{directory}/{INDEX}", self._aside))
        except BaseException:
            self.slots.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.slots.close()
        self.index.close()

    def refuse_others(self) -> None:
        """See that both are files: with an index that is true they are.  Raises OSError, IoFailure."""
        self.slots.fd = truly(self.slots.fd, self.slots.path, self._aside)
        index = truly(self.index.fd, f"{self.directory}/{INDEX}", self._aside)
        if index != self.index.fd or not self.index.readable:
            self.index = Index(index)

    @property
    def is_true(self) -> bool:
        """Whether the index is; where not, nothing but ``repair`` is of use."""
        return self.index.is_true(os.fstat(self.slots.fd))

    @property
    def quarantine(self) -> Path:
        return self.directory / QUARANTINE

    def read(self, slot: int) -> Held:
        """The lease that begins there.  Raises Unreadable."""
        lines, bodies, whole = list[int](), list[Json](), b""
        at = slot
        while at:
            line = self.slots.read(at)
            body = unseal(line)
            if body is None or at in lines or body.get("of", slot if at == slot else 0) != slot:
                raise Unreadable(f"line {at} is no part of a lease at {slot}")
            lines.append(at)
            bodies.append(body)
            whole += line
            at = link(body, "next", 0)
        return Held(tuple(lines), bodies[0] if len(bodies) == 1 else joined(bodies), crc32(whole))

    def find(self, digest: bytes) -> Held | None:
        """The key's lease."""
        slot = self.index.find(digest)
        return self.at(slot) if slot else None

    def head(self, slot: int) -> int:
        """Where the lease begins that the line is of, 0 if it is of none."""
        try:
            head = link(unseal(self.slots.read(slot)) or {}, "of", slot)
        except Unreadable:
            return 0
        return head if 0 < head < self.index.slots and self.index.is_head(head) else 0

    def at(self, slot: int) -> Held:
        """What the index has there.  Raises Rotten where it is not that any more."""
        try:
            held = self.read(slot)
        except Unreadable as e:
            raise Rotten(f"line {slot} of {self.slots.path}: {e}") from e
        if held.seal != self.index.seal(slot):
            raise Rotten(f"line {slot} of {self.slots.path} is another than was written there")
        return held

    def put(self, old: Held | None, new: Holding, last: Sequence[Address] = (), *, late: bool = False) -> None:
        """Commit the lease, in the place of the old one if there is one; ``last`` stays behind what is given now.

        ``late`` is for a new one, and leaves the sync to the caller, who needs no lock for it; see ``take_back``."""
        before, digest = old.outline[1] if old else [], digest_of(new)
        after = [(address.version, int(address)) for address in new.ips]
        slot, sealed_ = self._write(old.slot if old else 0, encode(new), late=late)
        with self._indexing():
            if old is None:
                self.index.add(digest, slot, sealed_)
            else:
                self._free(old.lines[1:])
                if old.outline[0] != digest:
                    self.index.rename(old.outline[0], digest, slot, sealed_)
                else:
                    self.index.reseal(slot, sealed_)
            for version, number in set(before) - set(after):
                self.index.pages.take(version, number)
            for version, number in after:
                self.index.pages.give(version, number, slot)
            if not isinstance(new, Kept):
                self.index.last = (*new.ips, *last)
            self.trust()

    @property
    def is_late(self) -> bool:
        """Whether something was put or dropped and not synced."""
        return bool(self._late)

    def take_back(self) -> None:
        """With the lock again: what was put late and could not be synced is gone, on disk or not.  Raises OSError."""
        self.index.distrust()
        for slot, line in self._late:
            if self.slots.read(slot) == line:
                self.slots.write(slot, BLANK)
        self.slots.sync()

    def drop(self, leases: Sequence[Held], *, late: bool = False) -> None:
        """Free them, on disk when this returns; ``late`` leaves the sync to the caller as ``put`` does."""
        self.index.distrust()
        for held in leases:
            self.slots.write(held.slot, BLANK)
        # Another lease may be in a continuation's place before the disk knows that its first line is free.
        if late and not any(held.lines[1:] for held in leases):
            self._late += [(held.slot, BLANK) for held in leases]
        else:
            self.slots.sync()
        with self._indexing():
            for held in leases:
                digest, addresses = held.outline
                for version, number in addresses:
                    self.index.pages.take(version, number)
                self.index.remove(digest, held.slot)
                self._free(held.lines[1:])
            self.trust()

    def rehearse(self) -> None:
        """Do to the disk what a change does, without one.  Raises OSError."""
        (slot,) = self._lines(1)
        self.index.distrust()
        self.slots.write(slot, BLANK)
        self.slots.sync()
        self.index.push(slot)
        self.trust()

    def trust(self) -> None:
        if not self._is_spoilt:
            self.index.trust(os.fstat(self.slots.fd))

    @contextmanager
    def _indexing(self) -> Iterator[None]:
        """The change stands: what fails in here is the index's loss, and no later change of ours makes that good."""
        try:
            yield
        except (OSError, Rotten):
            self._is_spoilt = True

    def _write(self, slot: int, body: Json, *, late: bool = False) -> tuple[int, int]:
        """Commit the lease at that line or, for 0, a free one; where it is, and its checksum.

        The index is not trusted any more."""
        self.index.written += 1
        body["n"] = self.index.written
        whole, rest = sealed(body), b""
        parts = [body] if whole else split(body)
        fresh = self._lines(len(parts) - bool(slot))
        lines = [slot, *fresh] if slot else fresh
        old = self.slots.read(slot) if slot else BLANK
        self.index.distrust()
        try:
            if fresh[1:] or (slot and fresh):
                for at, part, after in zip(lines[1:], parts[1:], [*lines[2:], 0], strict=True):
                    rest += (line := seal({"of": lines[0], **part} | ({"next": after} if after else {})))
                    self.slots.write(at, line)
                self.slots.sync()
                parts[0]["next"] = lines[1]
            line = whole or seal(parts[0])
            self.slots.write(lines[0], line)
            if late:
                self._late.append((lines[0], line))
            else:
                self.slots.sync()
        except OSError:
            # It may have reached the disk all the same.
            with suppress(OSError):
                self.slots.write(lines[0], old)
                self.slots.sync()
            raise
        return lines[0], crc32(line + rest)

    def _lines(self, count: int) -> list[int]:
        """So many free lines.  Raises OSError where there is no room for more."""
        taken = list[int]()
        try:
            while len(taken) < count:
                if not self.index.free:
                    self._grow()
                taken.append(self.index.pop())
                if self.slots.read(taken[-1]).strip(b"\0 \n"):
                    raise Rotten(f"line {taken[-1]} of {self.slots.path} counts as free and is not")
        except OSError:
            # The file is as it was, but for its time.
            for line in reversed(taken):
                self.index.push(line)
            self.trust()
            raise
        return taken

    def _grow(self) -> None:
        if self.index.slots >= SLOTS:
            raise OSError(0, f"it has {SLOTS} lines and can hold no more", str(self.slots.path))
        self.index.push_all(self.index.slots, self.slots.grow(self.index.slots))

    def _free(self, lines: Sequence[int]) -> None:
        # Not synced: a line that no lease names is free whatever it says.
        for line in lines:
            self.slots.write(line, BLANK)
            self.index.push(line)
