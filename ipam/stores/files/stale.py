"""Which leases may go: those that the runtime does not list or, without a list, those that are provably dead; and
addresses that were kept back for long enough."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from base.protocol.spec import Json, Key
from base.state import durable
from ipam.stores import Gone, Sandbox
from ipam.stores.files.codec import Unreadable, decode, digest, from_line, outline, sandbox
from ipam.stores.files.lines import Lines, reading
from ipam.stores.holdings import Kept


@dataclass(frozen=True)
class Rule:
    """``spared`` are the digests of the runtime's list, None without one.  ``dead`` are the namespaces that are gone.

    With ``probing`` nobody gets an address that somebody answers for, so addresses go too that may still be in use.
    """

    spared: frozenset[bytes] | None
    dead: Collection[Sandbox] = frozenset()
    now: int = field(default_factory=lambda: int(time.time()))
    probing: bool = False

    @classmethod
    def of(cls, valid: frozenset[Key] | None, *, probing: bool = False) -> "Rule":
        return cls(None if valid is None else frozenset(map(digest, valid)), probing=probing)

    def sparing(self, keys: Collection[Key]) -> "Rule":
        """The same rule; where a list decides, it spares the leases of these keys too."""
        if self.spared is None or not keys:
            return self
        return replace(self, spared=self.spared | frozenset(map(digest, keys)))  # guard: attached (replace)

    def applies(self, body: Json) -> bool:
        """Raises Unreadable."""
        if "released" in body:
            kept = decode(body)
            return isinstance(kept, Kept) and (
                # guard below: kept-back, probing (probing)
                kept.is_over(self.now, durable.boot_id()) or bool(kept.boot and self.probing)
            )
        if self.spared is not None:
            return outline(body)[0] not in self.spared  # guard: listed = True
        return body.get("boot") != durable.boot_id() or sandbox(body) in self.dead  # guard: dead-only = True


def find_stale(path: str, rule: Rule, gone: Gone) -> tuple[Rule, dict[int, int]]:
    """The rule with the namespaces that are gone by now, and the lines that it applies to or that are unreadable.

    Each line comes with a hash: it was read without the lock, so the caller compares it again under the lock.
    """
    stale, doubtful = dict[int, int](), dict[int, tuple[int, Sandbox]]()
    file = Lines(path, reading(path))
    try:
        for line, data in file.each(file.count()):
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
    finally:
        file.close()
    # Asked after the leases were read, so that nothing is said of a namespace that was made since.
    # guard below: gone-is-asked-after (gone)
    dead = frozenset(gone({box for _, box in doubtful.values()})) if doubtful else frozenset[Sandbox]()
    return replace(rule, dead=dead), stale | {line: said for line, (said, box) in doubtful.items() if box in dead}
