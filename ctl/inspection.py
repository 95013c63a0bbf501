"""hpn list and hpn inspect: the attachments, their place, their GIDs, and kubelet's allocations.

A module inspect.py beside a __main__.py that runs as a file would hide the standard library's.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.protocol.location import KUBELET
from base.protocol.spec import Json
from base.state import claims
from base.state.record import LOST
from cni import attachment_state, interface_location
from cni.attachments import WORDS, Found, are_dead, describe, list_all, states, with_error
from ctl import command_line, selection
from ctl.screen import Table, moment, text
from ctl.selection import who

if TYPE_CHECKING:
    from base.kubelet.client import Held

_LISTED_COLUMNS = ("POD", "IFNAME", "NETWORK", "CLAIM", "DEVICE", "ADDRESS", "RDMA", "STATE")
_MEMBERS = ("kind", "device", "netdev", "master", "addresses", "claim", WORDS)


def answer_list(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "List the attachments and their states: attached, dead, half-attached ... (docs/user/commands.md)."
    options = selection.parser("list", about, "hpn list --json", what="").parse_args(words)
    found = selection.selected(options, [])
    listed = [_listed(one, *stands) for one, stands in zip(found, states(found), strict=True)]
    if options.json:
        return selection.document(options, attachments=selection.without_words(listed)), 0
    if not listed:
        return text([selection.nothing(options, [])]), 0
    troubles = [line for one, a in zip(found, listed, strict=True) for line in _troubles(one, a)]
    return text([_used([_LISTED_COLUMNS, *map(_listed_row, listed)], "CLAIM"), *troubles]), 0


def _listed(one: Found, word: str, why: str) -> Json:
    nothing: Json = {"addresses": [], "rdma": {"devices": []}}
    described = describe(one.record, alive=word != attachment_state.DEAD) if one.record else nothing
    listed = selection.identified(one)
    listed |= {key: described[key] for key in _MEMBERS if key in described}
    return listed | {"rdma": described["rdma"]["devices"], "state": word, "why": why}


def _troubles(one: Found, a: Json) -> Iterator[str]:
    """Lines below the table: why an attachment is not in order, and its last failed command."""
    if a["state"] != attachment_state.ATTACHED:
        yield f"{one.title}: {a['why']}"
    if error := one.last_error():
        yield f"{one.title}: {selection.failure(error)}"


def _listed_row(a: Json) -> tuple[str, ...]:
    claim = a.get("claim", {})
    cells = (claim.get("name", claim.get("uid")), a.get(WORDS), ", ".join(a["addresses"]), ", ".join(a["rdma"]))
    return who(a), a["ifname"], a["network"], *(cell or "-" for cell in cells), a["state"]


def _used(rows: Sequence[tuple[str, ...]], column: str) -> Table:
    """The table of these rows, the first of them the header, without the column if that is empty."""
    at = rows[0].index(column)
    if not any(row[at] not in ("", "-") for row in rows[1:]):
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return Table(rows[0], rows[1:])


_COLUMNS: Final = (
    "POD", "NETWORK", "IFNAME", "KIND", "DEVICE", "RESOURCE", "ADDRESS", "RDMA/PORT", "GID v2", "v1", "STATE", "SINCE",
    "NETNS",
)  # fmt: skip


def answer_inspect(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Show the attachments; with WHAT, all details of those, and where their interfaces are now."
    parser = selection.parser("inspect", about, "hpn inspect default/worker-0", what="*")
    parser.add_argument("--kubelet-dir", type=Path, default=Path(KUBELET), help=f"default {KUBELET}")
    options = parser.parse_args(words)
    if options.what:
        return _of_some(options)
    attachments, unreadable, refused = list_all(command_line.state_dir(options))
    rest, waiting = match(attachments, allocated(options.kubelet_dir)), without_attachment(attachments)
    if options.json:
        document = selection.document(
            options,
            attachments=selection.without_words(attachments),
            unreadable=[str(path) for path in unreadable],
            refused=selection.without_words(refused),
            unattached=rest,
            claims=waiting,
        )
        return document, 0
    parts: list[Table | str] = [_table(attachments)] if attachments else []
    for a in attachments:
        if "trouble" in a:
            remedy = f"; {attachment_state.REMEDY}" if _is_unreadable(a) else ""
            parts.append(f"{_title(a)}: {a['trouble']}{remedy}")
    parts += [f"{_title(a)}: {selection.failure(a['lastError'])}" for a in attachments if "lastError" in a]
    parts += [f"{path} cannot be read; {_remedy(path)}" for path in unreadable]
    parts += [
        f"{_title(a)} is detached, and its IPAM plugin did not release {', '.join(a['addresses']) or 'it'}: "
        f"{a['trouble']}; release them by hand, then remove {a['file']}"
        for a in refused
    ]
    parts = parts or [selection.nothing(options, [])]
    if rest:
        rows = [(one["pod"], one["container"], one["resource"], ", ".join(one["ids"])) for one in rest]
        parts += ["", "allocated by kubelet, but not an interface of the pod:"]
        parts.append(Table(("POD", "CONTAINER", "RESOURCE", "DEVICES"), rows))
    if waiting:
        rows = [(one["claim"], one["request"], one["device"], one["attach"]) for one in waiting]
        parts += ["", "prepared by hpn node, but not attached:"]
        parts.append(Table(("CLAIM", "REQUEST", "DEVICE", "ATTACH"), rows))
    return text(parts), 0


def _title(a: Json) -> str:
    return f"{who(a)} of {a['network']}"


def _is_unreadable(a: Json) -> bool:
    """True if the record replaces an unreadable one, and its pod may be alive."""
    return bool(a["kind"] == LOST and a["alive"])


def _remedy(unreadable: Path) -> str:
    """The remedy for an unreadable file of the journal."""
    if unreadable.parts[-3] == "refused":  # no command reads the record of a detached attachment
        return "it is detached: release its addresses by hand, then remove that file"
    return attachment_state.REMEDY


def _of_some(options: argparse.Namespace) -> tuple[str, int]:
    """The output for the attachments that a word names, with all details."""
    found = selection.selected(options, options.what)
    known = [all_known(one) for one in found]
    match(known, allocated(options.kubelet_dir))
    unknown = selection.unknown(options.what, found)
    status = 1 if unknown else 0
    if options.json:
        return selection.document(options, attachments=selection.without_words(known), unknown=unknown), status
    blocks = ["\n".join(detail_lines(one, a)) for one, a in zip(found, known, strict=True)]
    blocks += [selection.nothing(options, unknown)] if unknown else []
    return text(["\n\n".join(blocks)]), status


def _table(attachments: Sequence[Json]) -> Table:
    """The table; it has the column RESOURCE only if kubelet allocated a device."""
    return _used([_COLUMNS, *(row for a in attachments for row in _rows(a))], "RESOURCE")


def _rows(a: Json) -> Iterator[tuple[str, ...]]:
    """A row for each address and RDMA port with a GID of it.  Only the first has the attachment's own columns."""
    state = ("alive" if a["alive"] else "dead") + ("" if a["complete"] else ", incomplete")
    state = attachment_state.UNREADABLE if _is_unreadable(a) else state
    resource = str(a["resource"]["name"]) if "resource" in a else "-"
    first: tuple[str, ...] = (who(a), a["network"], a["ifname"], a["kind"], a.get(WORDS, "-"), resource)
    last: tuple[str, ...] = (state, moment(a["since"]), a["netns"])
    for row in list(_addresses(a)) or [("-", ", ".join(a["rdma"]["devices"]) or "-", "-", "-")]:
        yield *first, *row, *last
        first, last = ("",) * len(first), ("",) * len(last)


