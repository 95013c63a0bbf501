"""A network whose pool the nodes of a cluster share, as this node's configuration describes it.  Pure."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError, InvalidConfig, PoolExhausted, TryAgain
from base.protocol.result import Address
from ipam.cluster.rules import block_math
from ipam.cluster.state.node_blocks import FILE, NodeBlocks
from ipam.pool import Cluster, Pool

FOLDER: Final = "sticky"


@dataclass(frozen=True)
class Network:
    """The network's name, its directory on this node, what its configuration says of the store, and all that it has to
    give in the cluster."""

    name: str
    directory: str
    cluster: Cluster
    pool: Pool

    @property
    def subnets(self) -> tuple[str, ...]:
        return block_math.subnets(self.pool.sets)

    def refuse_another(self, mine: NodeBlocks) -> None:
        """Raises InvalidConfig if this node's blocks are another store's, or of another size than is configured."""
        file, blocks = f"{self.directory}/{FILE}", ", ".join(str(b.index) for b in mine.blocks) or "none"
        if mine.store != self.cluster.store:  # guard: another-store
            raise InvalidConfig(
                f"ipam.cluster.store {self.cluster.store!r}: this node has blocks of the network from {mine.store!r} "
                f"({blocks}, {file}); set that, or delete the network's pods on this node and then the file"
            )
        refuse_another(self.name, self.cluster, mine.size, mine.sticky, file)


@dataclass(frozen=True)
class Numbers(Network):
    """The host numbers that the network ``parent`` has set aside for names, for an attachment of the name ``owner``,
    for which its number is kept for ``keep`` seconds.

    To the store they are a network of their own, NETWORK/sticky (no network can be called that), with blocks of one
    number.  So all that is true of blocks is true of them: one owner each, suspicion, the round, the file beside the
    leases, in a directory of its own.  Whose a number is stands in its document, and in that file.
    """

    parent: Network = field(kw_only=True)
    owner: str = field(kw_only=True)
    keep: int = field(kw_only=True)

    @classmethod
    def of(cls, parent: Network, owner: str, keep: int) -> "Numbers":
        aside = parent.pool.aside or Pool(())
        pool = replace(parent.pool, sets=aside.sets, rails=aside.rails)
        about = f"{parent.name}/{FOLDER}", directory_in(parent.directory), Cluster(parent.cluster.store, 1)
        return cls(*about, pool, parent=parent, owner=owner, keep=keep)


@dataclass(frozen=True)
class Need:
    """In words, why an attachment cannot have addresses of what this node has; and what would help: a block that has
    addresses of these ``sets``, or the one ``block``, by its index, that has the requested ``address``.  Where neither
    is given, the store has to be asked at all."""

    why: str
    sets: tuple[str, ...] = ()
    block: int | None = None
    address: Address | None = None

    def error(self) -> CniError:
        """For the runtime, where it was not to be had."""
        return PoolExhausted(self.why, *self.sets) if self.sets else TryAgain(self.why)


def directory_in(directory: Path | str) -> str:
    """The directory of this node's reserved numbers, in the network's directory."""
    return f"{directory}/{FOLDER}"


def refuse_another(network: str, cluster: Cluster, size: int, sticky: str, where: str) -> None:
    """Raises InvalidConfig if the network's blocks have another size than is configured, or other numbers are in none;
    ``where`` that is written."""
    if cluster.size != size:  # guard: another-size
        raise InvalidConfig(
            f"ipam.cluster.blockSize {cluster.size}: the blocks of network {network} have {size} host numbers "
            f"({where}), and that never changes; set blockSize {size}, or give the network another name"
        )
    if cluster.sticky != sticky:  # guard: other-numbers
        remedy = f"set sticky {sticky}" if sticky else "remove sticky"
        raise InvalidConfig(
            f"ipam.cluster.sticky {cluster.sticky or 'is not there'}: network {network} has set "
            f"{sticky or 'no numbers'} aside ({where}), and that never changes; {remedy}, or give the network another "
            "name"
        )
