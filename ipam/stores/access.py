"""Open a store (ipam/stores/files/store.py), by a configuration or by its directory.

A function here imports a store only when it opens one, because VERSION needs none.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from base.protocol import spec
from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.location import ipam_dir, path_of
from base.protocol.spec import Config, Kept
from ipam.stores import Gone, Store, none_gone

if TYPE_CHECKING:
    from ipam.stores.holdings import Lease

# A link beside the leases to host-local's directory from which they were imported.
IMPORTED_FROM: Final = "imported-from"


def open_store(conf: Config, log: list[str], gone: Gone, kept: Kept | None = None) -> Store:
    """The store of a configuration's network.  It appends messages for an operator to ``log``; ``gone`` finds dead
    namespaces.  With ``kept``, its calls are one transaction with those before and after them.

    Raises InvalidConfig.
    """
    return open_in(_data_dir(conf), spec.network_of(conf), log, gone, kept)


def directory(conf: Config) -> str:
    """The directory of this node's state of a configuration's network.  Raises InvalidConfig."""
    return f"{_data_dir(conf)}/{spec.network_of(conf)}"


def _data_dir(conf: Config) -> str:
    """ipam.dataDir, else /var/lib/cni/hpn/ipam.  Raises InvalidConfig."""
    ipam: Any = conf.get("ipam")
    folder = ipam.get("dataDir") if isinstance(ipam, dict) else None
    if folder:
        return _absolute("ipam.dataDir", folder)
    if state_dir := conf.get("stateDir"):  # in a record of an earlier version
        return f"{_absolute('stateDir', state_dir)}/ipam"
    return ipam_dir()


def open_in(
    data_dir: Path | str, network: str, log: list[str], gone: Gone = none_gone, kept: Kept | None = None
) -> Store:
    """The store of a network in a data directory, without a configuration."""
    from ipam.stores.files.store import FileStore  # noqa: PLC0415

    return FileStore(path_of(f"{data_dir}/{network}"), log, gone, kept=kept)


def note_import(data_dir: Path, network: str, source: Path) -> None:
    """Record host-local's directory from which leases were imported: its addresses stay in use.  Raises IoFailure."""
    link = data_dir / network / IMPORTED_FROM
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(source.resolve())
    except OSError as e:
        raise IoFailure(f"{link}: {e.strerror}; repeat the import") from e


def note_files(data_dir: Path, network: str, to: Path, leases: "Sequence[Lease]") -> AbstractContextManager[None]:
    """Record host-local's files of these leases, which the caller may write meanwhile; each is removed when its lease
    ends.

    The caller collects dead leases afterwards: a lease may have ended before the record.  Raises IoFailure, TryAgain,
    RecordUnreadable.
    """
    from ipam.stores.files import exported  # noqa: PLC0415

    keys = {ip: one.owner.key for one in leases for ip in one.ips}
    return exported.recorded(data_dir / network, to.resolve(), keys)


def networks(data_dir: Path) -> list[str]:
    """The names of the networks with a store in a data directory.  Raises OSError."""
    from ipam.stores.files.administration import networks as listed  # noqa: PLC0415

    return listed(data_dir)


def unknown(data_dir: Path, network: str) -> str:
    """Describe data of a network that only another version of hpn understands; empty if there is none.

    Damaged data does not count.
    """
    from ipam.stores.files.administration import unknown as unknown_lines  # noqa: PLC0415

    return unknown_lines(data_dir / network)


def preload() -> None:
    """Import every store, so that no request to a warm process does."""
    from ipam.stores.files import store  # noqa: F401, PLC0415


def _absolute(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise InvalidConfig(f"{key} {value!r} is not an absolute path; plugins run in no particular directory")
    return value