def _addresses(a: Json) -> Iterator[tuple[str, str, str, str]]:
    """Cells for each address: the address, RDMA port, and its GID indexes of RoCE v2 and v1."""
    for address in a["addresses"]:
        gids = [gid for gid in a["rdma"]["gids"] if gid["address"] == address.partition("/")[0]]
        ports = sorted({(gid["device"], gid["port"]) for gid in gids})
        if not ports:
            yield address, ", ".join(a["rdma"]["devices"]) or "-", "-", "-"
        for device, port in ports:
            index = {gid["type"]: str(gid["index"]) for gid in gids if (gid["device"], gid["port"]) == (device, port)}
            yield address, f"{device}/{port}", index.get("RoCE v2", "-"), index.get("IB/RoCE v1", "-")


def all_known(one: Found) -> Json:
    """All details as JSON, with WORDS."""
    word, why = one.state()
    body: Json = {**selection.identified(one), "state": word, "why": why, "record": str(one.path)}
    if one.record is None:
        return body
    [is_dead] = are_dead([one])
    body |= with_error(describe(one.record, alive=not is_dead), one)
    body["namespace"] = one.record.identity.inode
    if not one.is_refused:
        try:
            place = interface_location.of(one.record)
        except OSError as e:
            place = interface_location.Place("unknown", f"could not be searched for: {e.strerror or e}")
        body["now"] = {"where": place.where, "words": place.sentence, "name": place.name, "netns": place.netns}
    return body


