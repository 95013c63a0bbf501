"""hpn node --dry-run: what hpn node would change on this node, for a person; changes nothing."""

from collections.abc import Iterator
from typing import Final

from node.model import Settings
from node.provision import found
from node.provision.difference import Difference, difference

# The exit status: as diff's, and one for what is refused.
SAME: Final = 0
DIFFERENT: Final = 1
UNREADABLE: Final = 2
REFUSED: Final = 3


def answer(settings: Settings) -> tuple[str, int]:
    """What is printed, and the exit status.  Raises OSError."""
    left = difference(settings.pfs, settings.rdma_exclusive, found.state(settings.pfs))
    status = REFUSED if left.refused else DIFFERENT if left.changes else SAME
    return "".join(f"{line}\n" for line in _lines(left)), status


def _lines(left: Difference) -> Iterator[str]:
    yield from (f"would change: {change}" for change in left.changes)
    yield from (f"refused: {sentence}" for sentence in left.refused)
    yield from (f"{source}: this node has no PF that agrees with its selectors" for source in left.unused)
    if not left.changes and not left.refused:
        yield "nothing to change: the node is as the file asks"
