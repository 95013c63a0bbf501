"""Descriptions of attachments for people, read from the journal without a lock and without changes."""

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import IoFailure
from base.protocol.spec import Json, Key
from base.state import claims, journal, last_error
from base.state.record import Record
from cni import attachment_state, kinds, undo
from cni.attachment_state import State

# The member of an attachment that only the table shows: its device, in words.
WORDS: Final = "words"
# Messages have so many digits of a container id, which are enough to identify it.
ID_DIGITS: Final = 12


@dataclass(frozen=True)
class Found:
    """One file of the journal.  ``record`` is None if the file cannot be read.  ``is_refused`` marks the file of a
    detached attachment, which was kept because the IPAM plugin refused to release."""

    state_dir: Path
    path: Path
    record: Record | None
    is_refused: bool = False

    @property
    def network(self) -> str:
        return self.path.parent.name

    @property
    def key(self) -> Key:
        if self.record:
            return self.record.key
        container_id, _, ifname = self.path.name.rpartition(".json")[0].partition(":")
        return Key(container_id, ifname)

    @property
    def title(self) -> str:
        """The attachment's name in a message for people."""
        return self.key.of(self.record.pod if self.record else "", self.network)

    def state(self) -> State:
        """Return the attachment's state."""
        return states([self])[0]

    def state_if(self, *, is_dead: bool) -> State:
        """Return the attachment's state, given whether its pod is provably dead."""
        if self.is_refused:
            trouble = self.record.trouble if self.record else f"{self.path} cannot be read"
            return State(attachment_state.REFUSED, f"it is detached, and its IPAM would not release: {trouble}")
        if self.record is None:
            return State(attachment_state.UNREADABLE, f"{self.path} cannot be read; {attachment_state.REMEDY}")
        return attachment_state.of(self.state_dir, self.record, is_dead=is_dead)

    def last_error(self) -> Json | None:
        """Return the error of the last command that failed since ADD; None if none failed."""
        error = last_error.read(self.path)
        return {**error, "time": _zulu(str(error["time"]))} if error else None

    def is_called(self, what: str) -> bool:
        """Whether ``what`` names this attachment: by pod, claim, container, interface, device, network, MAC, address,
        or path of the namespace."""
        container_id = self.key.container_id
        if len(what) >= ID_DIGITS and container_id.startswith(what):
            return True
        return what.lower() in self._names()

    def _names(self) -> set[str]:
        key, record = self.key, self.record
        names = {key.container_id, key.ifname, self.network, f"{key}"}
        if record:
            addresses = [str(ip["address"]) for ip in record.result.get("ips", [])]
            link = record.link
            names |= {record.netns, record.pod, record.pod.rpartition("/")[2], *record.rdma_devs, *addresses}
            names |= {address.partition("/")[0] for address in addresses}
            names |= {f"{link.get(name) or ''}" for name in ("device", "netdev", "pf", "pci", "master", "mac")}
            names |= {str(interface.get("mac", "")) for interface in record.result.get("interfaces", [])[:1]}
            claim = _claim(record.claim) if record.claim else {}
            named = str(claim.get("name", ""))
            names |= {str(claim.get("uid", "")), named, named.rpartition("/")[2]}
        return {name.lower() for name in names if name}


def find(state_dir: Path) -> list[Found]:
    """Return every file of the journal: attachments, then detached ones that were not released.  Raises IoFailure."""
    return [*_find(state_dir)]


def _find(state_dir: Path) -> Iterator[Found]:
    try:
        with os.scandir(state_dir / "attachments"):
            pass
    except FileNotFoundError:
        return
    except OSError as e:
        raise _unreadable(f"{state_dir}", e) from e
    for listed, is_refused in ((journal.files, False), (journal.refused, True)):
        try:
            files = sorted(dict(listed(state_dir)).items())
        except OSError as e:
            raise _unreadable(f"{e.filename}", e) from e
        for path, record in files:
            yield Found(state_dir, path, of_our_shape(record), is_refused)


