"""A network that the nodes of a cluster share, as this node's configuration describes it.  Pure."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from base.protocol.errors import InvalidConfig, PoolExhausted, TryAgain
from base.protocol.result import Address
from ipam.cluster.node_blocks import FILE, NodeBlocks
from ipam.cluster.rules import block_math
from ipam.pool import Cluster, Pool

FOLDER: Final = "sticky"


@dataclass(frozen=True)
class Network:
    """A shared network: its name, its directory on this node, its ipam.cluster keys, and its pool for the whole
    cluster."""

    name: str
    directory: str
    cluster: Cluster
    pool: Pool

    @property
    def subnets(self) -> tuple[str, ...]:
        return block_math.subnets(self.pool.sets)

    def refuse_another(self, mine: NodeBlocks) -> None:
        """Raise InvalidConfig if this node's blocks are from another backend, or of another size than configured."""
        file, blocks = f"{self.directory}/{FILE}", ", ".join(str(b.index) for b in mine.blocks) or "none"
        if mine.backend != self.cluster.backend:
            raise InvalidConfig(
                f"ipam.cluster.backend {self.cluster.backend!r}: this node has blocks of the network from "
                f"{mine.backend!r} ({blocks}, {file}); set backend to that, or delete the network's pods on this node "
                f"and then the file"
            )
        refuse_another(self.name, self.cluster, mine.size, mine.sticky, file)


@dataclass(frozen=True)
class Numbers(Network):
    """The host numbers that the network ``parent`` reserves for names, for an attachment of the name ``owner``.

    The number is kept for ``keep`` seconds after its last use.  In the backend these numbers form a network of their
    own, NETWORK/sticky, with blocks of one number; no real network can have that name.  So the rules of blocks apply to
    them: one owner, suspicion, rounds, and a file beside the leases in a separate directory.  A number's document and
    this node's file record its name.
    """

    parent: Network = field(kw_only=True)
    owner: str = field(kw_only=True)
    keep: int = field(kw_only=True)

    @classmethod
    def of(cls, parent: Network, owner: str, keep: int) -> "Numbers":
        aside = parent.pool.aside or Pool(())
        pool = replace(parent.pool, sets=aside.sets, rails=aside.rails)
        about = f"{parent.name}/{FOLDER}", directory_in(parent.directory), Cluster(parent.cluster.backend, 1)
        return cls(*about, pool, parent=parent, owner=owner, keep=keep)


class Needed(TryAgain):
    """Ends a choice without an address: only the backend knows which blocks this node may use.

    ``block``: claim this block, which contains the requested ``address``.
    """

    def __init__(self, why: str, block: int | None = None, address: Address | None = None) -> None:
        super().__init__(why)
        self.block, self.address = block, address


# Why this node's blocks cannot serve an attachment.  PoolExhausted: claim a block with addresses for its range sets.
Need = PoolExhausted | Needed


def directory_in(directory: Path | str) -> str:
    """Return the directory of this node's reserved numbers, within the network's directory."""
    return f"{directory}/{FOLDER}"


def refuse_another(network: str, cluster: Cluster, size: int, sticky: str, where: str) -> None:
    """Raise InvalidConfig if the network's blocks have another size or other reserved numbers than configured.

    ``where`` names the place that records them, for the message.
    """
    if cluster.size != size:
        raise InvalidConfig(
            f"ipam.cluster.blockSize {cluster.size}: the blocks of network {network} have {size} host numbers "
            f"({where}), and that never changes; set blockSize {size}, or give the network another name"
        )
    if cluster.sticky != sticky:
        remedy = f"set sticky {sticky}" if sticky else "remove sticky"
        raise InvalidConfig(
            f"ipam.cluster.sticky {cluster.sticky or 'is not set'}: network {network} reserves "
            f"{sticky or 'no numbers'} ({where}), and that never changes; {remedy}, or give the network another "
            "name"
        )
