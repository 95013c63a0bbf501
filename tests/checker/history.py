"""The history of a run, and its violations.  Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


def name_in(cid: str) -> str:
    """The name of a container's pod: in a StatefulSet, the part before the dot ("web-0.c12")."""
    return cid.partition(".")[0]


@dataclass
class History:
    """The addresses of each attachment, as the callers know them.

    A pod of a StatefulSet keeps one address wherever it runs.

    The answer to ADD makes an attachment the owner of an address.  The ownership ends with a request to release it, or
    with the death of the node and all its pods.  An attachment without an answer owns no address that anyone knows.
    """

    wrong: list[str] = field(default_factory=list)
    given: int = 0
    _owners: dict[str, str] = field(default_factory=dict)
    _of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _of_name: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def gave(self, owner: str, addresses: Iterable[str]) -> None:
        """Record the answer of an ADD."""
        addresses = tuple(addresses)
        before = self._of.get(owner, addresses)
        if before != addresses:
            self.wrong.append(f"{owner} has {' '.join(before)}, and is told of {' '.join(addresses)}")
        for address in addresses:
            if (other := self._owners.setdefault(address, owner)) != owner:
                self.wrong.append(f"{address} is {other}'s, and is given to {owner}")
        cid = owner.partition(" ")[2]
        if "." in cid and (had := self._of_name.setdefault(name_in(cid), addresses)) != addresses:
            self.wrong.append(f"{owner} is given {' '.join(addresses)}, and its name had {' '.join(had)}")
        self._of[owner] = addresses
        self.given += 1

    def takes_back(self, owner: str) -> None:
        """Record the start of a DEL."""
        for address in self._of.pop(owner, ()):
            if self._owners.get(address) == owner:
                del self._owners[address]

    def died(self, node: str) -> None:
        """Record the death of the node and its pods."""
        for owner in [owner for owner in self._of if owner.partition(" ")[0] == node]:
            self.takes_back(owner)

    def held(self) -> Mapping[str, str]:
        """The owner of each address."""
        return dict(self._owners)


def lost_blocks(documents: Mapping[int, str], held: Mapping[str, Iterable[int]]) -> list[str]:
    """Disagreements between store and nodes once all is quiet, from the node that each block's document names and the
    blocks that each node owns."""
    has = {index: node for node, indexes in held.items() for index in indexes}
    wrong = [f"block {index} is {node}'s, which does not know it" for index, node in documents.items()
             if index not in has]  # fmt: skip
    wrong += [f"block {index} is not in the store, and {node} has it" for index, node in has.items()
              if index not in documents]  # fmt: skip
    both = documents.keys() & has.keys()
    return wrong + [f"block {i} is {documents[i]}'s, and {has[i]} has it" for i in both if documents[i] != has[i]]
