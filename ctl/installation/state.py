"""Whether this version can read the state that another version has left on the node."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cni.kinds import KINDS
from cni.protocol.errors import IoFailure, RecordUnreadable
from cni.protocol.location import IPAM_DIR, STATE_DIR
from cni.state import durable
from cni.state.record import LOST, Record
from ipam import stores


def state_dirs(root: Path) -> list[Path]:
    """The default state directory below the root, then those that attachments noted (cni/state/places.py).

    Raises IoFailure.
    """
    default = below(root, STATE_DIR)
    notes = default / "elsewhere"
    noted = set[Path]()
    try:
        for name in os.listdir(notes) if notes.is_dir() else ():
            with suppress(FileNotFoundError):  # its attachment has ended meanwhile
                if (notes / name).is_symlink():
                    noted.add(below(root, os.readlink(notes / name)))
    except OSError as e:
        raise IoFailure(f"reading {e.filename}: {e.strerror}; run hpn as root") from e  # guard: notes-unread
    return [default, *sorted(noted)]  # guard: elsewhere (noted)


def data_dirs(root: Path) -> list[Path]:
    """Where networks have their leases.  Raises IoFailure."""
    return [below(root, IPAM_DIR), *(one / "ipam" for one in state_dirs(root))]  # guard: state-ipam (ipam)


def below(root: Path, path: str) -> Path:
    """The absolute path, as the root has it."""
    return root / path.lstrip("/")


def unknown(root: Path) -> Iterator[str]:
    """In words, each file of state that is whole and that this version does not understand.

    Damaged files are not meant: no version reads them, and each puts them aside.  Raises IoFailure.
    """
    for state_dir in state_dirs(root):
        for path in sorted((state_dir / "attachments").glob("*/*.json")):
            if why := _of_record(path):
                yield f"{path} {why}"
    for data_dir in data_dirs(root):
        try:
            names = stores.networks(data_dir)
        except OSError as e:
            raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; run hpn as root") from e
        for name in names:
            if why := stores.unknown(data_dir, name):
                yield why


def _of_record(path: Path) -> str:
    try:
        body = durable.read(path)
    except RecordUnreadable:
        return _of_schema(path)
    if body is None:
        return ""
    try:
        kind = Record.from_json(body).kind
    except (TypeError, KeyError, ValueError) as e:
        return f"is a record of another version ({e})"
    # guard below: kind (KINDS, LOST)
    return "" if kind in (*KINDS, LOST) else f"is of kind {kind!r}, which this version does not have"


def _of_schema(path: Path) -> str:
    try:
        schema = json.loads(durable.contents(path) or b"")["schema"]
    except (RecordUnreadable, IoFailure, ValueError, TypeError, KeyError, RecursionError):
        return ""
    # guard below: schema (schema ==)
    return "" if schema == durable.SCHEMA else f"has schema {schema!r}, and this version reads {durable.SCHEMA}"
