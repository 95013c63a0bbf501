"""The directories of leases: the default, the one in the state directory, and those that attachments' configurations
name."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from base.protocol.location import ipam_dir, state_dir
from base.protocol.spec import Config
from base.state import journal
from base.state.record import Record


def records() -> list[tuple[Path, Record | None]]:
    """Return all records (journal.files), without those that cannot be read because the disk failed."""
    found = list[tuple[Path, Record | None]]()
    with suppress(OSError):
        found += journal.files(state_dir())
    return found


def data_dirs(records: Iterable[tuple[Path, Record | None]]) -> list[Path]:
    """Return them, for the records of all attachments (journal.files)."""
    found = {Path(ipam_dir()), state_dir() / "ipam"}
    found.update(Path(named) for _, record in records if record and (named := _data_dir(record.config)))
    return sorted(found)


def _data_dir(conf: Config) -> str:
    """Return the directory that a configuration names for its leases; empty without one."""
    ipam = conf.get("ipam")
    named = ipam.get("dataDir") if isinstance(ipam, dict) else None
    return named if isinstance(named, str) and named.startswith("/") else ""
