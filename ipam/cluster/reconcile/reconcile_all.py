"""The rounds of all networks of which this node has blocks (reconcile.py), for whoever has time for them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from base.kernel import budget
from base.protocol.errors import CniError, Unreachable
from ipam.cluster.backends.backend import Shared, opened
from ipam.cluster.reconcile import reconcile, release
from ipam.cluster.reconcile.reconcile import Round
from ipam.cluster.rules.network import directory_in
from ipam.cluster.state import node_blocks
from ipam.cluster.state.node_blocks import NodeBlocks
from ipam.stores import Gone, Store
from ipam.stores.access import open_in


@dataclass(frozen=True)
class Report:
    """What a round found: how many of the node's blocks others took for a dead node's, what an operator should know,
    and why the round could not be done; empty if it could."""

    network: str
    suspected: int = 0
    said: tuple[str, ...] = ()
    problem: str = ""


def directories(data_dirs: Iterable[Path]) -> list[Path]:
    """The networks' directories in which there are blocks of this node; a data directory that is not there has none."""
    return sorted(path.parent for folder in data_dirs for path in folder.glob(f"*/{node_blocks.FILE}"))


def rounds(networks: Iterable[Path], gone: Gone, *, due_only: bool = False, kubeconfig: str = "") -> Iterator[Report]:
    """Do a round for each of these; with ``due_only`` for those only whose last is long ago, or that have little room.

    A network that has set numbers aside for names has a second one, for these.  A store that does not answer is asked
    once.  ``kubeconfig`` is as ``backend.opened`` has it.
    """
    stores, silent = dict[str, Shared](), dict[str, str]()
    for directory, folder, work, is_due in _each(networks):
        said, suspected, problem, kind = list[str](), 0, "", ""
        store = open_in(directory.parent, directory.name, said, gone)
        # Each may wait as long as a request: nobody waits for this.
        budget.begin()
        try:
            mine = node_blocks.read(folder)
            if mine is None or (due_only and not is_due(mine, store)):  # guard: due (due_only and not is_due)
                continue
            kind = mine.store
            if kind not in silent:  # guard: silent = True
                stores[kind] = stores.get(kind) or opened(kind, kubeconfig)
                one = work(folder, store, stores[kind])
                try:
                    one.keep()
                finally:
                    said += one.said
                    suspected = one.suspected
        except CniError as e:
            problem = e.msg
            if isinstance(e, Unreachable):
                silent[kind] = e.msg
        name = str(folder.relative_to(directory.parent))
        yield Report(name, suspected, tuple(said), problem or silent.get(kind, ""))


def _each(networks: Iterable[Path]) -> Iterator[tuple[Path, Path, type[Round], Callable[[NodeBlocks, Store], bool]]]:
    """Of each round the directories of the network and of what it is about, what does it, and what says it is due."""
    for directory in networks:
        yield directory, directory, Round, reconcile.is_due
        aside = Path(directory_in(directory))
        if (aside / node_blocks.FILE).exists():
            yield directory, aside, release.NumberRound, release.is_due