def detail_lines(one: Found, a: Json) -> Iterator[str]:
    """The details for a person: the title, then one name and value per line."""
    yield one.title
    for name, value in _values(a):
        if value:
            yield f"  {name:10} {value}"


def _values(a: Json) -> Iterator[tuple[str, str]]:
    yield "state", f"{a['state']}: {a['why']}"
    yield "record", a["record"]
    if "kind" not in a:
        return
    yield "container", a["containerID"]
    yield "since", moment(a["since"])
    yield "namespace", f"{a['netns']} (net:[{a['namespace']}]), {'alive' if a['alive'] else 'dead'}"
    mac = f"MAC {a['mac']}" if a["mac"] else ""
    yield "interface", ", ".join(filter(None, (f"{a['kind']} {a.get(WORDS, '')}".strip(), mac)))
    yield "PF", f"{a['pf']} {a.get('pfName', '')}".strip() if "pf" in a else ""
    yield "resource", a["resource"]["name"] if "resource" in a else ""
    yield "claim", _claim(a["claim"]) if "claim" in a else ""
    yield "addresses", ", ".join(a["addresses"])
    yield "RDMA", ", ".join(a["rdma"]["devices"])
    for gid in a["rdma"]["gids"]:
        yield "GID", f"{gid['device']}/{gid['port']} index {gid['index']}, {gid['type']}: {gid['address']}"
    yield "now", a["now"]["words"] if "now" in a else ""
    yield "trouble", a.get("trouble", "")
    yield "last error", selection.failure(a["lastError"]) if "lastError" in a else ""


def _claim(claim: Json) -> str:
    return f"{claim['name']}, request {claim['request']}" if "name" in claim else f"{claim['uid']}, not prepared now"


def without_attachment(attachments: Iterable[Json]) -> list[Json]:
    """The devices of prepared claims that await an interface, and that no attachment has."""
    there = {
        (a["claim"]["uid"], a["claim"].get("request"), a["claim"].get("device")) for a in attachments if "claim" in a
    }
    return [
        {"claim": f"{claim.namespace}/{claim.name}", "request": one.request, "device": one.id, "attach": one.attach}
        for claim in claims.all_claims()
        for one in claim.devices
        if one.is_awaited and (claim.uid, one.request, one.device) not in there
    ]


def allocated(kubelet: Path) -> "list[Held]":
    """The devices that the kubelet with this directory has allocated to containers; none without a kubelet."""
    socket = kubelet / "pod-resources" / "kubelet.sock"
    if not socket.is_socket():
        return []
    # The import takes most of the time, and many nodes have no such socket.
    from base.kubelet.client import pods  # noqa: PLC0415

    return pods(socket)


def match(attachments: Iterable[Json], given: "Iterable[Held]") -> list[Json]:
    """Add "resource" to the attachments whose device kubelet allocated to their pod; return the other allocations."""
    attachments = list(attachments)
    rest = list[Json]()
    for one in given:
        ids = [identity for identity in one.ids if not _mark(attachments, one, identity)]
        if ids:
            rest.append({"pod": _pod(one), "container": one.container, "resource": one.resource, "ids": ids})
    return rest


def _mark(attachments: Iterable[Json], one: "Held", identity: str) -> bool:
    """True if an attachment of the pod uses the device of this ID."""
    found = False
    for a in attachments:
        # A call of the plugin by hand names no pod.
        if a["pod"] in ("", _pod(one)) and _stands_for(identity, a):
            a.setdefault("resource", {"name": one.resource, "id": identity, "container": one.container})
            found = True
    return found


def _stands_for(identity: str, a: Json) -> bool:
    """True if the ID is one of the attachment's devices, or one with a number appended, as for shared devices."""
    device, _, number = identity.rpartition("-")
    own = {a.get(key) for key in ("device", "netdev", "master")} - {None, ""}
    return identity in own or (number.isdecimal() and device in own)


def _pod(one: "Held") -> str:
    return f"{one.namespace}/{one.pod}"
