"""What is attached, for people: read from the journal, without a lock, and without changing anything."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from cni import kinds, undo
from cni.protocol.errors import IoFailure
from cni.protocol.spec import Json
from cni.state import journal
from cni.state.record import Record

# The member of an attachment that is for the table only: what it is made of, in words.
WORDS: Final = "words"


def list_all(state_dirs: Iterable[Path]) -> tuple[list[Json], list[Path], list[Json]]:
    """Every attachment of every network, the records that cannot be read, and those whose IPAM would not release.
    Raises IoFailure."""
    attached, unreadable, refused = list[Json](), list[Path](), list[Json]()
    for state_dir in state_dirs:
        found = _list(state_dir)
        attached += found[0]
        unreadable += found[1]
        refused += found[2]
    return attached, unreadable, refused


def _list(state_dir: Path) -> tuple[list[Json], list[Path], list[Json]]:
    """The same of one directory.  Raises IoFailure."""
    try:
        with os.scandir(state_dir / "attachments"):
            pass
    except FileNotFoundError:
        return [], [], []
    except OSError as e:
        raise IoFailure(f"reading {state_dir}: {e.strerror}; it is for root") from e
    files, refused = dict(sorted(journal.files(state_dir))), dict(sorted(journal.refused(state_dir)))
    return (
        [_describe(record) for record in files.values() if record],
        [path for path, record in (files | refused).items() if not record],
        [{"file": str(path), **_describe(record)} for path, record in refused.items() if record],
    )


def _describe(record: Record) -> Json:
    link, result = record.link, record.result
    interfaces = result.get("interfaces", [])
    described: dict[str, Any] = {
        "pod": record.pod,
        "network": record.network,
        "containerID": record.key.container_id,
        "ifname": record.key.ifname,
        "netns": record.netns,
        "alive": not undo.is_dead(record),
        "complete": record.complete,
        "since": record.time,
        "kind": record.kind,
        "mac": interfaces[0].get("mac", "") if interfaces else link.get("mac", ""),
        "addresses": [ip["address"] for ip in result.get("ips", [])],
        "rdma": {"devices": record.rdma_devs, "gids": record.gids},
    }
    if record.trouble:
        described["trouble"] = record.trouble
    if record.kind in kinds.KINDS:
        words, members = kinds.named(record.kind).describe(link, interfaces)
        described |= {WORDS: words, **members}
    return described
