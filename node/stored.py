"""What the node's plugins have stored: the attachments' records, and where leases are."""

from collections.abc import Iterable
from pathlib import Path

from base.protocol.location import IPAM_DIR
from base.protocol.spec import Config
from base.state import durable, journal, places
from base.state.record import Record


def records() -> list[tuple[Path, Record | None]]:
    """Every record of the node, by its path."""
    return [found for folder in places.state_dirs() for found in journal.files(folder)]


def of_another_boot(records: Iterable[tuple[Path, Record | None]]) -> str:
    """Why this process must judge no attachment or lease by the boot that it sees, in words; empty if it may.

    A boot leaves no record (/run).  So if there are records, and none is of this boot, whoever writes them sees another
    boot id than this process, in whose container something may hide the host's; and all pods live.
    """
    known = [(path, record) for path, record in records if record]
    if not known or any(record.of_this_boot for _, record in known):  # guard: this-boot (of_this_boot)
        return ""
    path, record = known[0]
    return (
        f"{path} is of boot {record.boot}, as are all records of attachments here, and {durable.BOOT_ID} says "
        f"{durable.boot_id()} to hpn node: it would take the leases of pods that live for those of an older boot; "
        "let its container see the node's boot id, or run hpn node on the host"
    )


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
