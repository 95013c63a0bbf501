"""Which announced neighbor counts as a PF's; pure."""

from dataclasses import dataclass, replace

from hardware.neighbors import Neighbor, SwitchPort


@dataclass(frozen=True)
class Heard:
    """The neighbor of a PF that counts, and the identity that waits for its second announcement."""

    neighbor: Neighbor | None = None
    candidate: SwitchPort | None = None


def after(before: Heard, heard: Neighbor) -> Heard:
    """The choice after one more announcement.

    Another port replaces a current one when it announces itself twice while that one is silent.  So two ports that
    take turns, as behind a hub, do not replace each other.  A withdrawal (TTL 0) counts for its own port only.
    """
    known = before.neighbor
    if known and heard.identity == known.identity:
        return Heard(heard if heard.ttl else replace(known, ttl=0, heard=heard.heard))
    if not heard.ttl:
        return before
    if not known or not known.is_current(heard.heard) or before.candidate == heard.identity:
        return Heard(heard)
    return replace(before, candidate=heard.identity)