def of_our_shape(record: Record | None) -> Record | None:
    """Return the record; None if it has members that this version would not have written and cannot show.

    This is for people only.  A command undoes as much as it can from such a record.
    """
    try:
        return record if record and _is_of_our_shape(record) else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _is_of_our_shape(record: Record) -> bool:
    """Whether the members have our types.  May raise AttributeError, KeyError, TypeError or ValueError instead."""
    link, software = record.link, record.link.get("software") or {"at_home": 0, "in_pod": 0, "kind": ""}
    texts = [record.network, record.netns, record.kind, record.args, record.pod, record.rxe, record.boot, record.time]
    texts += [record.trouble, software["kind"], *record.rdma_devs]
    texts += [link.get(name) or "" for name in ("device", "netdev", "pf", "pci", "master", "mac", "kind")]
    texts += [one.get(name, "") for one in record.result.get("interfaces", []) for name in ("name", "mac")]
    texts += [gid[name] for gid in record.gids for name in ("device", "type")]
    numbers = [record.refusals, software["at_home"], software["in_pod"]]
    numbers += [link.get(name) or 0 for name in ("index", "born_as")]
    numbers += [gid[name] for gid in record.gids for name in ("port", "index")]
    objects = [link, record.config, record.sysctl, record.result, record.device_info, record.steering, *record.rules]
    addresses = [ip["address"] for ip in record.result.get("ips", [])]
    return (
        all(isinstance(one, str) for one in (*texts, *addresses, *(gid["address"] for gid in record.gids)))
        and all(isinstance(one, int) for one in numbers)
        and all(isinstance(one, dict) for one in objects)
        and all(ip_interface(address) for address in addresses)
        and datetime.fromisoformat(record.time).tzinfo is not None
    )


def _unreadable(path: str, e: OSError) -> IoFailure:
    remedy = "; it is for root" if e.errno in (errno.EACCES, errno.EPERM) else ""
    return IoFailure(f"reading {path}: {e.strerror}{remedy}")


def states(found: Sequence[Found]) -> list[State]:
    """Return the state of each."""
    return [one.state_if(is_dead=is_dead) for one, is_dead in zip(found, are_dead(found), strict=True)]


def are_dead(found: Sequence[Found]) -> list[bool]:
    """Return for each whether its pod is provably dead; False for unreadable records."""
    known = iter(undo.are_dead([one.record for one in found if one.record]))
    return [one.record is not None and next(known) for one in found]


def list_all(state_dir: Path) -> tuple[list[Json], list[Path], list[Json]]:
    """Return the attachments of all networks, the paths of unreadable records, and the detached attachments whose IPAM
    plugin refused to release.  Raises IoFailure."""
    found = find(state_dir)
    dead = {one.path for one, is_dead in zip(found, are_dead(found), strict=True) if is_dead}
    described = [(one, describe(one.record, alive=one.path not in dead)) for one in found if one.record]
    return (
        [with_error(body, one) for one, body in described if not one.is_refused],
        [one.path for one in found if not one.record],
        [{"file": str(one.path), **body} for one, body in described if one.is_refused],
    )


def with_error(described: Json, one: Found) -> Json:
    """Return ``described``, with the attachment's last error if there is one."""
    error = one.last_error()
    return {**described, "lastError": error} if error else described


def describe(record: Record, *, alive: bool) -> Json:
    """Return the journal's description of the attachment, with WORDS.  ``alive`` is true if its pod may live."""
    link, result = record.link, record.result
    interfaces = result.get("interfaces", [])
    described: dict[str, Any] = {
        "pod": record.pod,
        "network": record.network,
        "containerID": record.key.container_id,
        "ifname": record.key.ifname,
        "netns": record.netns,
        "alive": alive,
        "complete": record.complete,
        "since": _zulu(record.time),
        "kind": record.kind,
        "mac": interfaces[0].get("mac", "") if interfaces else link.get("mac", ""),
        "addresses": [ip["address"] for ip in result.get("ips", [])],
        "rdma": {"devices": record.rdma_devs, "gids": record.gids},
    }
    if record.trouble:
        described["trouble"] = record.trouble
    if record.claim:
        described["claim"] = _claim(record.claim)
    if record.kind in kinds.KINDS:
        with suppress(AttributeError, KeyError, TypeError, ValueError, struct.error):  # another version's plan
            words, members = kinds.named(record.kind).describe(link, interfaces)
            described |= {WORDS: words, **members}
    return described


def _claim(named: str) -> Json:
    """The claim's UID; also its name, request and device while it is prepared."""
    body: Json = {"uid": named.partition("/")[0]}
    if found := claims.of_record(named):
        claim, device = found
        body |= {"name": f"{claim.namespace}/{claim.name}", "request": device.request, "device": device.device}
    return body


def _zulu(time: str) -> str:
    """Return a time of the journal with a Z for UTC, as in leases."""
    return time.replace("+00:00", "Z")
