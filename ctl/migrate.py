"""hpn ipam import and export: from other IPAMs, and back to host-local."""

import argparse
import json
from pathlib import Path
from typing import Any

from cni.protocol.errors import InvalidConfig, IoFailure
from cni.protocol.spec import network_of
from ctl.screen import text
from ipam import migrate, sandboxes, stores
from ipam.inventory import networks
from ipam.stores.holdings import Kept, Lease, Lost


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    """Add the two commands with their options."""
    about = "take over what host-local (a network's directory) or whereabouts (IPPools as JSON or YAML) has given"
    command = commands.add_parser("import", help=about, description=about, parents=[common])
    command.add_argument("--from", dest="source", choices=("host-local", "whereabouts"), required=True)
    command.add_argument("path", type=Path)
    command.add_argument("--network", help="default: of host-local the directory's name")
    command.add_argument("--pods", type=Path, help="whereabouts: a file of this node's pods, namespace/name a line")
    command.add_argument("--ifname", default="", help="of entries that do not name their interface")
    command.add_argument("--dry-run", action="store_true", help="only say what would be taken over")
    about = "write a network's leases as host-local's files"
    command = commands.add_parser("export", help=about, description=about, parents=[common])
    command.add_argument("--to", choices=("host-local",), required=True)
    command.add_argument("network")
    command.add_argument("path", type=Path, help="the network's directory, as /var/lib/cni/networks/NETWORK")
    command.add_argument("--dry-run", action="store_true", help="only say what would be written")


def import_leases(options: argparse.Namespace) -> tuple[str, int]:
    """hpn ipam import.  Raises IoFailure, InvalidConfig, TryAgain, RecordUnreadable."""
    default = options.path.resolve().name if options.source == "host-local" else ""
    name = network_of({"name": options.network or default})
    store = stores.open_in(options.data_dir, name, log := list[str](), sandboxes.gone)
    if options.source == "host-local":
        with migrate.lock_host_local(options.path):
            leases = migrate.from_host_local(options.path, options.ifname)
            collisions = store.adopt(leases, dry_run=options.dry_run)
    else:
        document = _decoded(options.path)
        leases = migrate.from_whereabouts(document, options.path, _pods(options.pods), options.ifname)
        collisions = store.adopt(leases, dry_run=options.dry_run)
    if collisions:
        return text([*collisions, f"{name}: nothing was imported"]), 1
    verb = "would import" if options.dry_run else "imported"
    lines = [f"{verb} {', '.join(map(str, one.ips))} of {one.owner.key} {one.owner.pod}".rstrip() for one in leases]
    return text([*log, *lines, f"{name}: {verb} {len(leases)} leases"]), 0


def export_leases(options: argparse.Namespace) -> tuple[str, int]:
    """hpn ipam export.  Raises IoFailure."""
    (network,) = networks(options.data_dir, sandboxes.gone, [options.network])
    holdings = [one.holding for one in network.listed]
    if lost := [one for one in holdings if isinstance(one, Lost)]:
        ips = ", ".join(str(ip) for one in lost for ip in one.ips)
        raise IoFailure(f"{network.name}: leases of {ips} could not be read, so nobody knows whose they are")
    leases = [one for one in holdings if isinstance(one, Lease)]
    last = [max(ips, key=int) for ips in ([i for o in leases for i in o.ips if i.version == v] for v in (4, 6)) if ips]
    collisions = migrate.to_host_local(options.path, leases, last, dry_run=options.dry_run)
    if collisions:
        return text([*collisions, f"{network.name}: nothing was exported"]), 1
    kept = sum(isinstance(one, Kept) for one in holdings)
    note = f"; {kept} that are kept back after their release are free there" if kept else ""
    verb = "would export" if options.dry_run else "exported"
    return text([f"{network.name}: {verb} {len(leases)} leases{note}"]), 0


def _decoded(file: Path) -> Any:
    """A dump of kubectl's, as JSON or YAML.  Raises IoFailure, InvalidConfig."""
    try:
        data = file.read_bytes()
    except OSError as e:
        raise IoFailure(f"reading {file}: {e.strerror}") from e
    if data.lstrip().startswith((b"{", b"[")):
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as e:
            raise InvalidConfig(f"{file} is not JSON ({e}); make it with: {migrate.DUMP}") from e
    from node.config.document import parse  # noqa: PLC0415  # with a library that nothing else here needs

    try:
        return parse(data, is_yaml=True).value
    except InvalidConfig as e:
        raise InvalidConfig(f"{file} is neither JSON nor YAML ({e.msg}); make it with: {migrate.DUMP}") from e


def _pods(file: Path | None) -> frozenset[str] | None:
    if file is None:
        return None
    try:
        return frozenset(filter(None, map(str.strip, file.read_text().splitlines())))
    except (OSError, ValueError) as e:
        raise InvalidConfig(f"--pods {file}: {e}; a line namespace/name for each pod") from e
