"""The state on a node: files that this version does not understand, and pods that still need the program."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from base.protocol.errors import IoFailure, RecordUnreadable
from base.protocol.location import IPAM_DIR, STATE_DIR
from base.protocol.spec import Key
from base.state import claims, durable
from base.state.claims import Claim
from base.state.record import LOST, Record
from base.table import abridged
from cni import attachments
from cni.kinds import KINDS
from ipam import sandboxes
from ipam.cluster import node_blocks
from ipam.inventory import networks
from ipam.inventory import state as state_of
from ipam.stores import access
from ipam.stores.holdings import Contents, Lease, Listed, Lost

_NAMED: Final = 3  # networks in a line


def below(root: Path, path: str) -> Path:
    """The path of the node's absolute path below the root."""
    return root / path.lstrip("/")


def data_dirs(root: Path) -> list[Path]:
    """The directories of leases: the default one, and an earlier version's beside the journal."""
    return [below(root, IPAM_DIR), below(root, STATE_DIR) / "ipam"]


def unknown(root: Path) -> Iterator[str]:
    """A phrase for each intact state file that this version does not understand.  Raises IoFailure.

    Damaged files are not among them, because every version sets those aside.
    """
    for path in sorted((below(root, STATE_DIR) / "attachments").glob("*/*.json")):
        if why := _of_record(path):
            yield f"{path} {why}"
    for data_dir in data_dirs(root):
        try:
            names = access.networks(data_dir)
        except OSError as e:
            raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; run hpn as root") from e
        yield from filter(None, (access.unknown(data_dir, name) for name in names))


def _of_record(path: Path) -> str:
    try:
        body = durable.read(path)
        kind = Record.from_json(body).kind if body is not None else LOST
    except RecordUnreadable:
        return _of_schema(path)
    except (TypeError, KeyError, ValueError) as e:
        return f"is a record of another version ({e})"
    return "" if kind in (*KINDS, LOST) else f"is of kind {kind!r}, which this version does not have"


def _of_schema(path: Path) -> str:
    try:
        schema = json.loads(durable.contents(path) or b"")["schema"]
    except (RecordUnreadable, IoFailure, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return "" if schema == durable.SCHEMA else f"has schema {schema!r}, and this version reads {durable.SCHEMA}"


def holders(root: Path) -> list[str]:
    """A line for each attachment that may be alive, each prepared claim, and each address that is held.  Raises
    IoFailure, OSError.

    Unreadable records and leases have a line too, because a pod may depend on them.
    """
    attached, unreadable, _ = attachments.list_all(below(root, STATE_DIR))
    living = {Key(one["containerID"], one["ifname"]): one for one in attached if one["alive"]}
    lines = [f"{key.of(one['pod'], one['network'])}" for key, one in living.items()]
    lines += [f"{path}, which cannot be read" for path in unreadable]
    lines += _claims(root)
    for data_dir in filter(Path.is_dir, data_dirs(root)):
        for network in networks(data_dir, sandboxes.gone):
            for one in network.listed:
                is_named = isinstance(one.holding, Lease) and one.holding.owner.key in living
                is_held = state_of(one) in ("held", "doubtful")
                is_set_aside = isinstance(one.holding, Lost) and not one.is_over
                if not is_named and (is_held or is_set_aside):
                    lines.append(_of_lease(network.name, one))
            lines += _unreadable_leases(network)
    return lines


def _claims(root: Path) -> Iterator[str]:
    """The claims of this boot: their pods stay Terminating without hpn node."""
    for path in sorted(below(root, claims.FOLDER).glob("*.json")):
        try:
            claim = Claim.from_json(durable.read(path) or {})
        except (RecordUnreadable, TypeError, KeyError):
            yield f"{path}, which cannot be read"
            continue
        if claim.boot == durable.boot_id():
            yield f"{claim.title}, which is prepared"


def _of_lease(network: str, one: Listed) -> str:
    addresses = ", ".join(map(str, one.holding.ips))
    if isinstance(one.holding, Lease):
        return f"{addresses} of {one.holding.owner.key.of(one.holding.owner.pod, network)}"
    why = "whose lease could not be read" if isinstance(one.holding, Lost) else "which a deleted pod may still use"
    return f"{addresses} of network {network}, {why}"


def _unreadable_leases(network: Contents) -> Iterator[str]:
    if network.problem:
        yield f"{network.problem}; its contents are unknown"
    if network.unreadable:
        yield f"{network.place}/leases, line {', '.join(map(str, network.unreadable))}, which cannot be read"


def claimed(root: Path) -> Iterator[str]:
    """A line for each name of this node under which the cluster's backends still list blocks.  Raises IoFailure."""
    by_node = defaultdict[str, list[str]](list)
    for file in sorted(file for data_dir in data_dirs(root) for file in data_dir.glob(f"*/{node_blocks.FILE}")):
        try:
            mine = node_blocks.read(file.parent)
        except RecordUnreadable:
            yield f"{file} cannot be read; check this node's blocks on another node: hpn ipam show --cluster"
            continue
        if mine and mine.blocks:
            by_node[mine.node].append(mine.network)
    for node, networks_of in by_node.items():
        yield (
            f"the cluster's backend still lists blocks of {abridged(networks_of, _NAMED)} for node {node}; to free "
            f"them at once, run on another node: hpn ipam release-node {node} --force"
        )
