"""The rounds of all networks of which this node has blocks (keeping.py), for whoever has time for them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cni.kernel import budget
from cni.protocol.errors import CniError, Unreachable
from ipam.cluster import handing, held, keeping
from ipam.cluster.held import Held
from ipam.cluster.keeping import Round
from ipam.cluster.named import directory_in
from ipam.cluster.opening import Shared, opened
from ipam.stores import Gone, Store, open_in


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
    return sorted(path.parent for folder in data_dirs for path in folder.glob(f"*/{held.FILE}"))


def rounds(networks: Iterable[Path], gone: Gone, *, due_only: bool = False, kubeconfig: str = "") -> Iterator[Report]:
    """Do a round for each of these; with ``due_only`` for those only whose last is long ago, or that have little room.

    A network that has set numbers aside for names has a second one, for these.  A store that does not answer is asked
    once.  ``kubeconfig`` is as ``opening.opened`` has it.
    """
    stores, silent = dict[str, Shared](), dict[str, str]()
    for directory, folder, work, is_due in _each(networks):
        said, suspected, problem, kind = list[str](), 0, "", ""
        store = open_in(directory.parent, directory.name, said, gone)
        # Each may wait as long as a request: nobody waits for this.
        budget.begin()
        try:
            mine = held.read(folder)
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


def _each(networks: Iterable[Path]) -> Iterator[tuple[Path, Path, type[Round], Callable[[Held, Store], bool]]]:
    """Of each round the directories of the network and of what it is about, what does it, and what says it is due."""
    for directory in networks:
        yield directory, directory, Round, keeping.is_due
        aside = Path(directory_in(directory))
        if (aside / held.FILE).exists():
            yield directory, aside, handing.Handing, handing.is_due
