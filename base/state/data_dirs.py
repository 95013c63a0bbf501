"""The directories of leases: the default, those in state directories, and those that attachments' configurations
name."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from base.protocol.location import IPAM_DIR
from base.protocol.spec import Config
from base.state import journal, places
from base.state.record import Record

DEFAULT = IPAM_DIR


def records(state_dirs: Iterable[Path]) -> list[tuple[Path, Record | None]]:
    """Return all records there (journal.files), without those of a directory that cannot be read: its disk failed."""
    found = list[tuple[Path, Record | None]]()
    for folder in state_dirs:
        with suppress(OSError):
            found += journal.files(folder)
    return found


def data_dirs(records: Iterable[tuple[Path, Record | None]]) -> list[Path]:
    """Return them, for the records of all attachments (journal.files)."""
    found = {Path(DEFAULT), *(folder / "ipam" for folder in places.state_dirs())}
    found.update(Path(named) for _, record in records if record and (named := _data_dir(record.config)))
    return sorted(found)


def _data_dir(conf: Config) -> str:
    """Return the directory that a configuration names for its leases; empty without one."""
    ipam = conf.get("ipam")
    named = ipam.get("dataDir") if isinstance(ipam, dict) else None
    return named if isinstance(named, str) and named.startswith("/") else ""
