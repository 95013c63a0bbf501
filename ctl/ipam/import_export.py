"""hpn ipam import and export: leases from other IPAM plugins, and back to host-local."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.spec import network_of
from base.state import durable
from ctl.command_line import is_same_file
from ctl.screen import text
from ipam import migrate, sandboxes
from ipam.inventory import networks
from ipam.stores import Store, access
from ipam.stores.holdings import Kept, Lease, Lost

if TYPE_CHECKING:
    from ipam.cluster.rules.network import Network


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    """Add the two commands with their options."""
    about = (
        "import leases from host-local (a network's directory), whereabouts (IPPools as JSON or YAML) or nv-ipam (the "
        "node daemon's store); or with node, this node's own leases into the cluster's pool of a configuration"
    )
    command = commands.add_parser("import", help=about, description=about, parents=[common])
    sources = ("host-local", "node", "nv-ipam", "whereabouts")
    command.add_argument("--from", dest="source", choices=sources, required=True)
    command.add_argument("path", type=Path, nargs="?", help="for whereabouts, --kubeconfig may replace it")
    whom = "whereabouts: read the IPPools from the API server with this credential"
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", help=whom)
    into = "the network's configuration with ipam.cluster: also claim the blocks of the addresses"
    command.add_argument("--cluster", type=Path, dest="into", metavar="CONFIGURATION", help=into)
    command.add_argument("--network", help="default for host-local: the directory's name")
    command.add_argument("--pods", type=Path, help="whereabouts: a file of this node's pods, namespace/name a line")
    pool = "nv-ipam, whereabouts: a pool of the network; default: all"
    command.add_argument("--pool", action="append", default=[], help=pool)
    command.add_argument("--ifname", default="", help="for entries that name no interface")
    command.add_argument("--dry-run", action="store_true", help="only report what would be imported")
    about = "write a network's leases as host-local's files; to node: leave the cluster's shared pool"
    command = commands.add_parser("export", help=about, description=about, parents=[common])
    command.add_argument("--to", choices=("host-local", "node"), required=True)
    command.add_argument("network")
    what = "for host-local: the network's directory, such as /var/lib/cni/networks/NETWORK"
    command.add_argument("path", type=Path, nargs="?", help=what)
    command.add_argument("--dry-run", action="store_true", help="only report what would be written")


def import_leases(options: argparse.Namespace) -> tuple[str, int]:
    """hpn ipam import.  Raises IoFailure, InvalidConfig, TryAgain, RecordUnreadable, BackendRefused, Unreachable."""
    _refuse_unless_one(options)
    conf = options.path if options.source == "node" else options.into
    into: Network | None = None
    if conf:
        from ctl.ipam import shared_pool  # noqa: PLC0415

        document = _decoded(conf, "give a network's configuration with ipam.cluster")
        into = shared_pool.network(document, conf, options.data_dir)
    default = options.path.resolve().name if options.source == "host-local" else ""
    name = network_of({"name": options.network or (into.name if into else default)})
    store = access.open_in(options.data_dir, name, log := list[str](), sandboxes.gone)
    is_ours = options.source == "host-local" and is_same_file(options.path, options.data_dir / name)
    with _source(options, is_ours=is_ours) as (leases, others):
        if is_ours and not options.dry_run:
            durable.make_private(options.path)
        if into:
            output, status = _enter(into, store, leases, others, log, dry_run=options.dry_run)
        elif collisions := store.adopt(leases, dry_run=options.dry_run):
            output, status = text([*collisions, f"{name}: nothing was imported"]), 1
        else:
            output, status = text([*log, *_summary(name, leases, dry_run=options.dry_run)]), 0
        if is_ours and not status and not options.dry_run:
            migrate.set_aside(options.path, leases, options.ifname)
    if options.source == "host-local" and not (is_ours or status or options.dry_run):
        # Without host-local's lock, which a DEL takes inside the lock of this record.
        with access.note_files(options.data_dir, name, options.path, leases):
            access.note_import(options.data_dir, name, options.path)
    return output, status


def _enter(
    into: "Network", store: Store, leases: Sequence[Lease], others: Sequence[Lease], log: list[str], *, dry_run: bool
) -> tuple[str, int]:
    from ctl.ipam import shared_pool  # noqa: PLC0415

    moved = shared_pool.enter(into, store, leases, others, log, dry_run=dry_run)
    if moved.conflicts:
        return text([*moved.conflicts, f"{into.name}: nothing was imported"]), 1
    blocks = shared_pool.blocks_in_words(into, moved, dry_run=dry_run)
    return text([*log, *blocks, *_summary(into.name, leases, dry_run=dry_run)]), 0


def _summary(name: str, leases: Sequence[Lease], *, dry_run: bool) -> list[str]:
    verb = "would import" if dry_run else "imported"
    lines = [f"{verb} {', '.join(map(str, one.ips))} of {one.owner.key} {one.owner.pod}".rstrip() for one in leases]
    unknown = [one for one in leases if not one.owner.sandbox]
    note = (
        f"no process of {len(unknown)} of these containers is visible here: their addresses stay held until a DEL, a "
        "reboot, or hpn ipam release --force; hpn doctor lists them"
    )
    return [*lines, f"{name}: {verb} {len(leases)} leases", *([note] if unknown else [])]


@contextmanager
def _source(options: argparse.Namespace, *, is_ours: bool) -> Iterator[tuple[list[Lease], list[Lease]]]:
    """The leases to import, and those of other nodes in the same pool."""
    match options.source:
        # The store takes the same lock itself.
        case "host-local" if is_ours:
            yield migrate.from_host_local(options.path, options.ifname), []
        case "host-local":
            with migrate.lock_host_local(options.path):
                yield migrate.from_host_local(options.path, options.ifname), []
        case "node":
            yield [], []
        case "nv-ipam":
            document = _decoded(options.path, f"give {migrate.NV_IPAM}")
            yield migrate.from_nv_ipam(document, options.path, options.pool), []
        case _:
            yield _of_whereabouts(options)


def _refuse_unless_one(options: argparse.Namespace) -> None:
    """Raise InvalidConfig if the source is missing, or is given twice."""
    if options.kubeconfig and options.source != "whereabouts":
        raise InvalidConfig(f"--kubeconfig does not apply to --from {options.source}; give a path instead")
    if bool(options.path) == bool(options.kubeconfig):
        what = "either a path or --kubeconfig" if options.source == "whereabouts" else "a path"
        raise InvalidConfig(f"import --from {options.source}: give {what}")


def _of_whereabouts(options: argparse.Namespace) -> tuple[list[Lease], list[Lease]]:
    file, pods = options.kubeconfig or options.path, _pods(options.pods)
    if options.kubeconfig:
        document = migrate.whereabouts_pools(file)
    else:
        document = _decoded(file, f"make it with: {migrate.DUMP}")
    own = migrate.from_whereabouts(document, file, pods, options.ifname, options.pool)
    if not options.into:
        return own, []
    mine = {one.owner.key for one in own}
    everybodys = migrate.from_whereabouts(document, file, None, options.ifname, options.pool)
    return own, [one for one in everybodys if one.owner.key not in mine]


def export_leases(options: argparse.Namespace) -> tuple[str, int]:
    """hpn ipam export.  Raises IoFailure; InvalidConfig without a path, and RecordUnreadable, TryAgain to node."""
    if options.to == "node":
        from ctl.ipam import shared_pool  # noqa: PLC0415

        return text(shared_pool.leave(options.data_dir, options.network, dry_run=options.dry_run)), 0
    if options.path is None:
        raise InvalidConfig("export --to host-local: a path is missing; give host-local's directory of the network")
    (network,) = networks(options.data_dir, sandboxes.gone, [options.network])
    holdings = [one.holding for one in network.listed]
    if lost := [one for one in holdings if isinstance(one, Lost)]:
        ips = ", ".join(str(ip) for one in lost for ip in one.ips)
        raise IoFailure(
            f"{network.name}: leases of {ips} could not be read, so their owners are unknown; nothing was exported"
        )
    leases = [one for one in holdings if isinstance(one, Lease)]
    log = list[str]()
    last = [max(ips, key=int) for ips in ([i for o in leases for i in o.ips if i.version == v] for v in (4, 6)) if ips]
    # First a dry run, so that the record of the files is on disk before them.
    collisions = migrate.to_host_local(options.path, leases, last, dry_run=True)
    if not collisions and not options.dry_run:
        with access.note_files(options.data_dir, options.network, options.path, leases):
            collisions = migrate.to_host_local(options.path, leases, last, dry_run=False)
        # Pods may have ended since their leases were read.
        access.open_in(options.data_dir, options.network, log, sandboxes.gone).collect(None)
    if collisions:
        return text([*collisions, *log, f"{network.name}: nothing was exported"]), 1
    kept = sum(isinstance(one, Kept) for one in holdings)
    note = f"; {kept} addresses kept back after their release are free there" if kept else ""
    verb = "would export" if options.dry_run else "exported"
    return text([*log, f"{network.name}: {verb} {len(leases)} leases{note}"]), 0


def _decoded(file: Path, remedy: str) -> Any:
    """A document in JSON or YAML.  Raises IoFailure, InvalidConfig."""
    try:
        data = file.read_bytes()
    except OSError as e:
        raise IoFailure(f"reading {file}: {e.strerror}") from e
    if data.lstrip().startswith((b"{", b"[")):
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise InvalidConfig(f"{file} is not JSON ({e}); {remedy}") from e
    from base.yaml_document import parse  # noqa: PLC0415  # the only user of its library here

    try:
        return parse(data, is_yaml=True).value
    except InvalidConfig as e:
        raise InvalidConfig(f"{file} is neither JSON nor YAML ({e.msg}); {remedy}") from e


def _pods(file: Path | None) -> frozenset[str] | None:
    if file is None:
        return None
    try:
        return frozenset(filter(None, map(str.strip, file.read_text().splitlines())))
    except (OSError, ValueError) as e:
        raise InvalidConfig(f"--pods {file}: {e}; a line namespace/name for each pod") from e
