"""hpn inspect: what is attached, where, and by which GIDs it is reached.

Not called inspect.py: beside a __main__.py that is run as a file it would be found for the standard library's.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cni import standing
from cni.attachments import WORDS, list_all
from cni.protocol.spec import Json
from cni.state.record import LOST
from ctl import chosen, command_line, details, given
from ctl.command_line import as_document
from ctl.screen import Table, moment, text

_COLUMNS: Final = (
    "POD", "NETWORK", "IFNAME", "KIND", "DEVICE", "RESOURCE", "ADDRESS", "RDMA/PORT", "GID v2", "v1", "STATE", "SINCE",
    "NETNS",
)  # fmt: skip


def answer(words: Sequence[str]) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises IoFailure, and SystemExit for wrong options."""
    about = "Show what is attached; of what WHAT names, all that is known, and where it is now."
    parser = chosen.parser("inspect", about, "hpn inspect default/worker-0", what="*")
    parser.add_argument("--kubelet-dir", type=Path, default=Path(given.KUBELET), help=f"default {given.KUBELET}")
    options = parser.parse_args(words)
    state_dirs = command_line.state_dirs(options)
    if options.what:
        return _of_some(options)
    attachments, unreadable, refused = list_all(state_dirs)
    rest = given.match(attachments, given.held(options.kubelet_dir))
    if options.json:
        document = {
            "stateDirs": [str(state_dir) for state_dir in state_dirs],
            "attachments": [chosen.without_words(a) for a in attachments],
            "unreadable": [str(path) for path in unreadable],
            "refused": [chosen.without_words(a) for a in refused],
            "unattached": rest,
        }
        return as_document(document), 0
    parts: list[Table | str] = [_table(attachments)] if attachments else []
    parts += [f"{_who(a)} of {a['network']}: {_trouble(a)}" for a in attachments if "trouble" in a]
    parts += [f"{_who(a)} of {a['network']}: {chosen.failure(a['lastError'])}" for a in attachments if "lastError" in a]
    parts += [f"{path} cannot be read; {_remedy(path)}" for path in unreadable]
    parts += [
        f"{_who(a)} of {a['network']} is detached, and its IPAM would not release {', '.join(a['addresses']) or 'it'}: "
        f"{a['trouble']}; release that by hand, then remove {a['file']}"
        for a in refused
    ]
    parts = parts or [f"nothing is attached, says {', '.join(map(str, state_dirs))}"]
    parts += ["", "given by kubelet, and no interface of the pod's:", given.table(rest)] if rest else []
    return text(parts), 0


def _is_unreadable(a: Json) -> bool:
    """Whether the attachment's record stands in for one that could not be read, and its pod may live."""
    return bool(a["kind"] == LOST and a["alive"])


def _trouble(a: Json) -> str:
    return f"{a['trouble']}; {standing.REMEDY}" if _is_unreadable(a) else str(a["trouble"])


def _remedy(unreadable: Path) -> str:
    """What is to be done about a file of the journal that cannot be read."""
    # No command reads what was detached already.
    is_refused = unreadable.parts[-3] == "refused"
    return "it is detached: release its addresses by hand, then remove that file" if is_refused else standing.REMEDY


def _of_some(options: argparse.Namespace) -> tuple[str, int]:
    """The same of those that a word names, with all that is known of each."""
    found = chosen.chosen(options, options.what)
    known = [details.known(one) for one in found]
    given.match([a for a in known if "device" in a or "master" in a], given.held(options.kubelet_dir))
    unknown = chosen.unknown(options.what, found)
    status = 1 if unknown else 0
    if options.json:
        state_dirs = [str(state_dir) for state_dir in command_line.state_dirs(options)]
        attachments = [chosen.without_words(a) for a in known]
        return as_document({"stateDirs": state_dirs, "attachments": attachments, "unknown": unknown}), status
    blocks = ["\n".join(details.lines(one, a)) for one, a in zip(found, known, strict=True)]
    blocks += [chosen.nothing(options, unknown)] if unknown else []
    return text(["\n\n".join(blocks)]), status


def _table(attachments: Sequence[Json]) -> Table:
    """With the column of resources only where kubelet gave any of it."""
    rows: list[tuple[str, ...]] = [_COLUMNS, *(row for a in attachments for row in _rows(a))]
    if not any("resource" in a for a in attachments):
        column = _COLUMNS.index("RESOURCE")
        rows = [row[:column] + row[column + 1 :] for row in rows]
    return Table(rows[0], rows[1:])


def _rows(a: Json) -> Iterator[tuple[str, ...]]:
    """The attachment's lines: one for each address on each RDMA port that has a GID of it.  The first also has what is
    the attachment's own."""
    who = _who(a)
    state = ("alive" if a["alive"] else "dead") + ("" if a["complete"] else ", incomplete")
    state = standing.UNREADABLE if _is_unreadable(a) else state
    first: tuple[str, ...] = (who, a["network"], a["ifname"], a["kind"], a.get(WORDS, "-"), _resource(a))
    last: tuple[str, ...] = (state, moment(a["since"]), a["netns"])
    for row in list(_addresses(a)) or [("-", ", ".join(a["rdma"]["devices"]) or "-", "-", "-")]:
        yield *first, *row, *last
        first, last = ("",) * len(first), ("",) * len(last)


def _resource(a: Json) -> str:
    return str(a["resource"]["name"]) if "resource" in a else "-"


def _who(a: Json) -> str:
    return str(a["pod"] or a["containerID"][:12])


def _addresses(a: Json) -> Iterator[tuple[str, str, str, str]]:
    for address in a["addresses"]:
        gids = [gid for gid in a["rdma"]["gids"] if gid["address"] == address.partition("/")[0]]
        ports = sorted({(gid["device"], gid["port"]) for gid in gids})
        if not ports:
            yield address, ", ".join(a["rdma"]["devices"]) or "-", "-", "-"
        for device, port in ports:
            index = {gid["type"]: str(gid["index"]) for gid in gids if (gid["device"], gid["port"]) == (device, port)}
            yield address, f"{device}/{port}", index.get("RoCE v2", "-"), index.get("IB/RoCE v1", "-")
