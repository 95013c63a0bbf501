"""Chains: the attachments that one ADD makes for a pod's claims (cni/chain.py) or rails (cni/rails.py), and that only
begin and end together.

    /run/hpn/chains/<network>/<containerID>:<ifname>.json     the members of the chain, in durable.py's format
    /run/hpn/locks/chain-<n>                                  a byte for each key (locks.py); n is below 64

Network and interface are the request's: for claims those of the cluster's network.  Each member is an attachment with a
record in the journal, under its own network and interface.  The file is written before the first of these records, and
removed after the last one.  So it finds all of them, whatever command was killed.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.location import location
from base.protocol.spec import Json, Key, Request
from base.state import durable, journal
from base.state.journal import Version
from base.state.locks import Lock
from base.state.record import LOST, Record


@dataclass(frozen=True)
class Member:
    """One attachment of a chain: its interface, the claim's device (Record.claim; empty for a rail), and its
    configuration."""

    ifname: str
    claim: str
    config: Json

    def entry(self, container_id: str) -> journal.Entry:
        """The attachment's place in the journal.  Raises InvalidConfig."""
        where = location(self.config)
        return journal.Entry(where.state_dir, where.network, Key(container_id, self.ifname))

    def request(self, whole: Request) -> Request:
        """The request for this attachment.  A claim's keeps the pod's names of the arguments: others, such as MAC, are
        for the cluster's network.  A rail's keeps all but the addresses, which the configuration has."""
        pairs = whole.var("CNI_ARGS").split(";")
        given = (one for one in pairs if (one.startswith("K8S_") if self.claim else one and not one.startswith("IP=")))
        return whole.but(
            stdin=json.dumps(self.config).encode(),
            CNI_IFNAME=self.ifname,
            CNI_ARGS=";".join(("IgnoreUnknown=1", *given)),
        )


@dataclass(frozen=True)
class Chain:
    """The place of a chain on disk.  One from ``locked`` holds the chain's lock."""

    state_dir: Path
    network: str
    key: Key

    @property
    def _file(self) -> str:
        return f"{_folder(self.state_dir, self.network)}/{self.key}.json"

    @property
    def exists(self) -> bool:
        """Whether the chain has a file, readable or not, or an interrupted first write of one."""
        return os.path.lexists(self._file) or os.path.lexists(f"{self._file}.tmp")

    def lock(self, timeout: float | None = None) -> Lock:
        """Lock the chain.  Take this lock before those of its attachments.  Raises TryAgain, IoFailure."""
        return journal.locked(self.state_dir, "chain", f"{self.network}/{self.key}", timeout)

    def load(self) -> tuple[Member, ...]:
        """The members; none if there is no file.  An unreadable file moves to quarantine/.  The records of its rails
        take its place, or those of the container's claims that no other chain names.  They hold all that an undo needs.
        Raises IoFailure."""
        try:
            return self.read()
        except RecordUnreadable:
            path = Path(self._file)
            durable.replace_unreadable(path, self.state_dir / "quarantine" / "chains", lambda _: self._recorded())
            return self.read()

    def read(self) -> tuple[Member, ...]:
        """As ``load``, but changes nothing.  Raises RecordUnreadable, IoFailure."""
        return _members(durable.read(self._file) or {"members": []}, self._file)

    def _recorded(self) -> Json:
        found = [*journal.records(self.state_dir, self.key.container_id)]
        if rails := [r for r in found if r.rail_of and (r.network, r.requested) == (self.network, self.key)]:
            found = rails
        else:
            others = named(self.state_dir, self.key.container_id)
            found = [r for r in found if r.claim and journal.Entry(self.state_dir, r.network, r.key) not in others]
        return _body(Member(r.key.ifname, r.claim, r.config) for r in found)

    def own(self, members: Iterable[Member]) -> dict[journal.Entry, tuple[Member, Record | None]]:
        """The members by their places, and their records; without those whose place another ADD has taken: the record
        there names another request or claim.  What an unreadable record says is unknown, so the chain has it."""
        found = dict[journal.Entry, tuple[Member, Record | None]]()
        for member in members:
            entry = member.entry(self.key.container_id)
            record = journal.peek(entry.state_dir, entry.network, entry.key)
            if record is None or record.kind == LOST or self._has(member, record):
                found[entry] = member, record
        return found

    def _has(self, member: Member, record: Record) -> bool:
        return record.claim == member.claim if member.claim else record.requested == self.key

    def version(self) -> Version:
        """As ``journal.Entry.version``, for the chain's file."""
        return journal.version_of(self._file)

    def save(self, members: Sequence[Member]) -> None:
        """Put the chain on disk, before the first of its records.  Raises IoFailure."""
        durable.write(self._file, _body(members))

    def note_added(self) -> None:
        """Give the file a new version at the end of ADD, because the list of a GC that began before lacks the chain."""
        now = time.time_ns()
        with suppress(OSError):
            os.utime(self._file, ns=(now, now))

    def forget(self) -> None:
        """Remove the chain, after the last of its records was removed.  Raises IoFailure."""
        durable.remove(self._file)


def find(state_dir: Path, network: str, key: Key) -> Chain | None:
    """The request's chain; None if there is none."""
    return whole if (whole := Chain(state_dir, network, key)).exists else None


def of_network(state_dir: Path, network: str) -> list[Chain]:
    """The chains of a network, in order.  Raises IoFailure."""
    return [Chain(state_dir, network, key) for key in journal.keys_in(_folder(state_dir, network))]


def of_state_dir(state_dir: Path) -> Iterator[Chain]:
    """The chains of all networks.  Raises IoFailure."""
    try:
        networks = sorted(os.listdir(f"{state_dir}/chains"))
    except (FileNotFoundError, NotADirectoryError):
        return
    for network in networks:
        yield from of_network(state_dir, network)


def named(state_dir: Path, container_id: str = "") -> dict[journal.Entry, Chain]:
    """The attachments that the chains of all containers or of one name, each with its chain.  Chains that
    cannot be read are passed over.  Raises IoFailure for a shortage."""
    found = dict[journal.Entry, Chain]()
    for whole in of_state_dir(state_dir):
        if container_id in ("", whole.key.container_id):
            try:
                found.update({one.entry(whole.key.container_id): whole for one in whole.read()})
            except (IoFailure, RecordUnreadable) as e:
                if not durable.is_lost(e):
                    raise
    return found


def _body(members: Iterable[Member]) -> Json:
    return {"members": [vars(member) for member in members]}


def _members(body: Json, file: str) -> tuple[Member, ...]:
    try:
        members = tuple(Member(**one) for one in body["members"])
    except (TypeError, KeyError) as e:
        raise RecordUnreadable(f"{file} lacks members of a chain: {e!r}") from e
    return members


def _folder(state_dir: Path, network: str) -> str:
    return f"{state_dir}/chains/{network}"
