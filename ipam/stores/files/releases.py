"""Release leases: free their addresses or keep them back, and find the leases that are stale.

Released addresses are free at once, or kept back in the same line, by the same commit.  Addresses kept back count as
held, so allocation skips them at no extra cost.  After their time, GC frees them, or the next ADD that finds the range
exhausted.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_interface

from base.protocol.result import Address
from base.protocol.spec import Json, Key
from base.state import durable
from ipam.stores import Gone, KeepBack, Sandbox
from ipam.stores.files.codec import Unreadable, decode, digest, from_line, outline, sandbox, sticky_digest
from ipam.stores.files.lines import read_lines
from ipam.stores.files.table import Stored, Table
from ipam.stores.holdings import Kept, Lease, Lost


@dataclass(frozen=True)
class Rule:
    """Decides which holdings are stale.  ``spared`` are the digests of the runtime's list, None without a list.
    ``dead`` are the namespaces that are gone.

    With ``probing``, every address is probed before use, so addresses that may still be in use are stale too.
    """

    spared: frozenset[bytes] | None
    dead: Collection[Sandbox] = frozenset()
    now: int = field(default_factory=lambda: int(time.time()))
    probing: bool = False

    @classmethod
    def of(cls, valid: frozenset[Key] | None, *, probing: bool = False) -> "Rule":
        return cls(None if valid is None else frozenset(map(digest, valid)), probing=probing)

    def sparing(self, keys: Collection[Key]) -> "Rule":
        """The same rule; with a list, it spares these keys too."""
        if self.spared is None or not keys:
            return self
        return replace(self, spared=self.spared | frozenset(map(digest, keys)))

    def applies(self, body: Json) -> bool:
        """Whether the holding is stale.  Raises Unreadable."""
        if "released" in body:
            kept = decode(body)
            return isinstance(kept, Kept) and (
                kept.is_over(self.now, durable.boot_id()) or bool(kept.boot and self.probing)
            )
        if self.spared is not None:
            return outline(body)[0] not in self.spared
        return body.get("boot") != durable.boot_id() or sandbox(body) in self.dead


def find_stale(path: str, rule: Rule, gone: Gone) -> tuple[Rule, dict[int, int]]:
    """The rule with the namespaces that are gone, and the lines that are stale or unreadable.

    Each line has a hash of its data: the caller, which holds no lock yet, compares it again under the lock.
    """
    stale, doubtful = dict[int, int](), dict[int, tuple[int, Sandbox]]()
    for line, data in read_lines(path):
        try:
            body = from_line(data) if line else None
            if body is None or "of" in body:
                continue
            if rule.applies(body):
                stale[line] = hash(data)
            elif rule.spared is None and (box := sandbox(body)):
                doubtful[line] = hash(data), box
        except Unreadable:
            stale[line] = hash(data)
    # Called after the leases were read, so that the answer covers no namespace that was created since.
    dead = frozenset(gone({box for _, box in doubtful.values()})) if doubtful else frozenset[Sandbox]()
    return replace(rule, dead=dead), stale | {line: seen for line, (seen, box) in doubtful.items() if box in dead}


def release(table: Table, leases: Sequence[Stored], *, unused: bool = False, in_use: bool = False) -> None:
    """Free the leases or keep their addresses back; durable on return, unless ``Table.is_late``.  Raises OSError."""
    now, free = int(time.time()), [held for held in leases if held.is_plain and not in_use]
    rest = [held for held in leases if not held.is_plain or in_use]
    if in_use:
        rest = [held for held in rest if not _keep_unreadable(table, held, now)]
    # These first, because addresses kept back for a name may replace one of these.
    if others := [held for held in rest if not isinstance(held.holding, Lease)]:
        table.drop(others)
    for held in rest:
        lease = held.holding
        if not isinstance(lease, Lease):
            continue
        kept = Kept.of(lease, now, durable.boot_id(), unused=unused, in_use=in_use)
        if kept is None:
            free.append(held)
            continue
        if kept.sticky:
            _replace_kept(table, kept.sticky, now)
        try:
            table.put(held, kept)
        except OSError:  # no room for a record longer than a line: releasing the lease is better than failing
            if in_use:
                raise
            free.append(held)
    if free:
        table.drop(free, late=True)


def _keep_unreadable(table: Table, held: Stored, now: int) -> bool:
    """Keep back the addresses of an unreadable lease, because they may be in use; return False if it has none."""
    lost = held.holding
    if not isinstance(lost, Lost) or not lost.ips:
        return False
    table.put(held, Kept(tuple(map(ip_interface, lost.ips)), "", now, now, until=now, boot=durable.boot_id()))
    return True


def decline(
    table: Table, held: Stored | None, taken: Mapping[Address, str], seconds: int, keep_back: KeepBack
) -> dict[Address, str]:
    """Remove from a lease the addresses that other hosts use, and keep back those that ``keep_back`` picks.

    Return all addresses kept back for this reason, with the MACs.  Raises OSError."""
    kept = {ip: one.mac for _, one in conflicts(table) for ip in one.ips}
    lease = held.holding if held else None
    if held is None or not isinstance(lease, Lease):
        return kept
    now = int(time.time())
    picked = set(keep_back(taken, kept))
    # The lease first: then no address is ever in two lines, and one that is in no line is only probed again.  The
    # addresses allocated last stay, so that the next ADD continues after all that were tried.
    rest = tuple(a for a in lease.addresses if a.ip not in taken)
    table.put(held, replace(lease, addresses=rest), table.index.last)
    last = table.index.last
    for address in (a for a in lease.addresses if a.ip in picked):
        until = now + seconds
        table.put(None, Kept((address,), "", now, until, until=until, mac=taken[address.ip]))
        kept[address.ip] = taken[address.ip]
    table.index.last = last
    return kept


def conflicts(table: Table) -> list[tuple[Stored, Kept]]:
    """The addresses kept back because other hosts use them.  Scans the file.  Raises OSError."""
    found, now = list[tuple[Stored, Kept]](), int(time.time())
    for held in table.containing(b'"mac":"'):
        one = held.holding
        if isinstance(one, Kept) and one.mac and not one.is_over(now, durable.boot_id()):
            found.append((held, one))
    return found


def find_held(table: Table, name: str, gone: Gone) -> Stored | None:
    """The sticky name's last holding: kept back, or the lease of an attachment that is provably dead."""
    kept = table.find(sticky_digest(name))
    if kept and isinstance(kept.holding, Kept):
        return kept
    # The name is new, or its last attachment had no DEL.
    for held in table.containing(json.dumps(name).encode()):
        if isinstance(held.holding, Lease) and held.holding.owner.terms.sticky == name and _is_dead(held, gone):
            return held
    return None


def _is_dead(held: Stored, gone: Gone) -> bool:
    try:
        box = sandbox(held.body)
        return Rule(None, gone({box}) if box else ()).applies(held.body)
    except Unreadable:
        return False


def _replace_kept(table: Table, name: str, now: int) -> None:
    """Drop the name's older reservation, or let it only cool down: a name keeps its latest addresses only."""
    before = table.find(sticky_digest(name))
    if before is None:
        return
    one = before.holding
    if isinstance(one, Kept) and one.released <= now < one.cool:
        table.put(before, Kept(one.addresses, one.pod, one.released, one.cool, "", one.cool))
    else:
        table.drop([before])
