"""What the node's plugins have stored: the attachments' records, and where leases are."""

from collections.abc import Iterable
from pathlib import Path

from cni.protocol.location import IPAM_DIR
from cni.protocol.spec import Config
from cni.state import journal, places
from cni.state.record import Record


def records() -> list[tuple[Path, Record | None]]:
    """Every record of the node, by its path."""
    return [found for folder in places.state_dirs() for found in journal.files(folder)]


def data_dirs(records: Iterable[tuple[Path, Record | None]]) -> list[Path]:
    """Where leases are: the default, that of each state directory, and those that attachments name."""
    found = {Path(IPAM_DIR), *(folder / "ipam" for folder in places.state_dirs())}
    found.update(Path(named) for _, record in records if record and (named := _named(record.config)))
    return sorted(found)


def _named(conf: Config) -> str:
    """The directory that a configuration names for its leases; empty if it names none."""
    ipam = conf.get("ipam")
    named = ipam.get("dataDir") if isinstance(ipam, dict) else None
    return named if isinstance(named, str) and named.startswith("/") else ""
